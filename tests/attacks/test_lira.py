"""LiRA: right where the optimum is known, a coin where nothing is, and not its own witness."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from canal.attacks.lira import Shadows, distances, likelihood_ratios
from canal.attacks.patients import attack_shadows
from canal.attacks.roc import Roc
from canal.errors import InvalidValueError


def play(strength, *, shadows=64, patients=40, dimensions=400, seed=0):
    """Patients who each move the features in a direction of their own, and some chance."""
    rng = np.random.default_rng(seed)
    moves = rng.standard_normal((patients, dimensions))
    moves *= strength / np.linalg.norm(moves, axis=1, keepdims=True)
    half = np.arange(patients) < patients // 2
    first = np.array([rng.permutation(half) for _ in range(shadows // 2)])
    members = np.concatenate([first, ~first])
    chance = 0.5 * rng.standard_normal((shadows, dimensions)) / math.sqrt(dimensions)
    return Shadows(5 + members @ moves + chance, members)


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


def test_with_many_shadows_it_is_as_good_as_can_be():
    """Whose directions are known: AUC Phi(|v| / sqrt 2). Within 0.03 of it with 400 shadows."""
    shadows = play(1.5, shadows=400, patients=8, dimensions=20)
    lira, plain = attack_shadows(shadows, np.ones(20), seed=1)
    best = NormalDist().cdf(1.5 / math.sqrt(2))
    assert best - 0.03 < lira.auc < best + 0.03
    assert plain.auc < best + 0.03


def test_of_patients_who_left_no_trace_it_knows_nothing():
    """A chance of one in a million for a false alarm: 4.9 standard errors, pairs as independent."""
    lira, plain = attack_shadows(play(0.0), np.ones(400), seed=1)
    for roc in (lira, plain):
        low, high = roc.interval(1 - 1e-6)
        assert low <= 0.5 <= high


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
    lira, plain = attack_shadows(Shadows(features, quiet.members), sigma, seed=2)
    assert lira.auc > plain.auc + 0.05


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
    features = np.array([[1.0], [1.0], [1.0], [0.0], [0.0], [0.0]])
    members = np.array([[True], [True], [True], [False], [False], [False]])
    shadows = Shadows(features, members)
    assert distances(shadows, np.array([0.75]), np.array([2.0])) == pytest.approx([1.0])
