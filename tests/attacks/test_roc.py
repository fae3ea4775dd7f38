"""ROC curves: area, interval, rates, and what a guarantee allows."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from canal.attacks.roc import Roc, allowed_auc, allowed_tpr
from canal.errors import InvalidValueError

scores = st.lists(st.integers(-5, 5), min_size=1, max_size=30)


@given(scores, scores)
def test_area_is_the_chance_that_a_member_scores_above_another(members, others):
    """Mann and Whitney's statistic, pair by pair; ties count half."""
    pairs = [(m > o) + (m == o) / 2 for m in members for o in others]
    assert Roc.of(members, others).auc == pytest.approx(np.mean(pairs), abs=1e-12)
    found = stats.mannwhitneyu(members, others).statistic / (len(members) * len(others))
    assert Roc.of(members, others).auc == pytest.approx(found, abs=1e-12)


@given(scores, scores, st.floats(0, 0.999))
def test_found_at_a_rate_of_false_alarms(members, others, rate):
    """The best over all thresholds that raise no more alarms than that."""
    best = max(
        np.mean(np.array(members) > threshold)
        for threshold in [*others, *members, -math.inf]
        if np.mean(np.array(others) > threshold) <= rate + 1e-9 / len(others)
    )
    assert Roc.of(members, others).tpr(rate) == pytest.approx(best, abs=1e-12)


@given(scores, scores)
def test_the_curve_rises_from_no_alarm_to_all(members, others):
    points = Roc.of(members, others).points()
    assert points[0][0] == 0
    assert points[-1] == (1, 1)
    assert points == sorted(points)
    assert all(b[1] >= a[1] for a, b in pairwise(points))


def test_a_long_curve_is_thinned():
    points = Roc.of(np.arange(10_000.0), np.arange(10_000.0)).points()
    assert 50 < len(points) <= 201
    assert points[1][0] == pytest.approx(1e-4)


@given(scores, scores)
def test_the_interval_holds_the_area(members, others):
    roc = Roc.of(members, others)
    low, high = roc.auc_interval
    assert 0 <= low <= roc.auc <= high <= 1
    turned_low, turned_high = Roc.of(others, members).auc_interval
    assert (1 - turned_high, 1 - turned_low) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize("area", [0.5, 0.7, 0.9, 0.98])
def test_the_interval_misses_the_truth_in_one_run_of_twenty(area):
    """Newcombe's is approximate: coverage within a few in a hundred of 95 %, for small groups.

    400 runs have a standard error of 1.1 %, so the lower limit is 4.6 of them away (false-alarm
    rate 2e-6 if it were exact). The upper one only says that the interval is not useless.
    """
    rng = np.random.default_rng(0)
    mu = math.sqrt(2) * stats.norm.ppf(area)
    runs, hits = 400, 0
    for _ in range(runs):
        low, high = Roc.of(rng.normal(mu, 1, 60), rng.normal(0, 1, 40)).auc_interval
        hits += low <= area <= high
    assert 0.90 <= hits / runs < 1


def test_the_interval_is_sound_where_all_are_found():
    """Not from 1 to 1: sixty of sixty may be luck."""
    low, high = Roc.of(np.ones(60), np.zeros(60)).auc_interval
    assert 0.9 < low < 0.99
    assert high == 1


@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0])
def test_the_best_test_of_a_gaussian_lies_on_the_allowed_curve(mu):
    """Scores of the Gaussian mechanism itself; false-alarm rate 1e-6."""
    rng = np.random.default_rng(1)
    count = 100_000
    roc = Roc.of(rng.normal(mu, 1, count), rng.normal(0, 1, count))
    assert roc.auc == pytest.approx(allowed_auc(mu), abs=5 / math.sqrt(12 * count) * math.sqrt(2))
    for rate in (0.01, 0.1, 0.5):
        slack = 5 * math.sqrt(2 / count) * max(1.0, math.exp(2 * mu))
        assert roc.tpr(rate) == pytest.approx(allowed_tpr(rate, mu), abs=slack)


@given(st.floats(1e-6, 1 - 1e-6), st.floats(0, 10))
def test_what_is_allowed(rate, mu):
    allowed = allowed_tpr(rate, mu)
    assert rate <= allowed * (1 + 1e-9)
    assert allowed <= 1
    assert allowed_tpr(rate, mu + 1) >= allowed
    # The curve's own (epsilon, delta) at every epsilon.
    for epsilon in (0.5, 2.0):
        if mu > 1e-6:
            delta = stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * stats.norm.cdf(
                -epsilon / mu - mu / 2
            )
            assert allowed <= math.exp(epsilon) * rate + delta + 1e-9


def test_ends_of_the_allowed_curve():
    assert allowed_tpr(0.0, 3.0) == 0
    assert allowed_tpr(1.0, 3.0) == 1
    assert allowed_auc(0.0) == 0.5


@pytest.mark.parametrize(("members", "others"), [([], [1]), ([1], []), ([math.nan], [1])])
def test_no_scores_are_refused(members, others):
    with pytest.raises(InvalidValueError, match="at least one score"):
        Roc.of(members, others)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2.0])
def test_rates_that_are_none_are_refused(rate):
    with pytest.raises(InvalidValueError, match="must be at least 0 and below 1"):
        Roc.of([1], [0]).tpr(rate)


def test_a_few_who_stand_out_are_not_nothing():
    """Six of thirty-one named with certainty, the rest a coin: the area alone would say nothing."""
    rng = np.random.default_rng(0)
    members, others = rng.standard_normal(31), rng.standard_normal(240)
    coin = Roc.of(members, others)
    sure = Roc.of(np.r_[np.full(6, 100.0), members[6:]], others)
    low, high = sure.auc_interval
    assert low <= 0.5 <= high
    assert not sure.is_like_chance()
    assert coin.is_like_chance()


def test_the_chance_of_those_is_fishers():
    rng = np.random.default_rng(1)
    for seed in range(20):
        roc = Roc.of(rng.standard_normal(25) + 0.4 * (seed % 3), rng.standard_normal(200))
        if not roc.auc_interval[0] <= 0.5 <= roc.auc_interval[1]:
            continue
        found = int((roc.members > roc.others[2]).sum())
        table = [[found, 25 - found], [2, 198]]
        assert roc.is_like_chance() == (stats.fisher_exact(table, "greater").pvalue > 0.05)


def test_a_coin_is_called_one():
    """At 95 % each, two looks: at most one in ten is called something; 12.6 % allows for chance."""
    rng = np.random.default_rng(2)
    called = [
        not Roc.of(rng.standard_normal(30), rng.standard_normal(100)).is_like_chance()
        for _ in range(1000)
    ]
    assert np.mean(called) < 0.126


def test_ends_of_rates_are_clopper_and_pearsons():
    rng = np.random.default_rng(4)
    roc = Roc.of(rng.standard_normal(50) + 3, rng.standard_normal(300))
    found = round(roc.tpr(0.01) * 50)
    assert 0 < found < 50
    exact = stats.binomtest(found, 50).proportion_ci(0.998, "exact")
    assert roc.surely_found(0.01, 0.999) == pytest.approx(exact.low)
    alarms = stats.binomtest(3, 300).proportion_ci(0.998, "exact")
    assert roc.most_alarms(0.01, 0.999) == pytest.approx(alarms.high)
    assert Roc.of([0.0] * 5, [1.0] * 200).surely_found(0.01, 0.999) == 0
