"""Alignment: what it says of equal, permuted and unrelated features."""

import numpy as np
import pytest
import torch

from canal.errors import InvalidValueError
from paper.alignment import alignment


def features(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (40, 12, 4, 4)), generator=generator).relu()


def test_equal_up_to_scale_is_one():
    found = alignment(features(0), 3 * features(0))
    assert found.cosine == pytest.approx(1, abs=1e-6)
    assert found.correlation == pytest.approx(1, abs=1e-6)


def test_unrelated_features_have_a_cosine_but_no_correlation():
    found = alignment(features(0), features(1))
    # E[relu]² / E[relu²] = (1/2π) / (1/2) = 1/π
    assert found.cosine == pytest.approx(1 / np.pi, abs=0.02)
    # 12 channels of 640 values: standard deviation 1/√7680 ≈ 0.011
    assert abs(found.correlation) < 0.06


def test_permuted_channels_do_not_align():
    ours = features(0)
    assert alignment(ours, ours.roll(1, dims=1)).correlation < 0.06


@pytest.mark.parametrize("shape", [(6, 5, 3, 4), (6, 5, 2, 3, 4)])
def test_against_numpy(shape):
    ours, theirs = features(2, *shape), features(3, *shape)
    a, b = (x.numpy().astype(float) for x in (ours, theirs))
    cosines = [
        np.dot(x.ravel(), y.ravel()) / np.linalg.norm(x) / np.linalg.norm(y)
        for x, y in zip(a, b, strict=True)
    ]
    correlations = [np.corrcoef(a[:, c].ravel(), b[:, c].ravel())[0, 1] for c in range(shape[1])]
    found = alignment(ours, theirs)
    assert found.cosine == pytest.approx(np.mean(cosines), abs=1e-6)
    assert found.correlation == pytest.approx(np.mean(correlations), abs=1e-6)


def test_a_channel_that_never_changes_does_not_count():
    ours, theirs = features(0), features(0)
    theirs[:, 3] = 0
    ours[:, 5] = 2
    assert alignment(ours, theirs).correlation == pytest.approx(1, abs=1e-6)


def test_dead_features_are_zero_not_nan():
    dead = torch.zeros(4, 3, 2, 2)
    found = alignment(dead, features(0, 4, 3, 2, 2))
    assert (found.cosine, found.correlation) == (0, 0)


@pytest.mark.parametrize("other", [(1, 12, 4, 4), (40, 1, 4, 4), (40, 12, 4, 1)])
def test_other_shapes_are_refused_not_broadcast(other):
    with pytest.raises(InvalidValueError, match="cannot be compared"):
        alignment(features(0), features(1, *other))
