"""Lower bounds on epsilon: below the truth as often as they say, and close to it.

Every test by simulation has a false-alarm rate of 1e-7 or less, and a fixed seed.
"""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from canal.attacks.bounds import counted_epsilon, gaussian_mu, normality
from canal.errors import InvalidValueError
from canal.privacy import epsilon_from_rho, mu_from_rho, rho_from_epsilon

ALPHA = 1e-7


def two_worlds(mu, count, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, count), rng.normal(mu, 1, count)


def most_alarms(runs, rate):
    """What a binomial exceeds with probability 1e-7."""
    return stats.binom.isf(ALPHA, runs, rate)


@pytest.mark.parametrize("mu", [0.0, 0.3, 3.0, 30.0])
def test_gaussian_bound_is_above_the_truth_in_one_run_of_twenty(mu):
    """Not more often; and, where nothing is cut off at zero, not less often either."""
    runs = 3000
    above = sum(gaussian_mu(*two_worlds(mu, 150, seed)) > mu for seed in range(runs))
    assert above <= most_alarms(runs, 0.05)
    if mu:
        assert above >= stats.binom.ppf(ALPHA, runs, 0.05)


@pytest.mark.parametrize("mu", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("confidence", [0.95, 1 - 1e-6])
def test_gaussian_bound_is_that_of_the_noncentral_t(mu, confidence):
    count = 150
    first, second = two_worlds(mu, count, seed=1)
    found = stats.ttest_ind(second, first).statistic

    def risk(low):
        return stats.nct.sf(found, 2 * count - 2, low * math.sqrt(count / 2)) - (1 - confidence)

    exact = optimize.brentq(risk, -1, 2 * mu + 1)
    ours = gaussian_mu(first, second, confidence)
    assert ours == pytest.approx(max(0, exact), rel=2e-3 if confidence < 0.99 else 1e-2, abs=2e-3)


@pytest.mark.parametrize("epsilon", [1, 2, 4, 8])
def test_both_come_close_at_a_hundred_thousand_draws(epsilon):
    mu = mu_from_rho(rho_from_epsilon(epsilon, 1e-5))
    scores = two_worlds(mu, 100_000, seed=epsilon)
    found = gaussian_mu(*scores)
    assert 0.9 * epsilon <= epsilon_from_rho(found**2 / 2, 1e-5) <= epsilon
    assert 0.3 * epsilon <= counted_epsilon(*scores, 1e-5) <= epsilon


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (2.0, 0.05)])
def test_counted_bound_is_above_the_truth_in_one_run_of_twenty_at_most(epsilon, delta):
    """Randomised response is (epsilon, delta) and no better: the tightest there is."""
    rng = np.random.default_rng(3)
    runs, count = 1000, 600
    # With probability delta all is told; else the truth with e^epsilon times the lie.
    truth = delta + (1 - delta) / (1 + math.exp(-epsilon))
    above = 0
    for _ in range(runs):
        first = (rng.random(count) > truth).astype(float)
        second = (rng.random(count) < truth).astype(float)
        above += counted_epsilon(first, second, delta) > epsilon
    assert above <= most_alarms(runs, 0.05)


def test_counted_bound_looks_at_both_tails():
    """Scores that are never low in world 1: the set below a threshold proves it."""
    rng = np.random.default_rng(4)
    first, second = rng.uniform(0, 1, 20_000), rng.uniform(0.2, 1, 20_000)
    assert counted_epsilon(first, second, 1e-5) > 5
    assert counted_epsilon(-second, -first, 1e-5) > 5


def test_counting_proves_no_more_than_the_logarithm_of_the_draws():
    assert 7 < counted_epsilon(np.zeros(10_000), np.ones(10_000), 1e-5) < math.log(5000)


def test_worlds_that_do_not_vary():
    assert gaussian_mu(np.zeros(200), np.ones(200)) == math.inf
    assert gaussian_mu(np.ones(200), np.zeros(200)) == 0
    assert gaussian_mu(np.ones(200), np.ones(200)) == 0
    assert normality(np.zeros(200), np.ones(200)) == 0


def test_worlds_the_wrong_way_round_prove_nothing_to_the_gaussian_bound():
    assert gaussian_mu(*reversed(two_worlds(2.0, 500, seed=5))) == 0


def test_normality_cries_wolf_as_often_as_it_says():
    runs = 400
    alarms = sum(normality(*two_worlds(1.0, 1000, seed)) < 0.05 for seed in range(runs))
    assert alarms <= most_alarms(runs, 0.05)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rng, x: x * 1.05,  # one world is wider
        lambda rng, x: rng.standard_t(8, len(x)),
        lambda rng, x: x + 0.05 * x**2,
        lambda rng, x: np.clip(x, -1.5, 1.5),
    ],
)
def test_normality_finds_what_is_not(spoil):
    rng = np.random.default_rng(6)
    first, second = rng.normal(size=(2, 100_000))
    assert normality(first, second) > 1e-6
    assert normality(first, spoil(rng, second)) < 1e-6


@pytest.mark.parametrize("scores", [np.zeros(99), np.r_[np.zeros(200), math.nan]])
def test_too_few_scores_or_none_at_all_are_refused(scores):
    for bound in (gaussian_mu, normality, lambda a, b: counted_epsilon(a, b, 1e-5)):
        with pytest.raises(InvalidValueError, match="at least 100 finite scores"):
            bound(scores, np.zeros(200))
