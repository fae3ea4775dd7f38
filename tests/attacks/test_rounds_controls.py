"""Negative controls for rounds: mistakes that are put into the real path, each found.

Secrets are fixed. An alarm has a false-alarm rate of 1e-6 a bound, a check that which it states;
where nothing is wrong, nothing is found.
"""

import threading

import numpy as np
import pytest

from canal.attacks import rounds_game
from canal.attacks.auditor import judge
from canal.attacks.rounds_game import RoundsGame
from canal.attacks.traces import distances, find_seed, noise_is_wide, unrelated, whole_numbers
from canal.gradients.clip import Clip
from canal.gradients.mechanism import COUNT, PatientSum
from canal.privacy import Secret
from canal.privacy import lattice as lattice_module
from canal.privacy.ziggurat import standard_normal
from canal.release import noisy_sum as noisy_sum_module
from canal.release.noisy_sum import NoisySum

UNITS = ("membership", "patient")
SECURE = {"trust": "secure-sum", "count": 0.1}


@pytest.fixture
def look(secrets, tmp_path):
    """What the audit finds at fault: refuted claims and failed checks."""

    def look(mechanism, unit="membership", draws=5000):
        game = RoundsGame(mechanism, unit, mechanism.calibrated.plan.rounds)
        played = game.play(draws, secrets(f"control of {unit}"), tmp_path)
        found = {outcome.what for outcome in judge(game, played) if outcome.refuted}
        checks = (
            distances(game),
            noise_is_wide(played, "width"),
            unrelated(played.sample),
            whole_numbers(game, secrets("whole")),
        )
        return found | {check.what for check in checks if not check.passed}

    return look


def draw_noise_by(monkeypatch, function):
    """Have all noise, whole or in shares, drawn by another function."""
    for module in (lattice_module, noisy_sum_module):
        monkeypatch.setattr(module, "rounded_gaussian", function)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("choices", [{}, {"allocation": "channels", "count": 0.1}, SECURE])
def test_nothing_is_found_where_nothing_is_wrong(make_rounds, look, choices, unit):
    assert look(make_rounds(**choices), unit) == set()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("trust", ["trusted", "secure-sum"])
def test_sigma_halved(make_rounds, look, monkeypatch, unit, trust):
    mechanism = make_rounds(trust=trust, count=0.1)
    real = lattice_module.rounded_gaussian
    draw_noise_by(
        monkeypatch,
        lambda std, shape, stream: real(np.asarray(std) / 2, shape, stream),
    )
    parts = {"rounds, count", "rounds", "count"} if unit == "membership" else {"rounds"}
    assert look(mechanism, unit) == parts | {"width"}


def test_sigma_a_tenth_less_in_one_channel(make_rounds, look, monkeypatch):
    """Too little to show in a game about all channels; the width of its noise shows it."""
    real = NoisySum.perturb

    def quieter(self, total, stream):
        noise = real(self, np.zeros_like(total), stream)
        noise[-1] = np.rint(0.9 * noise[-1])
        return noise + total

    monkeypatch.setattr(NoisySum, "perturb", quieter)
    assert look(make_rounds("channels")) == {"width"}


@pytest.mark.parametrize("every", [1, 2])
def test_noise_used_again_in_another_round(make_rounds, look, monkeypatch, every):
    """In all of them, where the opposite cancels it; or in every second one only."""
    real = rounds_game.stream_of_round
    monkeypatch.setattr(
        rounds_game,
        "stream_of_round",
        lambda noise, number, published: real(noise, number % every, b""),
    )
    found = look(make_rounds())
    assert "noise of different values" in found
    assert ("rounds" in found) is (every == 1)


def test_noise_used_again_for_another_parameter(make_rounds, look, monkeypatch):
    """Their difference would be free of it; a canary in one of them does not show that."""
    real = lattice_module.rounded_gaussian

    def repeating(std, shape, stream):
        return np.broadcast_to(real(std[:1], (1, *shape[1:]), stream), shape).copy()

    draw_noise_by(monkeypatch, repeating)
    assert look(make_rounds()) == {"noise of different values"}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("choices", [{}, {"allocation": "channels"}, {"directions": 6}, SECURE])
def test_a_clip_that_lets_twice_the_bound_through(make_rounds, look, monkeypatch, choices, unit):
    real = Clip.apply
    monkeypatch.setattr(
        Clip, "apply", lambda self, gradients, lattice: 2 * real(self, gradients, lattice)
    )
    found = look(make_rounds(**choices), unit)
    assert {"rounds", f"distance of a {unit}"} <= found


def test_a_clip_of_every_coordinate_alone(make_rounds, look, monkeypatch):
    """The length of a narrow canary is right; that of a wide one is not."""
    import torch

    def careless(self, gradients, lattice):
        ready = gradients.nan_to_num() * torch.from_numpy(1 / self.unit)
        return (ready.clamp(-1, 1) / lattice.step).trunc().long()

    monkeypatch.setattr(Clip, "apply", careless)
    assert look(make_rounds()) == {"rounds", "distance of a membership"}


def test_a_clip_whose_norm_is_a_little_short(make_rounds, look, monkeypatch):
    """A thousandth more than the bound is no matter for a game of so few draws."""
    real = Clip.apply
    monkeypatch.setattr(
        Clip,
        "apply",
        lambda self, gradients, lattice: (real(self, gradients, lattice) * 1.001).long(),
    )
    assert look(make_rounds()) == {"distance of a membership"}


@pytest.mark.parametrize("unit", UNITS)
def test_one_share_missing(make_rounds, look, monkeypatch, unit):
    """Of every three that are sent in one round, the last is without noise."""
    real, turns = NoisySum.share, threading.local()

    def forgetful(self, part, stream):
        turns.count = getattr(turns, "count", 0) + 1
        return np.array(part) if turns.count % 3 == 0 else real(self, part, stream)

    monkeypatch.setattr(NoisySum, "share", forgetful)
    assert {"rounds", "width"} <= look(make_rounds(trust="secure-sum"), unit)


def test_a_count_in_the_clear(make_rounds, look, monkeypatch):
    real = NoisySum.perturb

    def careless(self, total, stream):
        return np.asarray(total) if self.name == COUNT else real(self, total, stream)

    monkeypatch.setattr(NoisySum, "perturb", careless)
    assert {"count", "width"} <= look(make_rounds(count=0.02))


def test_a_patient_who_is_counted_twice(make_rounds, look, monkeypatch):
    real = PatientSum.count
    monkeypatch.setattr(PatientSum, "count", lambda self, patients: 2 * real(self, patients))
    assert {"count", "distance of a membership"} <= look(make_rounds(count=0.1))


def test_float_noise(make_rounds, look, monkeypatch):
    """Mironov's: a float sum of data and noise, which 32 bits would hide from the game."""

    def floating(self, total, sigma, stream, **more):
        noise = standard_normal(stream, np.size(total)).values.reshape(np.shape(total))
        return total + np.asarray(sigma) / self.step * noise

    monkeypatch.setattr(lattice_module.Lattice, "perturb", floating)
    assert look(make_rounds()) == {"whole numbers"}


def test_noise_that_looks_at_the_data(make_rounds, look, monkeypatch):
    real = NoisySum.perturb

    def curious(self, total, stream):
        return real(self, total, stream) + np.asarray(total) % 2

    monkeypatch.setattr(NoisySum, "perturb", curious)
    assert look(make_rounds()) == {"whole numbers"}


@pytest.mark.parametrize("choices", [{}, SECURE])
def test_a_poor_secret_is_found_by_enumeration(make_rounds, secrets, choices):
    game = RoundsGame(make_rounds(**choices), "membership", 4)
    assert find_seed(game, secrets("rich"), seeds=100) is None
    assert find_seed(game, Secret(Secret.seeded(57).value, private=True), seeds=100) == 57
