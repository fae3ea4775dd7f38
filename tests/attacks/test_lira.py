"""LiRA: right where the optimum is known, a coin where nothing is, and not its own witness."""

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest

from canal.attacks.lira import Shadows, distances, likelihood_ratios
from canal.attacks.patients import attack_shadows
from canal.attacks.roc import Roc
from canal.errors import InvalidValueError


def play(strength, *, shadows=64, patients=40, dimensions=400, seed=0, chance=0.5):
    """Patients who each move the features in a direction of their own, and some chance."""
    rng = np.random.default_rng(seed)
    moves = rng.standard_normal((patients, dimensions))
    moves *= strength / np.linalg.norm(moves, axis=1, keepdims=True)
    half = np.arange(patients) < patients // 2
    first = np.array([rng.permutation(half) for _ in range(shadows // 2)])
    members = np.concatenate([first, ~first])
    trained = chance * rng.standard_normal((shadows, dimensions)) / math.sqrt(dimensions)
    return Shadows(5 + members @ moves + trained, members)


def naive(shadows, released, left_out):
    """The same by loops over patients and shadows, every filter made anew."""
    keep = [s for s in range(len(shadows.members)) if s not in left_out]
    features, members = shadows.features[keep], shadows.members[keep]
    found = []
    for patient in range(members.shape[1]):
        inside = members[:, patient]

        def filtered(vector, without=None, inside=inside):
            chosen = np.arange(len(inside)) != without
            means = [features[chosen & kind].mean(axis=0) for kind in (inside, ~inside)]
            return (means[0] - means[1]) @ vector, means[0] - means[1]

        seen, direction = filtered(released)
        scores = np.array([filtered(features[s], s)[0] for s in range(len(keep))])
        means = [scores[kind].mean() for kind in (inside, ~inside)]
        rest = scores - np.where(inside, *means)
        variance = (rest**2).sum() / (len(keep) - 2) + direction @ direction
        found.append(((seen - means[1]) ** 2 - (seen - means[0]) ** 2) / (2 * variance))
    return np.array(found)


@pytest.mark.parametrize("left_out", [(), (1, 7)])
def test_inner_products_are_enough(left_out):
    shadows = play(2.0, shadows=12, patients=6, dimensions=20)
    released = shadows.features[1] + np.random.default_rng(1).standard_normal(20)
    ours = likelihood_ratios(
        shadows.inner_products(), shadows.members, shadows.features @ released, left_out
    )
    assert ours == pytest.approx(naive(shadows, released, left_out))


@pytest.mark.slow
def test_with_many_shadows_it_is_as_good_as_can_be():
    """Whose directions are known: AUC Phi(|v| / sqrt 2). Within 0.03 of it with 400 shadows."""
    shadows = play(1.5, shadows=400, patients=8, dimensions=20)
    lira, plain = attack_shadows(shadows, np.ones(20), seed=1, redraws=3)
    best = NormalDist().cdf(1.5 / math.sqrt(2))
    assert best - 0.03 < lira.roc.auc < best + 0.03
    assert plain.roc.auc < best + 0.03
    assert lira.p == 1 / 4


@cache
def attacks_on_nobody(chance, runs=40):
    """Patients who left no trace; what there is, training left by chance."""
    seeds = range(runs)
    quiet = [
        play(0.0, shadows=12, patients=300, dimensions=100, seed=seed, chance=chance)
        for seed in seeds
    ]
    return [attack_shadows(each, np.ones(100), seed=9, redraws=29)[0] for each in quiet]


def missing_a_coin(intervals):
    return sum(not low <= 0.5 <= high for low, high in intervals)


@pytest.mark.parametrize("chance", [0.5, 40.0])
def test_of_patients_who_left_no_trace_it_knows_nothing(chance):
    """Of forty intervals at 95 %, ten or more miss with a probability of 4e-5."""
    played = attacks_on_nobody(chance)
    assert missing_a_coin(each.auc_interval for each in played) < 10
    assert sum(each.p <= 0.05 for each in played) < 10


def test_scores_of_shadows_that_judge_each_other_are_not_independent():
    """The negative control: an interval that takes them so misses a coin far too often."""
    assert missing_a_coin(each.roc.auc_interval for each in attacks_on_nobody(40.0)) >= 8


def test_the_number_of_shadows_would_give_it_away():
    """The negative control: with the complement kept, a coin becomes a verdict."""
    shadows = play(1.0, patients=200)
    gram, rng = shadows.inner_products(), np.random.default_rng(1)
    found = {"both": ([], []), "one": ([], [])}
    for target in range(64):
        part = shadows.features[target] + rng.standard_normal(400)
        inside = shadows.members[target]
        for name, out in (("both", (target, (target + 32) % 64)), ("one", (target,))):
            scores = likelihood_ratios(gram, shadows.members, shadows.features @ part, out)
            found[name][0].extend(scores[inside])
            found[name][1].extend(scores[~inside])
    assert Roc.of(*found["one"]).auc - Roc.of(*found["both"]).auc > 0.1


def test_noise_is_known_to_lira_alone():
    """Values under ten times the noise: the plain distance drowns in them, the ratio does not."""
    rng = np.random.default_rng(3)
    sigma = np.where(np.arange(400) < 200, 1.0, 30.0)
    quiet = play(2.0, shadows=100, patients=10, dimensions=400)
    features = quiet.features.copy()
    features[:, 200:] = 5 + 0.01 * rng.standard_normal((100, 200))
    lira, plain = attack_shadows(Shadows(features, quiet.members), sigma, seed=2, redraws=1)
    assert lira.roc.auc > plain.roc.auc + 0.05


def test_too_few_shadows_and_other_halves_are_refused():
    rows = np.array([[True], [True], [False], [False]])
    with pytest.raises(InvalidValueError, match="only 2 shadows"):
        Shadows(np.zeros((4, 3)), rows)
    with pytest.raises(InvalidValueError, match="3 shadows have features, 4 have patients"):
        Shadows(np.zeros((3, 3)), rows)
    members = np.array([[True], [True], [True], [True], [False], [False], [False], [True]])
    with pytest.raises(InvalidValueError, match="pairs of complements"):
        attack_shadows(Shadows(np.ones((8, 3)), members), np.ones(3), seed=0)


def test_distances_by_hand():
    """Features 1 with the patient, 0 without; 0.75 is a quarter from one, three from the other."""
    features = np.array([[1.0], [1.0], [1.0], [0.0], [0.0], [0.0]])
    members = features[:, :] == 1
    shadows = Shadows(features, members)
    # Twice as large in units of the features as in those of the noise.
    gram = shadows.inner_products(weights=np.array([4.0]))
    seen = shadows.inner_products(np.array([[0.75]]), np.array([4.0]))[0]
    assert distances(gram, members, seen) == pytest.approx([1.5**2 - 0.5**2])
    assert distances(gram, members, seen, (0, 3)) == pytest.approx([1.5**2 - 0.5**2])
