"""How much a bottleneck says about single images."""

import pytest
import torch

from canal.learning.networks import variation


def test_by_hand():
    features = torch.tensor([[[[3.0]]], [[[5.0]]]])
    assert variation(features) == pytest.approx((1 / 17) ** 0.5)


def test_what_is_the_same_for_all_does_not_vary():
    assert variation(torch.ones(5, 3, 2, 2)) == 0
    assert variation(torch.zeros(5, 3, 2, 2)) == 0
