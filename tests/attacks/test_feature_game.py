"""The game on the release's own code: what is claimed is reached, and not exceeded.

Statistical tests have fixed secrets; a bound of 95 % is above the claim in one of twenty, an alarm
in one of a million.
"""

import math

import numpy as np
import pytest

from canal.attacks.bounds import counted_epsilon, gaussian_mu, normality
from canal.attacks.feature_game import FeatureGame, takes_part
from canal.attacks.feature_rows import play_rows
from canal.attacks.hostile import feature_teacher, worlds
from canal.attacks.verdict import Outcome
from canal.errors import InvalidValueError
from canal.privacy import epsilon_from_rho

PRIVATE = {"caps_source": "private", "importance_source": "private"}
UNITS = ("patient", "image")


def whole(mechanism, unit):
    return FeatureGame(mechanism, unit, takes_part(mechanism.calibrated.plan, unit))


def distance(game):
    """How far apart the worlds are before noise, in standard deviations."""
    total = sum(
        np.square((after - before) / game._std).sum()
        for before, after in map(game.moved_features, range(game.queries))
    )
    total += sum((moved.reach / moved.sigma) ** 2 for moved in game.moved_statistics)
    return math.sqrt(total)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("people", [(1, 1), (3, 4), (3, 7, 3), (5, 300, 2)])
@pytest.mark.parametrize("sources", [{}, PRIVATE, {"caps_source": "private"}])
@pytest.mark.parametrize("nonnegative", [True, False])
def test_neighbours_are_as_far_apart_as_the_accounting_says(
    make_mechanism, unit, people, sources, nonnegative
):
    """Before noise, exactly; no draw is needed for this. A step of the lattice may be lost."""
    mechanism = make_mechanism(people=people, nonnegative=nonnegative, **sources)
    game = whole(mechanism, unit)
    assert distance(game) <= game.claimed_mu * (1 + 1e-12)
    assert distance(game) == pytest.approx(game.claimed_mu, rel=1e-3)
    stated = mechanism.calibrated.guarantee.mu(unit)
    if math.isfinite(stated):  # public statistics give the images up
        assert game.claimed_mu == pytest.approx(stated, rel=1e-9)


def test_one_position_that_is_clamped_cannot_be_moved_as_far(make_mechanism):
    game = whole(make_mechanism(grid=(1, 1)), "patient")
    assert distance(game) == pytest.approx(game.claimed_mu / math.sqrt(2), rel=1e-3)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_the_claim_holds_and_is_reached_at_a_hundred_thousand_draws(
    make_mechanism, secrets, tmp_path, unit, epsilon
):
    people = (3, 4, 2) if unit == "image" else (3, 4)
    sources = PRIVATE if unit == "image" else {}
    mechanism = make_mechanism(epsilon=epsilon, unit=unit, people=people, **sources)
    game = whole(mechanism, unit)
    assert epsilon_from_rho(game.claimed_mu**2 / 2, 1e-5) == pytest.approx(epsilon, rel=1e-6)
    scores = game.play(100_000, secrets(f"{unit}{epsilon}"), tmp_path).scores
    outcome = Outcome.of(game, scores, game.claimed_mu, what="all")
    assert 0.9 * epsilon <= outcome.gaussian_epsilon <= epsilon
    assert 0.25 * epsilon <= outcome.counted_epsilon <= epsilon
    assert outcome.normality > 1e-6
    assert not outcome.refuted


def test_the_paper_falls_short_for_a_patient_and_ours_holds(make_mechanism, secrets, tmp_path):
    """Epsilon 8 of the paper, 20 queries of three teachers: a patient pays over six times that."""
    mechanism = make_mechanism("paper", people=(3, 20))
    promise = mechanism.calibrated.guarantee
    game = whole(mechanism, "patient")
    scores = game.play(20_000, secrets("paper"), tmp_path).scores
    found = epsilon_from_rho(gaussian_mu(*scores) ** 2 / 2, 1e-5)
    assert promise.epsilon(1e-5, "paper", "paper") <= 8
    assert 6 * 8 < found <= promise.epsilon(1e-5, "patient")
    assert found >= 0.97 * promise.epsilon(1e-5, "patient")
    # Assumption-free, too.
    assert counted_epsilon(*scores, 1e-5) > 7


def test_scores_have_the_moments_of_the_likelihood_ratio(make_mechanism, secrets, tmp_path):
    """Means mu² apart, variance mu² in both worlds. False-alarm rate 1e-7."""
    game = whole(make_mechanism(), "patient")
    first, second = game.play(50_000, secrets("moments"), tmp_path).scores
    mu = distance(game)
    spread = mu / math.sqrt(50_000)
    assert second.mean() - first.mean() == pytest.approx(mu**2, abs=5.3 * math.sqrt(2) * spread)
    for scores in (first, second):
        assert scores.var() == pytest.approx(mu**2, rel=5.3 * math.sqrt(2 / 50_000))


def test_rows_of_the_aggregator_play_the_same_game(make_mechanism, secrets, tmp_path):
    """One key a row, against many draws at once: same means, same spread. False alarms: 1e-6."""
    mechanism = make_mechanism(epsilon=30.0)
    game = FeatureGame(mechanism, "patient", 2)
    scores, stored = play_rows(game, 2000, (secrets("one"), secrets("two")), tmp_path)
    many = game.play(2000, secrets("many"), tmp_path).scores
    assert stored[0].shape == (4000, 4, 2)
    for ours, theirs in zip(scores, many, strict=True):
        assert normality(ours, theirs) > 1e-6
        apart = abs(ours.mean() - theirs.mean()) / math.sqrt((ours.var() + theirs.var()) / 2000)
        assert apart < 5
    assert gaussian_mu(*scores) <= game.claimed["features"]
    assert gaussian_mu(*scores) > 0.9 * game.claimed["features"]


def test_parts_add_up(make_mechanism, secrets, tmp_path):
    mechanism = make_mechanism(**PRIVATE)
    game = whole(mechanism, "image")
    assert list(game.claimed) == ["features", "caps", "importance"]
    played = game.play(2000, secrets("parts"), tmp_path)
    for world in (0, 1):
        total = sum(scores[world] for scores in played.parts.values())
        np.testing.assert_allclose(played.scores[world], total)
    assert {name: len(ratios) for name, ratios in played.spread.items()} == {
        "features": 4,
        "caps": 1,
        "importance": 1,
    }
    for ratios in played.spread.values():  # false-alarm rate below 1e-6
        np.testing.assert_allclose(ratios, 1, atol=5.5 * math.sqrt(2 / 4000))


def test_as_many_queries_as_the_budget_pays_for(make_mechanism):
    mechanism = make_mechanism(people=(3, 50, 5))
    for values, patient, image in ((0, 1, 1), (8 * 2 * 100 * 7, 7, 5), (1e9, 50, 5)):
        assert FeatureGame.within(mechanism, "patient", 100, values).queries == patient
        assert FeatureGame.within(mechanism, "image", 100, values).queries == image


def test_progress_counts_every_value(make_mechanism, secrets, tmp_path):
    game = whole(make_mechanism(**PRIVATE), "patient")
    counted = []
    game.play(1000, secrets("progress"), tmp_path, counted.append)
    assert sum(counted) == 1000 * game.values
    assert not list(tmp_path.iterdir())


def test_the_paper_has_no_neighbours(make_mechanism):
    plan = make_mechanism().calibrated.plan
    with pytest.raises(InvalidValueError, match="no neighbours to try; choose one of patient"):
        worlds("paper", feature_teacher(plan), plan, [False])
