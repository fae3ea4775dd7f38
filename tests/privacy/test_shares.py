"""Shares: the sum is a Gaussian's post-processing, as exact sums of probabilities show."""

import math

import numpy as np
import pytest
from scipy import stats

from canal.errors import InvalidValueError
from canal.privacy.precision import BEYOND
from canal.privacy.shares import LEAST_STD, check_share, log_gap, share_std


def rounded(std, reach=400):
    """Probabilities of a rounded Gaussian on -reach .. reach."""
    edges = np.arange(-reach, reach + 2) - 0.5
    return np.diff(stats.norm.cdf(edges, scale=std))


def summed(std, count):
    """The exact law of a sum of rounded Gaussians, by convolution."""
    one = found = rounded(std)
    for _ in range(count - 1):
        found = np.convolve(found, one, mode="same")
    return found


def smoothed(std, count, fine=4001):
    """round(G + u_2 + … + u_n), by quadrature over the sum of uniforms."""
    width = (count - 1) / 2
    grid = np.linspace(-width, width, fine)
    n, total = count - 1, np.zeros(fine)
    for k in range(n + 1):  # Irwin and Hall
        total += (-1) ** k * math.comb(n, k) * np.maximum(grid + width - k, 0) ** (n - 1)
    weights = total / total.sum() if n > 1 else np.full(fine, 1 / fine)
    weights[[0, -1]] /= 2
    weights /= weights.sum()
    edges = np.arange(-400, 402) - 0.5
    spread = std * math.sqrt(count)
    tops = stats.norm.cdf((edges[:, None] - grid) / spread) @ weights
    return np.diff(tops)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("std", [0.5, 0.7, 1.0])
def test_the_bound_holds_where_the_gap_can_be_seen(count, std):
    """Far below the width that we allow; there double precision would see nothing."""
    seen = np.abs(summed(std, count) - smoothed(std, count)).sum() / 2
    assert seen <= math.exp(log_gap(std, count)) + 1e-6  # of the quadrature
    if std == 0.5:
        assert seen > 1e-4  # there is something to bound


def test_a_plain_rounded_gaussian_is_something_else():
    """The negative control: without the uniforms the two differ, and not by little."""
    plain = rounded(math.sqrt(3) * 1.0)
    assert np.abs(summed(1.0, 3) - plain).sum() / 2 > 0.01
    assert np.abs(summed(1.0, 3) - smoothed(1.0, 3)).sum() / 2 < 2e-3


def test_it_vanishes_as_the_lattice_gets_finer():
    gaps = [log_gap(std, 3) for std in (4, 5, 6, 8)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < math.log(1e-130)
    assert log_gap(4.0, 1) == -math.inf


@pytest.mark.parametrize("sites", [2, 3, 12, 100])
def test_the_gap_is_paid_for_by_what_the_tail_was_rounded_up_by(sites):
    rounded_up = BEYOND - 2 * stats.norm.sf(12)
    assert 700 + math.log(2) + log_gap(LEAST_STD, sites) < math.log(rounded_up)
    # Beyond 16 of its own deviations the sampler promises nothing.
    beyond = 2 * stats.norm.sf(16) * (1 + math.exp(50))
    assert beyond < rounded_up


@pytest.mark.parametrize("sites", [2, 3, 12])
def test_whoever_tells_leaves_enough(sites):
    for colluding in range(sites):
        std = share_std(3.0, sites, colluding)
        assert math.sqrt(sites - colluding) * std >= 3.0
        assert math.sqrt(sites - colluding) * std == pytest.approx(3.0)
    with pytest.raises(InvalidValueError, match="no share left"):
        share_std(3.0, sites, sites)


def test_what_is_refused():
    check_share([LEAST_STD, 1e6])
    for narrow in (LEAST_STD - 1, math.nan, [1e6, 3.0]):
        with pytest.raises(InvalidValueError, match="too narrow"):
            check_share(narrow)
    with pytest.raises(InvalidValueError, match="at least 1"):
        log_gap(5.0, 0)
