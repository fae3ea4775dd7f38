"""Consensus: what gradients have in common, without what strangers have by chance."""

import pytest
import torch

from canal.experiments.consensus import consensus


def rows(count, size, common, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, size, generator=generator) / size**0.5
    shared = torch.zeros(size)
    shared[0] = common
    return noise + shared


def test_unanimous_patients_agree_whatever_they_shout():
    one = torch.tensor([3.0, 4.0])
    found, length = consensus([one[None], torch.stack([2 * one, 5 * one])])
    assert found == pytest.approx(1)
    assert length == pytest.approx(10)


@pytest.mark.parametrize("common", [0.1, 0.3, 1.0])
def test_what_is_common_is_found(common):
    """A mean of 400 such draws has a standard error below 0.01; five of them are allowed."""
    found, _ = consensus(rows(400, 2000, common).split(32))
    assert found == pytest.approx(common / (1 + common**2) ** 0.5, abs=0.05)


def test_strangers_have_nothing_in_common():
    """Without the correction, 400 strangers would seem to agree by 1/20."""
    found, _ = consensus([rows(400, 2000, 0.0)])
    assert found < 0.02


def test_silent_patients_count_for_nothing():
    some = rows(50, 200, 0.5)
    with_silence = torch.cat([some, torch.zeros(10, 200)])
    assert consensus([with_silence])[0] == pytest.approx(consensus([some])[0])
    assert consensus([torch.zeros(3, 4)]) == (0.0, 0.0)
