"""Allocation: optimality, saturation from below, and every edge of its input."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from canal.errors import InvalidValueError
from canal.privacy import cost, distortion, reverse_water_filling, uniform, water_filling

SHAPES = hnp.array_shapes(max_dims=3, max_side=6)
RHOS = st.floats(1e-6, 1e6)


def arrays(shape, low, high):
    exponents = hnp.arrays(np.float64, shape, elements=st.floats(low, high))
    return exponents.map(lambda e: 10.0**e)


@st.composite
def problems(draw, spread=6):
    shape = draw(SHAPES)
    return (
        draw(arrays(shape, -spread, spread)),
        draw(arrays(shape, -3, 3)),
        draw(RHOS),
    )


def assert_saturates(sensitivity, sigma, rho):
    spent = cost(sensitivity, sigma)
    assert spent <= rho  # never above
    assert spent >= rho * (1 - 2.0**-48)  # and within a few units in the last place


@given(problems(spread=300))
def test_every_allocation_saturates_from_below(problem):
    score, delta, rho = problem
    for sigma in (uniform(delta, rho), water_filling(score, delta, rho)):
        assert sigma.shape == score.shape
        assert_saturates(delta, sigma, rho)


@given(problems(), st.data())
def test_reverse_saturates_from_below(problem, data):
    score, delta, rho = problem
    variance = data.draw(arrays(score.shape, -6, 6))
    assert_saturates(delta, reverse_water_filling(score, delta, variance, rho), rho)


@given(problems())
def test_water_filling_is_the_papers_closed_form(problem):
    score, delta, rho = problem
    kappa = math.sqrt(np.sum(delta * np.sqrt(score)) / (2 * rho))
    want = kappa * np.sqrt(delta) * score**-0.25
    np.testing.assert_allclose(water_filling(score, delta, rho), want, rtol=1e-12)


@given(problems())
def test_water_filling_beats_uniform_and_attains_the_theorems_value(problem):
    score, delta, rho = problem
    best = distortion(score, water_filling(score, delta, rho))
    assert best == pytest.approx(np.sum(delta * np.sqrt(score)) ** 2 / (2 * rho), rel=1e-10)
    assert best <= distortion(score, uniform(delta, rho)) * (1 + 1e-12)


@given(problems(), st.integers(0, 2**32 - 1))
def test_water_filling_beats_a_thousand_feasible_allocations(problem, seed):
    score, delta, rho = problem
    rng = np.random.default_rng(seed)
    # Half anywhere on the simplex of the budget, half close to the optimum.
    share = rng.dirichlet(np.full(score.size, 0.7), 500)
    mine = water_filling(score, delta, rho)
    near = delta**2 / (2 * mine**2) / rho
    near = near.ravel() * np.exp(0.05 * rng.standard_normal((500, score.size)))
    share = np.concatenate([share, near / near.sum(axis=1, keepdims=True)])
    with np.errstate(divide="ignore"):
        rivals = np.sum(score.ravel() * delta.ravel() ** 2 / (2 * rho * share), axis=1)
    assert distortion(score, mine) <= rivals.min() * (1 + 1e-10)


@given(problems(), st.data())
def test_reverse_beats_its_rivals_in_its_own_objective(problem, data):
    score, delta, rho = problem
    variance = data.draw(arrays(score.shape, -3, 3))

    def lost(sigma):
        return np.sum(score / (1 / variance + 1 / sigma**2))

    best = lost(reverse_water_filling(score, delta, variance, rho))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    share = rng.dirichlet(np.full(score.size, 0.7), 200).reshape(200, *score.shape)
    with np.errstate(divide="ignore"):
        rivals = [lost(delta / np.sqrt(2 * rho * part)) for part in share]
    rivals += [lost(uniform(delta, rho)), lost(water_filling(score, delta, rho))]
    assert best <= min(rivals) * (1 + 1e-9)


@given(problems())
def test_water_filling_is_the_limit_of_reverse(problem):
    score, delta, rho = problem
    np.testing.assert_allclose(
        reverse_water_filling(score, delta, np.inf, rho),
        water_filling(score, delta, rho),
        rtol=1e-9,
    )


def test_reverse_drops_what_drowns():
    sigma = reverse_water_filling([1.0, 1.0], 1.0, [1.0, 1e-9], rho=0.5)
    assert np.isfinite(sigma[0])
    assert np.isinf(sigma[1])
    assert cost(1.0, sigma) <= 0.5


def test_reverse_keeps_its_digits_under_high_floors():
    """Signal far below any affordable noise: the budget still goes where it helps most."""
    sigma = reverse_water_filling([1.0, 4.0], 1.0, [1e-20, 1e-20], rho=1.0)
    assert np.isinf(sigma[0])
    assert_saturates(1.0, sigma, 1.0)


@given(problems(), st.randoms(use_true_random=False))
def test_permuting_channels_permutes_the_noise(problem, random):
    score, delta, rho = problem
    order = list(range(score.size))
    random.shuffle(order)
    flat = water_filling(score.ravel(), delta.ravel(), rho)
    moved = water_filling(score.ravel()[order], delta.ravel()[order], rho)
    np.testing.assert_allclose(moved, flat[order], rtol=1e-12)


@given(problems())
def test_corrected_equality_case(problem):
    """Water-filling equals uniform iff s is proportional to Delta squared (not iff constant)."""
    _, delta, rho = problem
    np.testing.assert_allclose(water_filling(delta**2, delta, rho), uniform(delta, rho), rtol=1e-12)


def test_constant_importance_is_not_the_equality_case():
    delta = np.array([1.0, 3.0])
    constant = water_filling([1.0, 1.0], delta, 1.0)
    assert distortion([1.0, 1.0], constant) < 0.9 * distortion([1.0, 1.0], uniform(delta, 1.0))


@given(problems(), st.floats(1e-6, 1e6))
def test_only_proportions_of_importance_matter(problem, factor):
    score, delta, rho = problem
    np.testing.assert_allclose(
        water_filling(factor * score, delta, rho), water_filling(score, delta, rho), rtol=1e-12
    )


def test_edges_of_importance():
    assert np.isinf(water_filling([0.0, 1.0], 1.0, 1.0)[0])
    np.testing.assert_array_equal(
        water_filling([0.0, 0.0], [1.0, 2.0], 1.0), uniform([1.0, 2.0], 1.0)
    )
    tiny = water_filling([1e-300, 1e300], 1.0, 1.0)
    assert np.isfinite(tiny).all()
    assert_saturates(1.0, tiny, 1.0)
    one = water_filling([7.0], [2.0], 0.5)
    np.testing.assert_allclose(one, [2.0], rtol=1e-15)  # one channel: importance is irrelevant
    np.testing.assert_allclose(one, uniform([2.0], 0.5), rtol=1e-15)


def test_channels_by_positions():
    """The rule is index-agnostic: registered data may spread noise over space as well."""
    score = np.arange(1.0, 25.0).reshape(2, 3, 4)
    sigma = water_filling(score, 0.5, 1.0)
    np.testing.assert_array_equal(sigma.ravel(), water_filling(score.ravel(), 0.5, 1.0))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (([], 1.0, 1.0), "empty"),
        (([-1.0], 1.0, 1.0), "importance"),
        (([math.nan], 1.0, 1.0), "importance"),
        (([math.inf], 1.0, 1.0), "importance"),
        (([1.0], 0.0, 1.0), "sensitivity"),
        (([1.0], math.nan, 1.0), "sensitivity"),
        (([1.0], math.inf, 1.0), "sensitivity"),
        (([1.0, 2.0], [1.0, 2.0, 3.0], 1.0), "shape"),
        (([1.0], 1.0, 0.0), "rho"),
        (([1.0], 1.0, math.inf), "rho"),
        (([1.0], 1.0, math.nan), "rho"),
    ],
)
def test_errors_are_closed_and_say_why(arguments, word):
    score, delta, rho = arguments
    with pytest.raises(InvalidValueError, match=word):
        water_filling(score, delta, rho)
    with pytest.raises(InvalidValueError, match=word):
        reverse_water_filling(score, delta, 1.0, rho)


def test_errors_of_the_others():
    with pytest.raises(InvalidValueError, match="sigma"):
        cost(1.0, [0.0])
    with pytest.raises(InvalidValueError, match="shape"):
        distortion([1.0, 2.0], [1.0])
    with pytest.raises(InvalidValueError, match="empty"):
        uniform([], 1.0)
    with pytest.raises(InvalidValueError, match="signal_variance"):
        reverse_water_filling([1.0], 1.0, 0.0, 1.0)
