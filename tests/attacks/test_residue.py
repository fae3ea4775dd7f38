"""The noise of a stored release: right, it passes; changed in any of these ways, it is found.

Seeds are fixed. Each check has a false-alarm rate of 1e-9, which `test_false_alarms` measures at
a rate that can be measured.
"""

import copy
import dataclasses
import math
import re

import numpy as np
import pytest

from canal.attacks.residue import Residue
from canal.attacks.view import passes, released_rows, units
from canal.errors import InvalidValueError
from canal.features.queries import Queries
from canal.release.verification import verify

# Little noise: a mean of three teachers is seen through it.
EASY = 3000.0
WIDTH, MEAN = "width of the noise in the folder", "mean of the noise in the folder"
TAILS = "tails of the noise in the folder"
ROWS, CHANNELS = "noise of two queries in the folder", "noise of two channels in the folder"
STATISTICS = "noise of two statistics in the folder"


@pytest.fixture(scope="module")
def arrays(make_arrays):
    return make_arrays()


@pytest.fixture(scope="module")
def release(make_release, arrays):
    return make_release(arrays=arrays, seed=3)


@pytest.fixture
def look(ensemble, arrays):
    """What fails, by name; and everything that was looked at."""

    def look(release, by=ensemble):
        checks = Residue.of(release, by, Queries.of(arrays)).checks()
        return {check.what: check.detail for check in checks if check.passed is False}, checks

    return look


@pytest.mark.parametrize(
    "choices",
    [
        {"preset": "honest", "seed": 0},
        {"preset": "honest", "seed": 1, "epsilon": 0.1},
        {"preset": "honest", "seed": 2, "allocation": "uniform"},
        {"preset": "paper", "seed": 3},
        {"preset": "paper"},
    ],
)
def test_a_release_that_is_right_passes(make_release, look, choices):
    failed, checks = look(make_release(**choices))
    assert failed == {}
    more = [STATISTICS] * (choices["preset"] == "paper")
    assert [check.what for check in checks] == [WIDTH, MEAN, TAILS, ROWS, CHANNELS, *more]
    assert all(check.passed and check.folder for check in checks)
    assert all(check.false_alarm == 1e-9 for check in checks)


def test_tampering_with_nothing_is_found_by_nobody(release, arrays, look, tamper):
    same = tamper(release, arrays, lambda noise: noise)
    assert np.array_equal(released_rows(same), released_rows(release))
    assert look(same)[0] == {}


def test_sigma_halved(release, arrays, look, tamper):
    failed, _ = look(tamper(release, arrays, lambda noise: noise / 2))
    assert set(failed) == {WIDTH}
    assert 0.48 < float(failed[WIDTH].split()[0]) < 0.52


def test_no_other_check_of_the_folder_finds_that(make_release, arrays, look, tamper):
    """Which is why this one is there: with little noise, what varies is the features."""
    release = make_release(arrays=arrays, seed=3, epsilon=EASY)
    forged = tamper(release, arrays, lambda noise: noise / 2)
    assert [check for check in verify(forged.path) if check.passed is False] == []
    assert set(look(forged)[0]) == {WIDTH}


def test_what_would_have_been_found_is_said(release, arrays, look, tamper):
    """Fewer values, fewer faults that show: a little below what is said, one channel fails."""
    width = next(check for check in look(release)[1] if check.what == WIDTH)
    seen = float(re.search(r"below ([\d.]+) it would", width.detail)[1])
    assert 0.5 < seen < 0.9

    def quieter(noise):
        share = 0.98 * seen * np.sqrt(noise.shape[0] * noise.shape[2])
        noise = noise.copy()
        stated = np.array(release.manifest.mechanism["sigma"])[2] / units(release)[2]
        noise[:, 2] *= share * stated / np.linalg.norm(noise[:, 2])
        return noise

    failed, _ = look(tamper(release, arrays, quieter))
    assert failed[WIDTH].endswith(f"in channel {release.channels[2]}")


def test_a_channel_without_noise(release, arrays, look, tamper):
    def quiet(noise):
        return noise * (np.arange(noise.shape[1]) != 2)[:, None]

    failed, _ = look(tamper(release, arrays, quiet))
    assert set(failed) == {WIDTH}
    assert failed[WIDTH].endswith(f"in channel {release.channels[2]}")


def test_noise_used_again_in_two_rows(release, arrays, look, tamper):
    def copied(noise):
        return noise[np.r_[:7, 2, 8 : len(noise)]]

    failed, _ = look(tamper(release, arrays, copied))
    assert set(failed) == {ROWS}
    assert failed[ROWS] == "case-2 and case-7 have a correlation of 1.000, so it was used twice"


def test_noise_used_again_with_the_other_sign(release, arrays, look, tamper):
    """The sum of the two rows is free of it; no distance shows that."""

    def turned(noise):
        return np.concatenate([noise[:-1], -noise[:1]])

    assert "correlation of -1.000" in look(tamper(release, arrays, turned))[0][ROWS]


def test_noise_used_again_in_two_channels(release, arrays, look, tamper):
    sigma = np.array(release.manifest.mechanism["sigma"])

    def copied(noise):
        noise = noise.copy()
        units = np.array(release.manifest.mechanism["shift"])
        noise[:, 1] = noise[:, 0] * (sigma[1] / sigma[0]) * 2.0 ** (units[0] - units[1])
        return noise

    failed, _ = look(tamper(release, arrays, copied))
    assert set(failed) == {CHANNELS}
    assert "correlation of 1.000" in failed[CHANNELS]


def test_noise_that_is_off_zero(release, arrays, look, tamper):
    def moved(noise):
        return noise + 0.5 * noise.std(axis=(0, 2))[:, None]

    assert MEAN in look(tamper(release, arrays, moved))[0]


def test_an_offset_that_all_queries_share(release, arrays, look, tamper):
    """Of mean zero over a channel, so that only single values show it."""

    def shared(noise):
        signs = np.where(np.arange(noise.shape[2]) % 2, 2, -2)
        return noise + signs * noise.std(axis=(0, 2))[:, None]

    assert "a value of channel" in look(tamper(release, arrays, shared))[0][MEAN]


def test_noise_that_the_real_code_made_too_narrow(make_release, look, monkeypatch):
    """Not a forger's: a bug in the path, and a folder that it left behind."""
    from canal.privacy import Lattice

    real = Lattice.perturb

    def quieter(self, total, sigma, stream, **more):
        return real(self, total, np.asarray(sigma) / 2, stream, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Lattice, "perturb", quieter)
        made = make_release("paper", seed=4)
    assert WIDTH in look(made)[0]


@pytest.mark.parametrize("leaked", ["caps", "importance"])
def test_a_statistic_in_the_clear(make_release, look, monkeypatch, leaked):
    from canal.release.noisy_sum import NoisySum

    real = NoisySum.perturb

    def open_hearted(self, total, stream):
        return np.asarray(total) if self.name == leaked else real(self, total, stream)

    with monkeypatch.context() as patch:
        patch.setattr(NoisySum, "perturb", open_hearted)
        made = make_release("paper", seed=4)
    failed, _ = look(made)
    assert set(failed) == {WIDTH}
    assert failed[WIDTH].endswith(f"of the deviation that is stated, in {leaked}")
    assert float(failed[WIDTH].split()[0]) < 1e-3  # what the lattice rounds away


def test_other_teachers_are_told_from_a_fault(make_release, look, ensemble, networks):
    """The manifest names cohorts, never weights: whoever gives other weights is told so.

    Where noise hides one teacher, as it should, it hides the mistake; here there is little.
    """
    import torch

    from canal.learning.networks import Tap

    others = []
    for teacher in ensemble.teachers:
        network = copy.deepcopy(networks[teacher.cohort])
        with torch.no_grad():
            network[0].weight.neg_()
        others.append(dataclasses.replace(teacher, tap=Tap(network, "1")))
    release = make_release(seed=0, epsilon=EASY)
    assert look(release)[0] == {}
    failed, _ = look(release, dataclasses.replace(ensemble, teachers=tuple(others)))
    assert failed
    assert all("not the teachers that made it" in detail for detail in failed.values())


def test_a_channel_whose_cap_is_zero_has_noise_as_well(
    make_release, ensemble, networks, arrays, look, tamper
):
    """Its features are all zero for a reader, and its integers are in the folder all the same."""
    import torch

    from canal.learning.networks import Tap, weights_digest

    silent = copy.deepcopy(networks["init"])
    with torch.no_grad():
        silent[0].weight[4] = 0
        silent[0].bias[4] = -1
    by = dataclasses.replace(
        ensemble, shared=Tap(silent, "1"), initialisation=weights_digest(silent)
    )
    release = make_release(arrays=arrays, seed=0, by=by, allocation="uniform", released=12)
    where = release.channels.tolist().index(4)
    assert release.caps[where] == 0
    assert look(release)[0] == {}

    def quiet(noise):
        return noise * (np.arange(noise.shape[1]) != where)[:, None]

    assert look(tamper(release, arrays, quiet))[0][WIDTH].endswith("in channel 4")


def test_without_noise_there_is_nothing_to_see(make_release, look):
    _, checks = look(make_release(allocation="none"))
    assert [check.passed for check in checks] == [None]


def test_one_query(make_release, make_arrays, ensemble):
    one = make_arrays(1)
    checks = Residue.of(make_release(arrays=one, seed=0), ensemble, Queries.of(one)).checks()
    assert [check.passed for check in checks] == [True, True, True, None, True]


@pytest.mark.parametrize("preset", ["honest", "paper"])
def test_progress_adds_up(make_release, ensemble, arrays, preset):
    release = make_release(preset, seed=0)
    counted = []
    Residue.of(release, ensemble, Queries.of(arrays), counted.append)
    assert sum(counted) == passes(release.plan)


def test_queries_in_another_order_are_put_right(release, ensemble, arrays):
    turned = Queries.of(arrays.rows(arrays.ids[::-1]))
    found = Residue.of(release, ensemble, turned)
    np.testing.assert_array_equal(
        found.noise, Residue.of(release, ensemble, Queries.of(arrays)).noise
    )


def test_what_does_not_belong_to_the_release_is_refused(release, ensemble, make_arrays, arrays):
    with pytest.raises(InvalidValueError, match="answers 24 queries, not these 5"):
        Residue.of(release, ensemble, Queries.of(make_arrays(5)))
    turned = dataclasses.replace(ensemble, teachers=ensemble.teachers[::-1])
    with pytest.raises(InvalidValueError, match="in this order"):
        Residue.of(release, turned, Queries.of(arrays))


def test_false_alarms():
    """At a rate of 5 %, each check fails in at most that many of 2,000 releases that are right.

    Bonferroni is on the safe side, hardly so for what is independent: at least 1 % of them fail,
    but for tails, of which so few values have none. The test itself is wrong once in 1e5 (binomial,
    4.3 standard errors).
    """
    rng = np.random.default_rng(0)
    runs, rate = 2000, 0.05
    failed = dict.fromkeys((WIDTH, MEAN, TAILS, ROWS, CHANNELS, STATISTICS), 0)
    for _ in range(runs):
        noise = rng.standard_normal((6, 4, 9))
        statistics = {name: rng.standard_normal(8) for name in ("caps", "importance")}
        drawn = Residue(tuple("abcdef"), ("1", "2", "3", "4"), noise, statistics)
        for check in drawn.checks(rate):
            failed[check.what] += check.passed is False
    slack = 4.3 * math.sqrt(rate * (1 - rate) / runs)
    for what, count in failed.items():
        assert 0.01 * (what != TAILS) <= count / runs < rate + slack, what


@pytest.fixture(scope="module")
def plenty():
    """So much noise that values beyond 4.5 deviations must be among it."""
    return np.random.default_rng(1).standard_normal((100, 40, 1000))


def residue(noise):
    rows, blocks, _ = noise.shape
    return Residue(tuple(map(str, range(rows))), tuple(map(str, range(blocks))), noise)


def test_tails_are_as_they_should_be(plenty):
    tails = residue(plenty)._tail(1e-9)
    assert tails.passed
    assert tails.detail.endswith("a cut at 3.5, 4, 4.5 deviations would have been found")


@pytest.mark.parametrize("cut", [3.5, 4.0, 4.5])
def test_noise_that_is_cut_off_far_out(plenty, cut):
    """Nothing else shows it: of ten thousand values one is missing, or fewer."""
    checks = residue(np.clip(plenty, -cut, cut)).checks()
    assert [check.what for check in checks if check.passed is False] == [TAILS]


def test_a_query_with_less_noise(release, arrays, look, tamper):
    def quieter(noise):
        return noise * np.where(np.arange(len(noise)) == 7, 0.5, 1.0)[:, None, None]

    failed, _ = look(tamper(release, arrays, quieter))
    assert set(failed) == {WIDTH}
    assert failed[WIDTH].endswith(f"in {release.ids[7]}")


def test_statistics_that_share_their_noise(make_release, look, monkeypatch):
    from canal.release.mechanism import Noise

    real = Noise.of_statistic
    monkeypatch.setattr(Noise, "of_statistic", lambda self, name: real(self, "caps"))
    failed, _ = look(make_release("paper", seed=4))
    assert set(failed) == {STATISTICS}
