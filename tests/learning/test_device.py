"""The device: a GPU where there is one, what was asked for, and a way out where it is not there."""

import pytest
import torch
from torch import nn

from canal.errors import InvalidValueError
from canal.learning.networks import Tap, best, home
from canal.learning.training import Batch


def test_a_gpu_is_taken_where_there_is_one(monkeypatch):
    monkeypatch.delenv("CANAL_DEVICE", raising=False)
    assert best().type == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setenv("CANAL_DEVICE", "cpu")
    assert best().type == "cpu"


@pytest.mark.parametrize("asked", ["teapot", "cuda:99", ""])
def test_what_is_not_there_is_refused(monkeypatch, asked):
    monkeypatch.setenv("CANAL_DEVICE", asked)
    with pytest.raises(InvalidValueError, match="leave it out, or say cpu"):
        best()


def test_what_goes_in_goes_where_the_network_is():
    """On torch's device without memory, which refuses tensors of any other."""
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()).to("meta")
    assert home(network).type == "meta"
    assert home(nn.ReLU()).type == "cpu"
    with pytest.raises(NotImplementedError, match="meta tensor"):
        Tap(network, "1").features(torch.zeros(1, 1, 8, 8))  # computed there, then fetched
    batch = Batch(torch.zeros(1), torch.zeros(1), None, None, 3).to(torch.device("meta"))
    assert (batch.images.device.type, batch.masks.device.type, batch.step) == ("meta", "meta", 3)
