"""Noise that is not what is stated, in one place of many: seen in the folder, without teachers."""

import math
import re

import mpmath
import numpy as np
import pytest

from canal.errors import ReleaseError
from canal.features.verification import noise_looks
from canal.release.noise_check import Alike, Sums, Zeros, check_unlike, check_widths, closest
from canal.release.verification import verify
from release.folders import write_folder

ORDINARY = {"queries": 40, "grid": (16, 16), "released": 12}


@pytest.fixture
def found(tmp_path):
    """What fails of a folder whose noise, `[N, M, H·W]`, was changed; and what is said."""

    def look(change=lambda noise: noise, **choices):
        release = write_folder(tmp_path / "release", change=change, **(ORDINARY | choices))
        checks = {check.what: check for check in verify(release.path)}
        return {what: c.detail for what, c in checks.items() if c.passed is False}, checks

    return look


def scaled(factor, *at):
    def change(noise):
        noise[at] *= factor
        return noise

    return change


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"preset": "paper"},
        {"queries": 300},
        {"queries": 1},
        {"grid": (1, 1), "queries": 500},
        {"queries": 40, "grid": (2, 2)},
        {"signal": 0.0},
        {"choices": {"epsilon": 0.01}},
        {"choices": {"epsilon": 3000.0}},
        {"choices": {"epsilon": 1e9}},  # noise of a few units of storage, or less than one
        {"choices": {"epsilon": 1e12}},
        {"choices": {"trust": "secure-sum", "colluding": 2}},
    ],
)
def test_noise_that_is_right_passes(found, choices):
    failed, checks = found(**choices)
    assert failed == {}
    assert "false alarms 5e-10" in checks["noise"].detail


@pytest.mark.parametrize("preset", ["honest", "paper"])
@pytest.mark.parametrize("factor", [0.0, 0.7])
def test_the_last_query_has_less_noise(found, preset, factor):
    failed, _ = found(scaled(factor, -1), preset=preset)
    assert failed["noise"].startswith("query 'case-0039' varies less than its noise alone would")


def test_a_query_without_noise_under_a_loud_signal(found):
    """Features that are longer than the noise: what all queries have in common is taken off."""
    failed, _ = found(scaled(0, 7), choices={"epsilon": 1e5})
    assert "query 'case-0007' varies less" in failed["noise"]


@pytest.mark.parametrize(
    ("at", "name"),
    [
        ((3, 5), r"channel \d+ of query 'case-0003'"),
        ((slice(None), 5), r"channel \d+ varies"),
        ((slice(None), 5, 17), r"value 17 of channel \d+ over all queries"),
    ],
)
def test_a_part_without_noise(found, at, name):
    failed, _ = found(scaled(0, *at), queries=100)
    assert re.match(name, failed["noise"])


def test_few_values_without_noise_are_zeros(found):
    """Too few for a sum of squares; where teachers are silent they are zero, as no noise is."""
    failed, _ = found(scaled(0, 3), grid=(2, 2), released=12, queries=300, signal=0.0)
    assert "zeros among 48 values" in failed["noise"] or "varies less" in failed["noise"]
    rng = np.random.default_rng(0)
    count = rng.binomial(4, 1e-3, (300, 12))
    zeros = Zeros(str, count, 4, 1e-3 * math.sqrt(2 * math.pi))
    zeros.check(1e-6)
    count[3, 5] = 4
    with pytest.raises(ReleaseError, match=r"\(3, 5\) has 4 zeros among 4 values"):
        zeros.check(1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_query_that_repeats_the_noise_of_another(found, sign):
    def copied(noise):
        noise[3] = sign * noise[30]
        return noise

    failed, _ = found(copied)
    assert list(failed) == ["repeats"]
    assert failed["repeats"].startswith("query 'case-0003' and query 'case-0030' are closer")


def test_a_channel_that_repeats_the_noise_of_another(found):
    def copied(noise):
        noise[:, 1] = noise[:, 0]
        return noise

    failed, _ = found(copied, choices={"allocation": "uniform"})
    assert re.match(r"channel \d+ and channel \d+ are closer", failed["repeats"])


@pytest.mark.parametrize("factor", [1.2, 3.0])
def test_noise_that_is_too_wide(found, factor):
    failed, _ = found(scaled(factor))
    assert "varies more than its noise and any signal would" in failed["noise"]


def test_statistics_without_noise(found):
    """Where noise is much; where caps and importance are longer than it, nothing is to be seen."""
    failed, _ = found(preset="paper", statistics_noise=0.0, choices={"epsilon": 0.1})
    assert failed["noise"].startswith("the statistic caps varies less")


def test_what_is_said_to_be_seen_is_seen(found):
    """A query at the share that is said is found with probability 0.95; measured in 200 draws.

    One folder says it, 200 queries are drawn for it. The test is wrong once in 1e5.
    """
    _, checks = found(grid=(8, 8))
    said = re.search(r"a query at ([\d.]+) of its deviation", checks["noise"].detail)
    seen = float(said[1])
    assert 0.6 < seen < 0.9
    rng, width, runs = np.random.default_rng(1), 12 * 64, 200
    quiet = np.square(rng.standard_normal((runs, width)) * seen).sum(axis=1)
    # As many families of looks, and as many queries, as there are in the folder.
    one = 5e-10 / 12 / 40 / 2
    found_of = (quiet < Sums(str, quiet, width).lower(one)).mean()
    assert found_of > 0.95 - 4.3 * math.sqrt(0.95 * 0.05 / runs)


@pytest.mark.parametrize("signal", [0.0, 30.0])
@pytest.mark.parametrize("freedom", [64, 3000])
def test_the_chance_to_be_seen_is_right(freedom, signal):
    """Against 20,000 draws, to 4.4 standard errors (wrong once in 1e5) and 0.01 for Patnaik."""
    rng, runs = np.random.default_rng(2), 20000
    for ratio in (0.5, 0.7, 0.8, 0.9):
        drawn = ratio**2 * rng.noncentral_chisquare(freedom, signal / ratio**2 + 1e-9, runs)
        typical = Sums(str, np.full(5, freedom + signal), freedom)
        for alarm in (1e-9, 1e-3):
            chance = typical.chance(ratio, alarm)
            measured = (drawn < typical.lower(alarm)).mean()
            slack = 4.4 * math.sqrt(max(chance * (1 - chance), 1e-4) / runs) + 0.01
            assert abs(measured - chance) < slack


@pytest.mark.parametrize("freedom", [1, 2, 47, 768, 13056, 10**6])
@pytest.mark.parametrize("alarm", [1e-15, 1e-9, 0.01])
def test_tails_are_exact(freedom, alarm):
    """An oracle of another make (mpmath), where normal approximations are off by a power of ten."""
    lower = float(Sums(str, np.ones(1), freedom).lower(alarm))
    with mpmath.workdps(40):
        tail = mpmath.gammainc(mpmath.mpf(freedom) / 2, 0, lower / 2, regularized=True)
    assert float(tail / alarm) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("freedom", [1, 16, 768])
def test_the_upper_tail_is_safe_for_every_signal(freedom):
    """At 5 %, no more than 5 % are above, however long the signal is (wrong once in 1e5)."""
    rng, runs, reach = np.random.default_rng(3), 20000, 6.0
    limit = float(Sums(str, np.ones(1), freedom, reach=reach).upper(0.05)[()])
    for length in (0.0, 3.0, reach):
        drawn = rng.noncentral_chisquare(freedom, length**2 + 1e-9, runs)
        assert (drawn > limit).mean() < 0.05 + 4.3 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.slow
@pytest.mark.parametrize("choices", [{"signal": 0.0}, {"choices": {"epsilon": 300.0}}])
def test_false_alarms(tmp_path, choices):
    """At a rate of 5 %, at most that many of 300 folders that are right are found fault with.

    Without signal at least 1 % are: Bonferroni over looks that overlap is safe, not vain. The test
    is wrong once in 1e5 (binomial, 4.3 standard errors).
    """
    runs, rate, wrong = 300, 0.05, 0
    for seed in range(runs):
        size = {"queries": 6, "grid": (3, 3), "released": 4}
        release = write_folder(tmp_path / f"{seed}", seed=seed, **(size | choices))
        try:
            check_widths(*noise_looks(release), rate)
        except ReleaseError:
            wrong += 1
    assert wrong / runs < rate + 4.3 * math.sqrt(rate * (1 - rate) / runs)
    assert wrong / runs > (0.01 if choices.get("signal") == 0.0 else 0)


def test_false_alarms_of_pairs():
    """At a rate of 5 %: of 2,000 sets of rows that are right, at most 5 % have a pair too close."""
    rng, runs, rate, wrong = np.random.default_rng(4), 2000, 0.05, 0
    for _ in range(runs):
        wrong += closest(rng.standard_normal((6, 40)), rate).passed is False
    assert 0.02 < wrong / runs < rate + 4.3 * math.sqrt(rate * (1 - rate) / runs)


def test_a_later_round_that_answers_an_earlier_ones_noise():
    """A signal that follows the noise of an earlier row brings them closer, and is no fault."""
    rng, width = np.random.default_rng(5), 4000
    first, second = rng.standard_normal((2, width))
    rows = np.stack([first, second + first])
    assert closest(rows).passed is False
    assert closest(rows, later_know=True).passed
    assert "1 pairs" in check_unlike(Alike("rows", rows, str, later_know=True), 1e-9)
    near = np.stack([first, first + 0.1 * second])
    with pytest.raises(ReleaseError, match="0 and 1 are closer"):
        check_unlike(Alike("rows", near, str, later_know=True), 1e-9)
