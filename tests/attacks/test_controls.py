"""Negative controls: seven mistakes and some more, each put into the real path, each found.

Secrets are fixed. An alarm has a false-alarm rate of 1e-6 a bound, a check that which it states;
where nothing is wrong, nothing is found.
"""

import hashlib
import random

import numpy as np
import pytest

from canal.attacks.auditor import judge
from canal.attacks.feature_game import FeatureGame
from canal.attacks.feature_rows import play_rows
from canal.attacks.traces import (
    distances,
    find_seed,
    noise_is_wide,
    own_noise,
    repeated_secrets,
    unrelated,
    whole_numbers,
)
from canal.attacks.verdict import Outcome
from canal.features import mechanism as mechanism_module
from canal.features.mechanism import FeatureMechanism
from canal.privacy import Lattice, Secret
from canal.privacy.ziggurat import standard_normal
from canal.release.noisy_sum import NoisySum

PRIVATE = {"caps_source": "private", "importance_source": "private"}
UNITS = ("patient", "image")
FEATURES = "features"


@pytest.fixture
def mechanism(make_mechanism):
    """Of three teachers and four queries; caps and importance have noise as well."""
    return make_mechanism(**PRIVATE)


@pytest.fixture
def look(secrets, tmp_path):
    """What the audit finds at fault: refuted claims and failed checks."""

    def look(mechanism, unit, draws=5000):
        game = FeatureGame(mechanism, unit, 4 if unit == "patient" else 1)
        played = game.play(draws, secrets(f"control of {unit}"), tmp_path)
        found = {outcome.what for outcome in judge(game, played) if outcome.refuted}
        checks = (
            distances(game),
            noise_is_wide(played, "width"),
            whole_numbers(game, secrets("whole")),
        )
        return found | {check.what for check in checks if not check.passed}

    return look


@pytest.fixture
def look_at_rows(secrets, tmp_path):
    """The same of rows that the aggregator makes: the game on pairs, and repeated noise."""

    def look(mechanism, pairs=1000):
        game = FeatureGame(mechanism, "patient", 2)
        scores, stored = play_rows(game, pairs, (secrets("one"), secrets("two")), tmp_path)
        outcome = Outcome.of(game, scores, game.claimed[FEATURES], what="rows")
        return (
            outcome,
            own_noise(mechanism, stored),
            unrelated([rows.reshape(len(rows) // 2, -1) for rows in stored]),
        )

    return look


@pytest.mark.parametrize("unit", UNITS)
def test_nothing_is_found_where_nothing_is_wrong(mechanism, look, unit):
    assert look(mechanism, unit) == set()


def test_nothing_is_found_in_rows_where_nothing_is_wrong(mechanism, look_at_rows):
    outcome, own, apart = look_at_rows(mechanism)
    assert not outcome.refuted
    assert own.passed
    assert apart.passed
    assert own.false_alarm < 1e-9


@pytest.mark.parametrize("unit", UNITS)
def test_sigma_halved(mechanism, look, monkeypatch, unit):
    real = Lattice.perturb

    def quieter(self, total, sigma, stream, **more):
        return real(self, total, np.asarray(sigma) / 2, stream, **more)

    monkeypatch.setattr(Lattice, "perturb", quieter)
    joint = "features, caps, importance"
    assert look(mechanism, unit) == {joint, FEATURES, "caps", "importance", "width"}


def test_sigma_a_tenth_less_in_one_channel(mechanism, look, monkeypatch):
    """Too little to show in a game about all channels; the width of its noise shows it."""
    real = Lattice.perturb

    def quieter(self, total, sigma, stream, **more):
        sigma = np.array(sigma)
        if sigma.ndim:
            sigma[-1] *= 0.9
        return real(self, total, sigma, stream, **more)

    monkeypatch.setattr(Lattice, "perturb", quieter)
    assert look(mechanism, "patient") == {"width"}


def test_channels_that_are_not_clamped(make_mechanism, look, monkeypatch):
    """They are priced as √2 apart, and are 2 apart where values below zero are kept."""
    real = mechanism_module.clip

    def kept(blocks, caps, lattice, *, nonnegative):
        assert nonnegative
        return real(blocks, caps, lattice, nonnegative=False)

    monkeypatch.setattr(mechanism_module, "clip", kept)
    found = look(make_mechanism(), "patient")
    assert {FEATURES, "distance of a patient"} <= found


@pytest.mark.parametrize("every", [1, 16])
def test_noise_used_again_for_another_image(mechanism, look_at_rows, monkeypatch, every):
    """For all images; or for those of the same row of a batch, which are not neighbours."""
    real = Secret.key

    def forgetful(self, *context):
        if context[0] != b"features":
            return real(self, *context)
        row = int(context[-2].rpartition(b"-")[2]) % every
        return real(self, *context[:-2], b"%d" % row)

    monkeypatch.setattr(Secret, "key", forgetful)
    outcome, own, apart = look_at_rows(mechanism)
    assert own.passed is False
    assert apart.passed is False or every > 1
    assert "repeat another's noise" in own.detail
    if every == 1:
        assert outcome.refuted
        assert outcome.gaussian_mu > 100 * outcome.claimed_mu


def test_noise_used_again_for_another_channel(mechanism, look_at_rows, monkeypatch):
    """Their ratio would be free of it. The game does not see that, the correlation does."""
    real = Lattice.perturb

    def lazy(self, total, sigma, stream, **more):
        noise = real(self, 0 * total, sigma, stream, **more)
        scale = np.ravel(sigma)
        noise[1] = np.rint(noise[0] * (scale[1] / scale[0]))
        return noise + total

    monkeypatch.setattr(Lattice, "perturb", lazy)
    assert look_at_rows(mechanism)[2].passed is False


@pytest.mark.parametrize("unit", UNITS)
def test_a_channel_that_is_not_clipped(mechanism, look, monkeypatch, unit):
    real = mechanism_module.clip

    def careless(blocks, caps, lattice, **more):
        clipped = real(blocks, caps, lattice, **more)
        raw = np.clip(np.asarray(blocks)[:, :1] / np.asarray(caps)[0], -5, 5)
        clipped.integers[:, :1] = lattice.truncate(raw)
        return clipped

    monkeypatch.setattr(mechanism_module, "clip", careless)
    found = look(mechanism, unit)
    assert FEATURES in found
    assert any(what.startswith("distance") for what in found)


@pytest.mark.parametrize("leaked", ["caps", "importance"])
@pytest.mark.parametrize("unit", UNITS)
def test_a_statistic_leaked_in_the_clear(mechanism, look, monkeypatch, leaked, unit):
    real = NoisySum.perturb

    def open_hearted(self, total, stream):
        return np.asarray(total) if self.name == leaked else real(self, total, stream)

    monkeypatch.setattr(NoisySum, "perturb", open_hearted)
    assert {leaked, "width"} <= look(mechanism, unit)


def test_a_generator_of_few_bits_has_birthdays(tmp_path, monkeypatch):
    """Not our research seeds: any generator, here Python's own from 16 bits."""
    for name in ("fine", "weak"):
        (tmp_path / name).mkdir()
    assert repeated_secrets(tmp_path / "fine") == 0
    few = random.Random(3)
    monkeypatch.setattr(
        "canal.privacy.randomness.secrets.token_bytes",
        lambda count: random.Random(few.getrandbits(16)).randbytes(count),
    )
    assert repeated_secrets(tmp_path / "weak") > 0


def test_float_noise(mechanism, secrets, monkeypatch):
    """Mironov's: a float sum of data and noise, which 16 bits would hide from the game."""

    def floating(self, total, sigma, stream, **more):
        noise = standard_normal(stream, np.size(total)).values.reshape(np.shape(total))
        return total + np.asarray(sigma) / self.step * noise

    monkeypatch.setattr(Lattice, "perturb", floating)
    found = whole_numbers(FeatureGame(mechanism, "patient", 1), secrets("whole"))
    assert found.passed is False
    assert "float64, not integers" in found.detail


def test_float_noise_on_a_statistic_only(mechanism, look, monkeypatch):
    real = NoisySum.perturb

    def floating(self, total, stream):
        if self.name == FEATURES:
            return real(self, total, stream)
        noise = standard_normal(stream, np.size(total)).values.reshape(np.shape(total))
        return total + self.std / self.lattice.step * noise

    monkeypatch.setattr(NoisySum, "perturb", floating)
    assert look(mechanism, "patient") == {"whole numbers"}


def test_noise_that_looks_at_the_data(mechanism, look, monkeypatch):
    real = Lattice.perturb

    def curious(self, total, sigma, stream, **more):
        return real(self, total, sigma, stream, **more) + np.asarray(total) % 2

    monkeypatch.setattr(Lattice, "perturb", curious)
    assert look(mechanism, "patient") == {"whole numbers"}


def test_a_poor_secret_is_found_by_enumeration(mechanism, tmp_path, monkeypatch):
    """`Secret.create` whose bytes come of a number of ten bits, so that the search is short."""
    from canal.privacy import randomness

    def poor(count):
        return hashlib.sha256(b"canal research seed %d" % 517).digest()[:count]

    assert (
        find_seed(
            FeatureGame(mechanism, "patient", 1), Secret.create(tmp_path / "rich"), seeds=1024
        )
        is None
    )
    monkeypatch.setattr(randomness.secrets, "token_bytes", poor)
    assert (
        find_seed(
            FeatureGame(mechanism, "patient", 1), Secret.create(tmp_path / "poor"), seeds=1024
        )
        == 517
    )


@pytest.mark.slow
def test_a_secret_of_sixteen_bits_is_found_by_enumeration(mechanism, tmp_path):
    """All 65,536 are tried; the secret of the real code is not among them."""
    assert (
        find_seed(FeatureGame(mechanism, "patient", 1), Secret.create(tmp_path / "secret")) is None
    )
    tried = []
    poor = Secret(Secret.seeded(54_321).value, private=True)
    assert find_seed(FeatureGame(mechanism, "patient", 1), poor, progress=tried.append) == 54_321
    assert sum(tried) == 54_321


@pytest.mark.parametrize("favourite", [0, 2])
@pytest.mark.parametrize("unit", UNITS)
def test_one_teacher_with_twice_the_weight(
    make_mechanism, look, look_at_rows, monkeypatch, favourite, unit
):
    """Whichever it is: each is tried as the one that changes."""
    real = FeatureMechanism.contribute

    def unfair(self, step, site, published):
        times = 2 if site.cohort == f"site-{favourite}" else 1
        return {name: times * part for name, part in real(self, step, site, published).items()}

    monkeypatch.setattr(FeatureMechanism, "contribute", unfair)
    mechanism = make_mechanism()
    found = look(mechanism, unit)
    assert FEATURES in found
    assert any(what.startswith("distance") for what in found)
    if unit == "patient":
        assert FeatureGame(mechanism, unit, 1).worst[0] == favourite
        assert look_at_rows(mechanism)[0].refuted


@pytest.mark.parametrize("favourite", [0, 2])
def test_one_teacher_counted_twice_in_the_statistics(mechanism, look, monkeypatch, favourite):
    real = mechanism_module.sum_up

    def unfair(calibrated, names, queries, networks, **more):
        sums = real(calibrated, names, queries, networks, **more)
        for total in sums:
            total.total *= 2 if networks[0][0] == f"site-{favourite}" else 1
        return sums

    monkeypatch.setattr(mechanism_module, "sum_up", unfair)
    assert {"caps", "importance", "distance of a patient"} <= look(mechanism, "patient")


def test_rows_that_hold_too_little_to_be_compared(make_mechanism):
    small = make_mechanism(channels=1, released=1, grid=(1, 1))
    rows = np.zeros((4000, 1, 1))
    assert own_noise(small, (rows, rows)).passed is None
