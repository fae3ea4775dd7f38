"""Estimates: intervals that cover, differences that are paired, p-values that are corrected."""

import math

import numpy as np
import pytest

from paper.estimates import Sample, holm, p_value


def sample(rng, seeds=5, images=40, between=0.0, within=1.0, mean=0.0):
    values = tuple(
        mean + between * rng.standard_normal() + within * rng.standard_normal(images)
        for _ in range(seeds)
    )
    return Sample(values, tuple(np.arange(images) for _ in range(seeds)), 0.0)


def test_the_mean_is_over_seeds_and_not_over_images():
    few = Sample((np.array([1.0]), np.array([0.0] * 9)), (np.arange(1), np.arange(9)), 0.0)
    assert few.estimate().mean == 0.5


def missed(runs, **choices):
    found = 0
    for seed in range(runs):
        each = sample(np.random.default_rng(seed), **choices).estimate()
        found += not each.low <= 0 <= each.high
    return found / runs


def test_intervals_cover_where_images_differ_and_are_short_where_five_seeds_do():
    """Of 100 runs. A bootstrap of five seeds is short where they differ; the page says so."""
    assert missed(100) < 0.15  # 0.05 expected; 15 or more have a probability of 1.4e-4
    assert 0.05 < missed(100, between=1.0) < 0.35


def test_a_seed_that_is_drawn_twice_brings_other_images():
    """Only images differ here: the spread is theirs, sqrt((1 + (J - 1)/J) / (J n)) of a draw."""
    found = sample(np.random.default_rng(3), seeds=5, images=200).resampled
    assert found.std() == pytest.approx(math.sqrt((1 + 4 / 5) / (5 * 200)), rel=0.25)


def test_whose_images_are_drawn_together():
    """Ten images of one person are one witness: the interval is that of the people."""
    rng = np.random.default_rng(0)
    people = np.repeat(np.arange(8), 10)
    values = rng.standard_normal(8)[people]
    together = Sample((values,), (people,), 0.0).estimate()
    apart = Sample((values,), (np.arange(80),), 0.0).estimate()
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_a_paired_difference_takes_off_what_both_share():
    rng = np.random.default_rng(1)
    hard = sample(rng, between=5.0, within=20.0)
    better = Sample(tuple(values + 1 for values in hard.values), hard.people, 0.0)
    gain = better.minus(hard).estimate()
    assert (gain.mean, gain.low, gain.high) == pytest.approx((1, 1, 1))
    assert hard.estimate().high - hard.estimate().low > 5
    assert gain.p < 1e-6


def test_p_is_students():
    """By hand: 1, 2, 3 have a t of 2 sqrt 3 on two degrees of freedom; less, if splits overlap."""
    for ratio, t in ((0.0, 2 * math.sqrt(3)), (2 / 3, 2.0)):
        found = p_value(np.array([1.0, 2.0, 3.0]), ratio)
        assert found == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert math.isnan(p_value(np.array([1.0]), 0.0))
    assert p_value(np.zeros(3), 0.0) == 1
    assert p_value(np.ones(3), 0.0) == 0


def test_holm_never_lowers_and_keeps_the_order():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=20).tolist()
    corrected = holm(p)
    assert all(after >= before for before, after in zip(p, corrected, strict=True))
    assert np.argsort(corrected, kind="stable").tolist()[0] == int(np.argmin(p))
    assert holm([0.2]) == [0.2]
    assert holm([]) == []
