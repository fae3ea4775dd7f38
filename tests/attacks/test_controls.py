"""Negative controls: mistakes that are put into the real path of either kind, each found.

Secrets are fixed. An alarm has a false-alarm rate of 1e-6 a bound, a check that which it states;
where nothing is wrong, nothing is found.
"""

import hashlib
import random
import threading

import numpy as np
import pytest
import torch

from canal.attacks.audit import judge
from canal.attacks.game import Game
from canal.attacks.traces import (
    distances,
    find_seed,
    noise_is_wide,
    own_noise,
    repeated_secrets,
    unrelated,
    whole_numbers,
)
from canal.features import mechanism as features_module
from canal.features.mechanism import FeatureMechanism
from canal.gradients import mechanism as rounds_module
from canal.gradients.clip import Clip
from canal.gradients.mechanism import COUNT, PatientSum
from canal.privacy import Lattice, Secret
from canal.privacy import lattice as lattice_module
from canal.privacy.ziggurat import standard_normal
from canal.release import noisy_sum as noisy_sum_module
from canal.release.noisy_sum import NoisySum

PRIVATE = {"caps_source": "private", "importance_source": "private"}
SECURE = {"trust": "secure-sum", "count": 0.1}
FEATURES, ROUNDS = "features", "rounds"
UNITS = {FEATURES: ("patient", "image"), ROUNDS: ("membership", "patient")}
EVERYBODY = [(kind, unit) for kind, units in UNITS.items() for unit in units]
DIFFERENT, OWN = "noise of different values", "noise of its own"


@pytest.fixture
def make(make_features, make_rounds):
    """The worst case of a kind; of features, three teachers, four queries, private statistics."""

    def make(kind, **choices):
        return make_features(**(PRIVATE | choices)) if kind == FEATURES else make_rounds(**choices)

    return make


@pytest.fixture
def look(secrets, tmp_path):
    """What the audit finds at fault: refuted claims and failed checks."""

    def look(worst, unit="patient", draws=5000):
        game = Game(worst, unit, worst.rows_of(unit, worst.rows))
        played = game.play(draws, secrets(f"control of {unit}"), tmp_path)
        found = {outcome.what for outcome in judge(game, played) if outcome.refuted}
        checks = {
            f"distance of a {unit}": distances(game),
            "width": noise_is_wide(played, "width"),
            DIFFERENT: unrelated(played.sample),
            OWN: own_noise(game, secrets("rows")),
            "whole numbers": whole_numbers(game, secrets("whole")),
        }
        return found | {what for what, check in checks.items() if check.passed is False}

    return look


def draw_noise_by(monkeypatch, function):
    """Have all noise, whole or in shares, drawn by another function."""
    for module in (lattice_module, noisy_sum_module):
        monkeypatch.setattr(module, "rounded_gaussian", function)


@pytest.mark.parametrize(("kind", "unit"), EVERYBODY)
def test_nothing_is_found_where_nothing_is_wrong(make, look, kind, unit):
    assert look(make(kind), unit) == set()


@pytest.mark.parametrize("unit", UNITS[ROUNDS])
@pytest.mark.parametrize("choices", [{"allocation": "channels", "count": 0.1}, SECURE])
def test_nothing_is_found_in_other_rounds_where_nothing_is_wrong(make, look, choices, unit):
    assert look(make(ROUNDS, **choices), unit) == set()


@pytest.mark.parametrize("trust", ["trusted", "secure-sum"])
@pytest.mark.parametrize(("kind", "unit"), EVERYBODY)
def test_sigma_halved(make, look, monkeypatch, kind, unit, trust):
    worst = make(kind, trust=trust, **({"count": 0.1} if kind == ROUNDS else {}))
    real = lattice_module.rounded_gaussian
    draw_noise_by(monkeypatch, lambda std, shape, stream: real(np.asarray(std) / 2, shape, stream))
    parts = {FEATURES: [FEATURES, "caps", "importance"], ROUNDS: [ROUNDS, "count"]}[kind]
    if (kind, unit) == (ROUNDS, "patient"):  # who is replaced is counted as before
        parts = [ROUNDS]
    assert look(worst, unit) == {", ".join(parts), *parts, "width"}


@pytest.mark.parametrize("kind", UNITS)
def test_sigma_a_tenth_less_in_one_channel(make, look, monkeypatch, kind):
    """Too little to show in a game about all channels; the width of its noise shows it."""
    real = NoisySum.perturb

    def quieter(self, total, stream):
        noise = real(self, np.zeros_like(total), stream)
        if self.name == kind:
            noise[-1] = np.rint(0.9 * noise[-1])
        return noise + total

    monkeypatch.setattr(NoisySum, "perturb", quieter)
    choices = {"allocation": "channels"} if kind == ROUNDS else {}
    assert look(make(kind, **choices), UNITS[kind][0]) == {"width"}


def test_channels_that_are_not_clamped(make, look, monkeypatch):
    """They are priced as √2 apart, and are 2 apart where values below zero are kept."""
    real = features_module.clip

    def kept(blocks, caps, lattice, *, nonnegative):
        assert nonnegative
        return real(blocks, caps, lattice, nonnegative=False)

    monkeypatch.setattr(features_module, "clip", kept)
    assert {FEATURES, "distance of a patient"} <= look(make(FEATURES))


@pytest.mark.parametrize("every", [1, 16])
def test_noise_used_again_for_another_image(make, look, monkeypatch, every):
    """For all images; or for those of the same row of a batch, which are not neighbours."""
    real = Secret.key

    def forgetful(self, *context):
        if context[0] != b"features":
            return real(self, *context)
        row = int(context[-2].rpartition(b"-")[2]) % every
        return real(self, *context[:-2], b"%d" % row)

    monkeypatch.setattr(Secret, "key", forgetful)
    found = look(make(FEATURES, people=(3, 24)))
    assert {OWN, DIFFERENT} <= found
    # The second query is answered the other way round, so that noise cancels.
    assert (FEATURES in found) is (every == 1)


@pytest.mark.parametrize("every", [1, 2])
def test_noise_used_again_in_another_round(make, look, monkeypatch, every):
    """In all of them, where the opposite cancels it; or in every second one only."""
    real = rounds_module.stream_of_round
    monkeypatch.setattr(
        rounds_module,
        "stream_of_round",
        lambda noise, number, published: real(noise, number % every, b""),
    )
    found = look(make(ROUNDS))
    assert {OWN, DIFFERENT} <= found
    assert (ROUNDS in found) is (every == 1)


@pytest.mark.parametrize("kind", UNITS)
def test_noise_used_again_for_another_value(make, look, monkeypatch, kind):
    """Their difference would be free of it; the game does not see that, the correlation does."""
    real = lattice_module.rounded_gaussian

    def repeating(std, shape, stream):
        one = real(std[:1], (1, *shape[1:]), stream)
        return np.rint(one * (std / std.ravel()[0])).astype(np.int64)

    draw_noise_by(monkeypatch, repeating)
    assert DIFFERENT in look(make(kind))


def test_noise_of_one_statistic_used_again_in_the_other(make, look, monkeypatch):
    real = Secret.key

    def forgetful(self, purpose, *context):
        return real(self, purpose, *(context[:-1] if purpose == b"statistic" else context))

    monkeypatch.setattr(Secret, "key", forgetful)
    assert look(make(FEATURES)) == {DIFFERENT}


@pytest.mark.parametrize("unit", UNITS[FEATURES])
def test_a_channel_that_is_not_clipped(make, look, monkeypatch, unit):
    real = features_module.clip

    def careless(blocks, caps, lattice, **more):
        clipped = real(blocks, caps, lattice, **more)
        raw = np.clip(np.asarray(blocks)[:, :1] / np.asarray(caps)[0], -5, 5)
        clipped.integers[:, :1] = lattice.truncate(raw)
        return clipped

    monkeypatch.setattr(features_module, "clip", careless)
    assert {FEATURES, f"distance of a {unit}"} <= look(make(FEATURES), unit)


@pytest.mark.parametrize("unit", UNITS[ROUNDS])
@pytest.mark.parametrize("choices", [{}, {"allocation": "channels"}, {"directions": 6}, SECURE])
def test_a_clip_that_lets_twice_the_bound_through(make, look, monkeypatch, choices, unit):
    real = Clip.apply
    monkeypatch.setattr(
        Clip, "apply", lambda self, gradients, lattice: 2 * real(self, gradients, lattice)
    )
    assert {ROUNDS, f"distance of a {unit}"} <= look(make(ROUNDS, **choices), unit)


def test_a_clip_of_every_coordinate_alone(make, look, monkeypatch):
    """The length of a narrow canary is right; that of a wide one is not."""

    def careless(self, gradients, lattice):
        ready = gradients.nan_to_num() * torch.from_numpy(1 / self.unit)
        return (ready.clamp(-1, 1) / lattice.step).trunc().long()

    monkeypatch.setattr(Clip, "apply", careless)
    assert look(make(ROUNDS), "membership") == {ROUNDS, "distance of a membership"}


def test_a_clip_whose_norm_is_a_little_short(make, look, monkeypatch):
    """A thousandth more than the bound is no matter for a game of so few draws."""
    real = Clip.apply
    monkeypatch.setattr(
        Clip,
        "apply",
        lambda self, gradients, lattice: (real(self, gradients, lattice) * 1.001).long(),
    )
    assert look(make(ROUNDS), "membership") == {"distance of a membership"}


@pytest.mark.parametrize(
    ("kind", "unit", "leaked"),
    [
        *((FEATURES, unit, name) for unit in UNITS[FEATURES] for name in ("caps", "importance")),
        (ROUNDS, "membership", COUNT),
    ],
)
def test_what_is_published_once_in_the_clear(make, look, monkeypatch, kind, unit, leaked):
    real = NoisySum.perturb

    def careless(self, total, stream):
        return np.asarray(total) if self.name == leaked else real(self, total, stream)

    monkeypatch.setattr(NoisySum, "perturb", careless)
    choices = {"count": 0.02} if kind == ROUNDS else {}
    assert {leaked, "width"} <= look(make(kind, **choices), unit)


@pytest.mark.parametrize("unit", UNITS[ROUNDS])
def test_one_share_missing(make, look, monkeypatch, unit):
    """Of every three that are sent in one round, the last is without noise."""
    real, turns = NoisySum.share, threading.local()

    def forgetful(self, part, stream):
        turns.count = getattr(turns, "count", 0) + 1
        return np.array(part) if turns.count % 3 == 0 else real(self, part, stream)

    monkeypatch.setattr(NoisySum, "share", forgetful)
    assert {ROUNDS, "width"} <= look(make(ROUNDS, trust="secure-sum"), unit)


@pytest.mark.parametrize("favourite", [0, 2])
@pytest.mark.parametrize("unit", UNITS[FEATURES])
def test_one_teacher_with_twice_the_weight(make, look, monkeypatch, favourite, unit):
    """Whichever it is: each is tried as the one that changes."""
    real = FeatureMechanism.contribute

    def unfair(self, step, site, published):
        times = 2 if site.cohort == f"site-{favourite}" else 1
        return {name: times * part for name, part in real(self, step, site, published).items()}

    monkeypatch.setattr(FeatureMechanism, "contribute", unfair)
    worst = make(FEATURES)
    assert {FEATURES, "caps", f"distance of a {unit}"} <= look(worst, unit)
    if unit == "patient":
        assert f"by teacher {favourite}" in distances(Game(worst, unit, 1)).detail


@pytest.mark.parametrize("favourite", [0, 2])
def test_one_teacher_counted_twice_in_the_statistics(make, look, monkeypatch, favourite):
    real = features_module.sum_up

    def unfair(calibrated, names, queries, networks, **more):
        sums = real(calibrated, names, queries, networks, **more)
        for total in sums:
            total.total *= 2 if networks[0][0] == f"site-{favourite}" else 1
        return sums

    monkeypatch.setattr(features_module, "sum_up", unfair)
    assert {"caps", "importance", "distance of a patient"} <= look(make(FEATURES))


def test_a_patient_who_is_counted_twice(make, look, monkeypatch):
    real = PatientSum.count
    monkeypatch.setattr(PatientSum, "count", lambda self, patients: 2 * real(self, patients))
    assert {"count", "distance of a membership"} <= look(make(ROUNDS, count=0.1), "membership")


@pytest.mark.parametrize("kind", UNITS)
def test_float_noise(make, secrets, monkeypatch, kind):
    """Mironov's: a float sum of data and noise, which storage would hide from the game."""

    def floating(self, total, sigma, stream, **more):
        noise = standard_normal(stream, np.size(total)).values.reshape(np.shape(total))
        return total + np.asarray(sigma) / self.step * noise

    monkeypatch.setattr(Lattice, "perturb", floating)
    found = whole_numbers(Game(make(kind), "patient", 1), secrets("whole"))
    assert found.passed is False
    assert "float64, not integers" in found.detail


@pytest.mark.parametrize(
    ("kind", "unit", "name"), [(FEATURES, "patient", "caps"), (ROUNDS, "membership", COUNT)]
)
def test_float_noise_on_a_small_part_only(make, look, monkeypatch, kind, unit, name):
    real = NoisySum.perturb

    def floating(self, total, stream):
        if self.name != name:
            return real(self, total, stream)
        noise = standard_normal(stream, np.size(total)).values.reshape(np.shape(total))
        return total + np.max(self.std) / self.lattice.step * noise

    monkeypatch.setattr(NoisySum, "perturb", floating)
    choices = {"count": 0.1} if kind == ROUNDS else {}
    assert look(make(kind, **choices), unit) == {"whole numbers"}


@pytest.mark.parametrize("kind", UNITS)
def test_noise_that_looks_at_the_data(make, look, monkeypatch, kind):
    real = NoisySum.perturb

    def curious(self, total, stream):
        return real(self, total, stream) + np.asarray(total) % 2

    monkeypatch.setattr(NoisySum, "perturb", curious)
    assert look(make(kind)) == {"whole numbers"}


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


@pytest.mark.parametrize(("kind", "choices"), [(FEATURES, {}), (ROUNDS, {}), (ROUNDS, SECURE)])
def test_a_poor_secret_is_found_by_enumeration(make, tmp_path, monkeypatch, kind, choices):
    """`Secret.create` whose bytes come of a number of eight bits, so that the search is short."""
    from canal.privacy import randomness

    def poor(count):
        return hashlib.sha256(b"canal research seed %d" % 157).digest()[:count]

    game = Game(make(kind, **choices), "patient", 1)
    assert find_seed(game, Secret.create(tmp_path / "rich"), seeds=256) is None
    monkeypatch.setattr(randomness.secrets, "token_bytes", poor)
    assert find_seed(game, Secret.create(tmp_path / "poor"), seeds=256) == 157


@pytest.mark.slow
def test_a_secret_of_sixteen_bits_is_found_by_enumeration(make, tmp_path):
    """All 65,536 are tried; the secret of the real code is not among them."""
    game = Game(make(FEATURES), "patient", 1)
    assert find_seed(game, Secret.create(tmp_path / "secret")) is None
    tried = []
    poor = Secret(Secret.seeded(54_321).value, private=True)
    assert find_seed(game, poor, progress=tried.append) == 54_321
    assert sum(tried) == 54_321
