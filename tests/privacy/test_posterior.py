"""Positive scores from noisy ones: against SciPy and against simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from canal.errors import InvalidValueError
from canal.privacy import posterior_mean


@given(st.floats(-30, 30), st.floats(1e-3, 1e3))
def test_against_scipys_truncated_normal(ratio, sigma):
    want = sigma * stats.truncnorm.mean(-ratio, np.inf, loc=ratio, scale=1.0)
    got = posterior_mean([ratio * sigma], sigma)[0]
    # SciPy itself loses digits far in the tail; it is an oracle to 1e-5 there.
    assert got == pytest.approx(want, rel=1e-5)


@given(st.floats(-1e300, 1e300), st.floats(1e-100, 1e100))
def test_always_positive_and_above_the_noisy_score(noisy, sigma):
    got = posterior_mean([noisy], sigma)[0]
    assert got > 0
    assert got >= noisy


def test_increasing_without_a_seam():
    grid = np.linspace(-40, 60, 20_001)
    got = posterior_mean(grid, 1.0)
    assert (np.diff(got) > 0).all()
    assert np.abs(np.diff(got, 2)).max() < 1e-4  # no jump where the formulas meet


def test_no_channel_eats_the_objective():
    """Pure noise: the smallest estimate stays within a factor of the noise, unlike a tiny floor."""
    noisy = np.random.default_rng(0).normal(0, 1, 512)
    assert posterior_mean(noisy, 1.0).min() > 0.2


def test_shape_is_kept_and_errors_say_why():
    assert posterior_mean(np.zeros((2, 3)), 1.0).shape == (2, 3)
    with pytest.raises(InvalidValueError, match="sigma"):
        posterior_mean([1.0], 0.0)
    with pytest.raises(InvalidValueError, match="finite"):
        posterior_mean([np.nan], 1.0)
