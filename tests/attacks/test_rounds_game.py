"""The game of rounds on the release's own code: what is claimed is reached, and not exceeded.

Statistical tests have fixed secrets; a bound of 95 % is above the claim in one of twenty, an alarm
in one of a million.
"""

import hashlib
import math

import numpy as np
import pytest
import torch

from canal.attacks.auditor import judge
from canal.attacks.crowd import Pair, canaries
from canal.attacks.rounds_game import RoundsGame
from canal.attacks.traces import distances
from canal.gradients.mechanism import PatientSum, stream_of_round
from canal.privacy import Secret
from canal.release.mechanism import Noise

UNITS = ("membership", "patient")
KINDS = {
    "flat": {},
    "ellipsoid": {"allocation": "ellipsoid"},
    "channels": {"allocation": "channels"},
    "basis": {"directions": 6},
    "basis, channels": {"allocation": "channels", "directions": 6},
    "count": {"count": 0.1},
    "secure sum": {"trust": "secure-sum", "colluding": 1, "count": 0.1},
    "one patient": {"patients": 1, "sites": 1, "rounds": 1},
    "replaced": {"relation": "replace"},
}


@pytest.fixture(params=KINDS)
def mechanism(request, make_rounds):
    return make_rounds(**KINDS[request.param])


def whole(mechanism, unit):
    return RoundsGame(mechanism, unit, mechanism.calibrated.plan.rounds)


def distance(game):
    """How far apart the worlds are before noise, in standard deviations."""
    steps = game.mechanism.sigma / game.mechanism.calibrated.lattice.step
    total = sum(np.square(game.worst.apart[n % 2] / steps).sum() for n in range(game.rounds))
    if game.counted:
        total += 1 / game.mechanism.calibrated.count_sigma**2
    return math.sqrt(total)


@pytest.mark.parametrize("unit", UNITS)
def test_neighbours_are_as_far_apart_as_the_accounting_says(mechanism, unit):
    """Before noise, exactly; no draw is needed for this. A step of the lattice may be lost."""
    game = whole(mechanism, unit)
    assert distance(game) <= game.claimed_mu * (1 + 1e-12)
    assert distance(game) == pytest.approx(game.claimed_mu, rel=1e-3)
    stated = mechanism.calibrated.guarantee.mu(unit)
    assert game.claimed_mu <= stated
    # Whoever is replaced by the opposite is counted as before.
    if unit == "membership" or not mechanism.calibrated.plan.count:
        assert game.claimed_mu == pytest.approx(stated, rel=1e-9)
    assert distances(game).passed


@pytest.mark.parametrize("unit", UNITS)
def test_the_claim_holds_and_is_reached(mechanism, secrets, tmp_path, unit):
    game = whole(mechanism, unit)
    outcomes = judge(game, game.play(10_000, secrets(unit), tmp_path))
    for outcome in outcomes:
        assert not outcome.refuted
        assert outcome.normality > 1e-6
    assert 0.85 * game.claimed_mu <= outcomes[0].gaussian_mu <= 1.02 * game.claimed_mu
    assert 0.25 * outcomes[0].claimed_epsilon <= outcomes[0].counted_epsilon
    names = ["rounds, count", "rounds", "count"] if game.counted else ["rounds"]
    assert [each.what for each in outcomes] == names


def test_scores_have_the_moments_of_the_likelihood_ratio(make_rounds, secrets, tmp_path):
    """Means mu² apart, variance mu² in both worlds. False-alarm rate 1e-7."""
    game = whole(make_rounds("channels", count=0.1), "membership")
    draws = 30_000
    first, second = game.play(draws, secrets("moments"), tmp_path).scores
    mu = distance(game)
    spread = mu / math.sqrt(draws)
    assert second.mean() - first.mean() == pytest.approx(mu**2, abs=5.3 * math.sqrt(2) * spread)
    for scores in (first, second):
        assert scores.var() == pytest.approx(mu**2, rel=5.3 * math.sqrt(2 / draws))


def test_parameters_that_a_canary_is_silent_about_may_be_left_out(make_rounds):
    """Which is why no network is needed: the others are there, or not."""
    from dataclasses import replace

    mechanism = make_rounds("channels")
    clip, more = mechanism.clip, 5
    larger = replace(
        clip,
        scale=np.r_[clip.scale, np.full(more, 3.0)],
        blocks=np.r_[clip.blocks, np.arange(more)],
    )
    for canary in canaries(clip).values():
        padded = torch.cat([canary, torch.zeros(more, dtype=canary.dtype)])
        few = Pair.of(mechanism, "patient", canary).sums
        many = Pair.of(replace(mechanism, clip=larger), "patient", padded).sums
        np.testing.assert_array_equal(many[..., : len(clip.blocks)], few)
        assert not many[..., len(clip.blocks) :].any()


def test_noise_lattice_and_bounds_are_those_of_the_release(make_rounds):
    mechanism = make_rounds("channels")
    game = whole(mechanism, "membership")
    few = game._few
    assert isinstance(few, PatientSum)
    assert few.calibrated is mechanism.calibrated
    np.testing.assert_array_equal(few.sigma, mechanism.sigma[game.where])
    np.testing.assert_array_equal(few.clip.bounds, mechanism.clip.bounds)
    assert len(game.where) == mechanism.calibrated.plan.blocks


def test_a_wide_canary_is_bounded_as_well(make_rounds):
    game = whole(make_rounds(), "membership")
    wide, narrow = (game.tried[f"{name} and last"].apart[0] for name in ("wide", "narrow"))
    assert np.count_nonzero(wide) == 12
    assert np.count_nonzero(narrow) == 1
    longest = round(1 / game.mechanism.calibrated.lattice.step)
    assert 0.999 * longest**2 < np.square(wide).sum() <= longest**2
    assert game.worst.apart[1].tolist() == (-game.worst.apart[0]).tolist()


def test_noise_is_keyed_as_the_aggregator_does(make_rounds):
    """By hand: the round, and the digests of all that was published before it."""
    game = whole(make_rounds("channels"), "membership")
    noise = Noise(Secret.seeded(3), (b"claim",))
    published = hashlib.sha256()
    few = game._fewest
    for number, row in enumerate(game.rows(noise)):
        total = game.worst.sums[number % 2, 0, game.where[:4]]
        stream = stream_of_round(noise, number, published.digest())
        np.testing.assert_array_equal(row, few.noisy_sum.perturb(total, stream))
        published.update(hashlib.sha256(row.tobytes()).digest())
    assert number == 7


def test_shares_that_nobody_tells_are_drawn(make_rounds, secrets, tmp_path):
    """Of three sites one may talk: two shares, which are the noise that is accounted for."""
    mechanism = make_rounds(trust="secure-sum", colluding=1)
    game = whole(mechanism, "membership")
    assert game.parties == 2
    played = game.play(5000, secrets("shares"), tmp_path)
    # False-alarm rate below 1e-6.
    np.testing.assert_allclose(played.spread["rounds"], 1, atol=5.5 * math.sqrt(2 / 10_000))


def test_as_many_rounds_as_the_budget_pays_for(make_rounds):
    mechanism = make_rounds(rounds=50)
    for values, rounds in ((0, 2), (2 * 100 * 4 * 7, 7), (1e9, 50)):
        assert RoundsGame.within(mechanism, "patient", 100, values).rounds == rounds
    assert RoundsGame.within(make_rounds(rounds=1), "patient", 100, 0).rounds == 1


def test_progress_counts_every_value(make_rounds, secrets, tmp_path):
    game = whole(make_rounds("channels", **KINDS["secure sum"]), "membership")
    counted = []
    game.play(1000, secrets("progress"), tmp_path, counted.append)
    assert sum(counted) == 1000 * game.values == 1000 * 2 * 2 * (4 * 6 + 1)
    assert not list(tmp_path.iterdir())


def test_without_noise_one_look_is_enough(make_rounds, secrets, tmp_path):
    game = whole(make_rounds("none"), "membership")
    (outcome,) = judge(game, game.play(1000, secrets("none"), tmp_path))
    assert math.isinf(outcome.gaussian_mu)
    assert math.isinf(outcome.claimed_mu)
    assert not outcome.refuted
