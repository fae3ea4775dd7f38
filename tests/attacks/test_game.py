"""The game on the release's own code: what is claimed is reached, and not exceeded.

Statistical tests have fixed secrets; a bound of 95 % is above the claim in one of twenty, an alarm
in one of a million.
"""

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from canal.attacks.audit import judge
from canal.attacks.bounds import counted_epsilon, gaussian_mu
from canal.attacks.game import Game
from canal.attacks.traces import distances, own_noise, unrelated
from canal.gradients.mechanism import stream_of_round
from canal.gradients.worst_case import GradientWorstCase, canaries, neighbours
from canal.privacy import Secret, epsilon_from_rho
from canal.release.mechanism import Noise, Published, Step
from canal.release.worst_case import World

PRIVATE = {"caps_source": "private", "importance_source": "private"}
SECURE = {"trust": "secure-sum", "colluding": 1}
# What is asked for, and whose neighbours are tried.
FEATURES = {"patient": {}, "image": {"people": (3, 4, 2), **PRIVATE}}
ROUNDS = {
    "flat": {},
    "ellipsoid": {"allocation": "ellipsoid"},
    "channels": {"allocation": "channels"},
    "basis": {"directions": 6},
    "basis, channels": {"allocation": "channels", "directions": 6},
    "count": {"count": 0.1},
    "secure sum": {**SECURE, "count": 0.1},
    "one patient": {"patients": 1, "sites": 1, "rounds": 1},
    "replaced": {"relation": "replace"},
}


def whole(worst, unit):
    """The game on all rows that the unit takes part in."""
    return Game(worst, unit, worst.rows_of(unit, worst.rows))


def distance(game):
    """How far apart the worlds are before noise, in standard deviations."""
    total = 0.0
    for name, moved in game.moved.items():
        rows = range(game.drawn if name == game.repeated else 1)
        total += sum(np.square(moved.apart[row % len(moved.apart)]).sum() for row in rows)
    return math.sqrt(total)


@pytest.mark.parametrize("unit", ["patient", "image"])
@pytest.mark.parametrize("people", [(1, 1), (3, 4), (3, 7, 3), (5, 300, 2)])
@pytest.mark.parametrize("sources", [{}, PRIVATE, {"caps_source": "private"}])
@pytest.mark.parametrize("nonnegative", [True, False])
def test_neighbours_are_as_far_apart_as_the_accounting_says(
    make_features, unit, people, sources, nonnegative
):
    """Before noise, exactly; no draw is needed for this. A step of the lattice may be lost."""
    worst = make_features(people=people, nonnegative=nonnegative, **sources)
    game = whole(worst, unit)
    assert distance(game) <= game.claimed_mu * (1 + 1e-12)
    assert distance(game) == pytest.approx(game.claimed_mu, rel=1e-3)
    stated = worst.calibrated.guarantee.mu(unit)
    if math.isfinite(stated):  # public statistics give the images up
        assert game.claimed_mu == pytest.approx(stated, rel=1e-9)
    assert distances(game).passed


@pytest.mark.parametrize("unit", ["membership", "patient"])
@pytest.mark.parametrize("kind", ROUNDS)
def test_canaries_are_as_far_apart_as_the_accounting_says(make_rounds, kind, unit):
    worst = make_rounds(**ROUNDS[kind])
    game = whole(worst, unit)
    assert distance(game) <= game.claimed_mu * (1 + 1e-12)
    assert distance(game) == pytest.approx(game.claimed_mu, rel=1e-3)
    stated = worst.calibrated.guarantee.mu(unit)
    assert game.claimed_mu <= stated
    # Whoever is replaced by the opposite is counted as before.
    if unit == "membership" or not worst.plan.count:
        assert game.claimed_mu == pytest.approx(stated, rel=1e-9)
    assert distances(game).passed


def test_one_position_that_is_clamped_cannot_be_moved_as_far(make_features):
    game = whole(make_features(grid=(1, 1)), "patient")
    assert distance(game) == pytest.approx(game.claimed_mu / math.sqrt(2), rel=1e-3)


@pytest.mark.parametrize("unit", FEATURES)
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_the_claim_holds_and_is_reached_at_a_hundred_thousand_draws(
    make_features, secrets, tmp_path, unit, epsilon
):
    worst = make_features(epsilon=epsilon, unit=unit, **FEATURES[unit])
    game = whole(worst, unit)
    assert epsilon_from_rho(game.claimed_mu**2 / 2, 1e-5) == pytest.approx(epsilon, rel=1e-6)
    outcome = judge(game, game.play(100_000, secrets(f"{unit}{epsilon}"), tmp_path))[0]
    assert 0.9 * epsilon <= outcome.gaussian_epsilon <= 1.01 * epsilon
    assert 0.25 * epsilon <= outcome.counted_epsilon <= epsilon
    assert outcome.normality > 1e-6
    assert not outcome.refuted


@pytest.mark.parametrize("unit", ["membership", "patient"])
@pytest.mark.parametrize("kind", ROUNDS)
def test_the_claim_of_rounds_holds_and_is_reached(make_rounds, secrets, tmp_path, kind, unit):
    game = whole(make_rounds(**ROUNDS[kind]), unit)
    outcomes = judge(game, game.play(10_000, secrets(unit), tmp_path))
    for outcome in outcomes:
        assert not outcome.refuted
        assert outcome.normality > 1e-6
    assert 0.85 * game.claimed_mu <= outcomes[0].gaussian_mu <= 1.02 * game.claimed_mu
    assert 0.25 * outcomes[0].claimed_epsilon <= outcomes[0].counted_epsilon
    names = ["rounds, count", "rounds", "count"] if "count" in game.moved else ["rounds"]
    assert [each.what for each in outcomes] == names


def test_the_paper_falls_short_for_a_patient_and_ours_holds(make_features, secrets, tmp_path):
    """Epsilon 8 of the paper, 20 queries of three teachers: a patient pays over six times that."""
    worst = make_features("paper", people=(3, 20))
    promise = worst.calibrated.guarantee
    scores = whole(worst, "patient").play(20_000, secrets("paper"), tmp_path).scores
    found = epsilon_from_rho(gaussian_mu(*scores) ** 2 / 2, 1e-5)
    assert promise.epsilon(1e-5, "paper", "paper") <= 8
    assert 6 * 8 < found <= promise.epsilon(1e-5, "patient")
    assert found >= 0.97 * promise.epsilon(1e-5, "patient")
    # Assumption-free, too.
    assert counted_epsilon(*scores, 1e-5) > 7


@pytest.mark.parametrize("kind", ["features", "rounds"])
def test_scores_have_the_moments_of_the_likelihood_ratio(
    make_features, make_rounds, secrets, tmp_path, kind
):
    """Means mu² apart, variance mu² in both worlds. False-alarm rate 1e-7."""
    features, rounds = make_features(), make_rounds("channels", count=0.1)
    game = whole(features, "patient") if kind == "features" else whole(rounds, "membership")
    draws = 50_000
    first, second = game.play(draws, secrets("moments"), tmp_path).scores
    mu = distance(game)
    spread = mu / math.sqrt(draws)
    assert second.mean() - first.mean() == pytest.approx(mu**2, abs=5.3 * math.sqrt(2) * spread)
    for scores in (first, second):
        assert scores.var() == pytest.approx(mu**2, rel=5.3 * math.sqrt(2 / draws))


def test_parts_add_up(make_features, secrets, tmp_path):
    game = whole(make_features(**PRIVATE), "image")
    assert list(game.claimed) == ["features", "caps", "importance"]
    played = game.play(2000, secrets("parts"), tmp_path)
    for world in (0, 1):
        total = sum(scores[world] for scores in played.parts.values())
        np.testing.assert_allclose(played.scores[world], total)
    # Two places of each of four channels; two channels and two others of each statistic.
    shapes = {"features": (1, 8), "caps": (1, 4), "importance": (1, 4)}
    assert {name: ratios.shape for name, ratios in played.spread.items()} == shapes
    for ratios in played.spread.values():  # false-alarm rate below 1e-6
        np.testing.assert_allclose(ratios, 1, atol=5.5 * math.sqrt(2 / 4000))


def test_as_many_rows_as_the_budget_pays_for(make_features, make_rounds):
    worst = make_features(people=(3, 50, 5))
    for values, patient, image in ((0, 2, 2), (8 * 2 * 100 * 7, 7, 5), (1e9, 50, 5)):
        assert Game.within(worst, "patient", 100, values).drawn == patient
        assert Game.within(worst, "image", 100, values).drawn == image
    for values, rounds in ((0, 2), (2 * 100 * 4 * 7, 7), (1e9, 50)):
        assert Game.within(make_rounds(rounds=50), "patient", 100, values).drawn == rounds
    assert Game.within(make_rounds(rounds=1), "patient", 100, 0).drawn == 1


def test_progress_counts_every_value(make_features, make_rounds, secrets, tmp_path):
    features = whole(make_features(**PRIVATE), "patient")
    rounds = whole(make_rounds("channels", **ROUNDS["secure sum"]), "membership")
    assert rounds.values == 2 * 2 * (4 * 6 + 1)
    for game in (features, rounds):
        counted = []
        game.play(1000, secrets("progress"), tmp_path, counted.append)
        assert sum(counted) == 1000 * game.values
        assert not list(tmp_path.iterdir())


def test_shares_that_nobody_tells_are_drawn(make_features, make_rounds, secrets, tmp_path):
    """Of three sites one may talk: two shares, which are the noise that is accounted for."""
    for worst in (make_features(**SECURE), make_rounds(**SECURE)):
        game = whole(worst, "patient")
        assert game.shares == 2
        played = game.play(5000, secrets("shares"), tmp_path)
        for ratios in played.spread.values():  # false-alarm rate below 1e-6
            np.testing.assert_allclose(ratios, 1, atol=5.5 * math.sqrt(2 / 10_000))


def test_without_noise_one_look_is_enough(make_rounds, secrets, tmp_path):
    game = whole(make_rounds("none"), "membership")
    (outcome,) = judge(game, game.play(1000, secrets("none"), tmp_path))
    assert math.isinf(outcome.gaussian_mu)
    assert math.isinf(outcome.claimed_mu)
    assert not outcome.refuted


def test_noise_of_all_rows_is_its_own(make_features, make_rounds, secrets, tmp_path):
    """Of as many queries as there are streams to try, and of all rounds; every value of its own."""
    for worst, rows in ((make_features(**PRIVATE), 2048), (make_rounds(rounds=50), 50)):
        game = whole(worst, "patient")
        found = own_noise(game, secrets("rows"))
        assert found.passed
        assert found.detail == f"none of {rows} rows repeats another's"
        assert found.false_alarm < 1e-9
        played = game.play(5000, secrets("sample"), tmp_path)
        assert len(played.sample) == 2
        assert unrelated(played.sample).passed


def test_rows_that_hold_too_little_to_be_compared(make_features, secrets):
    small = whole(make_features(channels=1, released=1, grid=(1, 1)), "patient")
    assert own_noise(small, secrets("rows")).passed is None


def test_noise_is_keyed_as_the_aggregator_does(make_rounds):
    """By hand: the round, and the digests of all that was published before it."""
    worst = make_rounds("channels")
    game = whole(worst, "membership")
    noise = Noise(Secret.seeded(3), (b"claim",))
    published, moved = hashlib.sha256(), game.moved["rounds"]
    noisy_sum = worst.mechanism.noisy_sum(Step("rounds"), "rounds", Published())
    few = replace(noisy_sum, std=noisy_sum.std[moved.where[:4]])
    rows = list(game.told(noise))
    assert len(rows) == 8
    for number, row in enumerate(rows):
        stream = stream_of_round(noise, number, published.digest())
        np.testing.assert_array_equal(row, few.perturb(moved.total(0, number)[:4], stream))
        published.update(hashlib.sha256(row.tobytes()).digest())


def test_only_what_differs_is_drawn(make_features, make_rounds):
    """And of a few values, others beside them."""
    assert len(whole(make_features(), "patient").moved["features"].where) == 4 * 2
    assert len(whole(make_rounds("channels"), "membership").moved["rounds"].where) == 6
    assert len(whole(make_rounds(), "membership").moved["rounds"].where) == 4


def pair(worst, unit, canary):
    """Sums of the first round in both worlds."""
    worlds = (World(worst.mechanism, sites) for sites in neighbours(unit, canary))
    return [next(world.sums([Step("rounds")]))["rounds"][0] for world in worlds]


def test_parameters_that_a_canary_is_silent_about_may_be_left_out(make_rounds):
    """Which is why no network is needed: the others are there, or not."""
    worst = make_rounds("channels")
    clip, more = worst.patient_sum.clip, 5
    larger = replace(
        clip,
        scale=np.r_[clip.scale, np.full(more, 3.0)],
        blocks=np.r_[clip.blocks, np.arange(more)],
    )
    other = GradientWorstCase(replace(worst.patient_sum, clip=larger))
    for canary in canaries(clip).values():
        padded = torch.cat([canary, torch.zeros(more, dtype=canary.dtype)])
        for few, many in zip(
            pair(worst, "patient", canary), pair(other, "patient", padded), strict=True
        ):
            np.testing.assert_array_equal(many[: len(clip.blocks)], few)
            assert not many[len(clip.blocks) :].any()


def test_a_wide_canary_is_bounded_as_well(make_rounds):
    worst = make_rounds()
    found = canaries(worst.patient_sum.clip)
    wide, narrow = (pair(worst, "membership", found[name])[1] for name in ("wide", "narrow"))
    assert np.count_nonzero(wide) == 12
    assert np.count_nonzero(narrow) == 1
    longest = round(1 / worst.calibrated.lattice.step)
    assert 0.999 * longest**2 < np.square(wide).sum() <= longest**2
    moved = whole(worst, "membership").moved["rounds"]
    assert moved.apart[1].tolist() == (-moved.apart[0]).tolist()
