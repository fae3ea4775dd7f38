"""Finite precision: charged to epsilon and delta, and never more promised than is left."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from canal.errors import InvalidValueError
from canal.privacy import delta_from_rho, epsilon_from_rho, rho_from_epsilon
from canal.privacy.precision import BEYOND, ETA, epsilon_of_release, ideal_delta, rho_for_release


@given(st.floats(0.01, 50), st.integers(-20, -2), st.integers(0, 10**10))
def test_what_is_afforded_is_kept(epsilon, exponent, draws):
    delta = 10.0**exponent
    rho = rho_for_release(epsilon, delta, draws)
    assert epsilon_of_release(rho, delta, draws) <= epsilon or rho == 0
    assert rho <= rho_from_epsilon(epsilon, delta)


@given(st.floats(0.01, 50), st.integers(-20, -2), st.integers(1, 10**9))
def test_the_stated_inequality(rho, exponent, draws):
    """The real (epsilon, delta) follows from an ideal one by the two factors of the module."""
    delta = 10.0**exponent
    ideal_epsilon = epsilon_of_release(rho, delta, draws) - 2 * ETA * draws
    worst = math.exp(ETA * draws) * (delta_from_rho(ideal_epsilon, rho) + BEYOND * draws)
    assert worst <= delta * (1 + 1e-9)


def test_no_draws_no_price():
    assert epsilon_of_release(1.0, 1e-5, 0) == epsilon_from_rho(1.0, 1e-5)
    assert rho_for_release(8.0, 1e-5, 0) == rho_from_epsilon(8.0, 1e-5)


def test_tail_constant_is_an_upper_bound():
    assert 2 * stats.norm.sf(12) <= BEYOND


def test_a_delta_below_the_samplers_own_tail_is_refused():
    with pytest.raises(InvalidValueError, match="larger delta"):
        ideal_delta(1e-30, 10**6)
    assert ideal_delta(1e-300, 0) == 1e-300


def test_epsilon_below_the_precision_affords_nothing():
    assert rho_for_release(1e-12, 1e-5, 10**6) == 0
