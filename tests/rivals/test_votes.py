"""Votes on every pixel: how wide the noise must be, and what is left of the votes then."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import nn

from canal.data.arrays import Arrays
from canal.privacy.gaussian import epsilon_from_rho
from canal.rivals import votes
from canal.rivals.votes import majority, spread


class Says(nn.Module):
    """Always the same: of the left half yes, of the right half no, or the other way round."""

    def __init__(self, sign):
        super().__init__()
        self.sign = sign

    def forward(self, images):
        found = torch.full_like(images[:, :1], -self.sign)
        found[..., : images.shape[-1] // 2] = self.sign
        return found


@pytest.fixture
def queries():
    empty = np.zeros((40, 1, 8, 8), np.uint8)
    return Arrays(tuple(map(str, range(40))), np.repeat(empty, 3, axis=1), empty, "queries")


def test_one_teacher_more_is_paid_for(queries):
    """A patient moves what one teacher says of every pixel: a distance of their number's root."""
    pixels, epsilon = queries.masks.size, 8.0
    distance = math.sqrt(pixels)
    rho = (distance / spread(pixels, epsilon, 1e-5)) ** 2 / 2
    assert epsilon_from_rho(rho, 1e-5) == pytest.approx(epsilon)


def test_with_noise_that_hides_nothing_the_majority_wins(queries):
    found = majority([Says(1.0), Says(1.0), Says(-1.0)], queries, 1e7, 1e-5, seed=0)
    assert found[..., :4].eq(1).all()
    assert found[..., 4:].eq(0).all()


@pytest.mark.parametrize(("wider", "as_stated"), [(1.0, True), (1.3, False), (0.7, False)])
def test_three_teachers_are_heard_as_far_as_the_noise_lets(queries, monkeypatch, wider, as_stated):
    """Noise as wide as the majority is sure gets 84 % of 2560 labels right; chance is 3.6 % off
    with a probability below 1e-6, and noise of another width is further off."""
    epsilon = epsilon_from_rho((math.sqrt(queries.masks.size) / 1.5) ** 2 / 2, 1e-5)
    monkeypatch.setattr(votes, "spread", lambda *asked: wider * spread(*asked))
    found = votes.majority([Says(1.0)] * 3, queries, epsilon, 1e-5, seed=0)
    truth = Says(1.0)(torch.from_numpy(queries.images).float()).gt(0)
    right = float((found == truth).float().mean())
    assert (abs(right - NormalDist().cdf(1.0)) < 0.036) == as_stated
