"""LiRA against plain formulas and toys whose best attack is known; canaries."""

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest

from canal.attacks import lira
from canal.attacks.lira import (
    KINDS,
    Pool,
    Shadows,
    distances,
    exact_ratios,
    known_ratios,
    likelihood_ratios,
    plant,
)
from canal.attacks.membership import attack_shadows
from canal.attacks.roc import Played, Roc, allowed_auc
from canal.data.arrays import Arrays
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


def naive(shadows, released, left_out, noise=1.0):
    """The same by regression in feature space, every filter fitted anew, patient by patient."""
    keep = [s for s in range(len(shadows.members)) if s not in left_out]
    features, members = shadows.features[keep], shadows.members[keep]
    n, mean = len(keep), features.mean(axis=0)
    width = features.shape[1]
    ridge = n * noise**2 + lira._RIDGE * np.square(features - mean).sum() / n

    def fitted(rows, inside):
        """Filter and offset of ridge regression, the offset free."""
        y = np.where(inside, 1.0, -1.0)
        centre, middle = rows.mean(axis=0), y.mean()
        moved = rows - centre
        found = np.linalg.solve(moved.T @ moved + ridge * np.eye(width), moved.T @ (y - middle))
        return found, middle - found @ centre

    trained = np.zeros(members.shape)
    for first in range(n // 2):
        pair = [first, first + n // 2]
        others = np.delete(np.arange(n), pair)
        for patient, inside in enumerate(members.T):
            weights, offset = fitted(features[others], inside[others])
            trained[pair, patient] = features[pair] @ weights + offset
    means = [trained[members[:, p], p].mean() for p in range(members.shape[1])]
    outs = [trained[~members[:, p], p].mean() for p in range(members.shape[1])]
    rest = np.square(trained - np.where(members, means, outs)).sum(axis=0) / (n - 2)
    found = []
    for patient, inside in enumerate(members.T):
        weights, offset = fitted(features, inside)
        variance = (rest[patient] + rest.mean()) / 2 + noise**2 * weights @ weights
        ratio = [
            NormalDist(each, math.sqrt(variance)).pdf(released @ weights + offset)
            for each in (means[patient], outs[patient])
        ]
        found.append(math.log(ratio[0] / ratio[1]) if means[patient] > outs[patient] else 0.0)
    return np.array(found)


@pytest.mark.parametrize(("left_out", "noise"), [((), 1.0), ((1, 7), 1.0), ((1, 7), 0.0)])
def test_inner_products_are_enough(left_out, noise):
    shadows = play(2.0, shadows=12, patients=6, dimensions=20)
    released = shadows.features[1] + noise * np.random.default_rng(1).standard_normal(20)
    asked = (shadows.inner_products(), shadows.members, shadows.features @ released, left_out)
    ours = likelihood_ratios(*asked, noise)
    assert ours == pytest.approx(naive(shadows, released, left_out, noise))
    many = likelihood_ratios(*asked[:2], np.stack([asked[2], asked[2]]), left_out, noise)
    assert many[1] == pytest.approx(ours)


@pytest.mark.slow
def test_with_many_shadows_it_is_as_good_as_can_be():
    """Whose directions are known: AUC Phi(|v| / sqrt 2). Within 0.03 of it with 400 shadows."""
    shadows = play(1.5, shadows=400, patients=8, dimensions=20)
    found, plain = attack_shadows(shadows, np.ones(20), seed=1, redraws=1)
    best = NormalDist().cdf(1.5 / math.sqrt(2))
    assert best - 0.03 < found.roc.auc < best + 0.03
    assert plain.roc.auc < best + 0.03
    assert found.p == 1 / 2


@cache
def attacks_on_nobody(chance, runs=40):
    """Patients who left no trace; what there is, training left by chance."""
    seeds = range(runs)
    quiet = [
        play(0.0, shadows=12, patients=300, dimensions=100, seed=seed, chance=chance)
        for seed in seeds
    ]
    return [attack_shadows(each, np.ones(100), seed=9, redraws=19)[0] for each in quiet]


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
            scores = distances(gram, shadows.members, shadows.features @ part, out)
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
    found, plain = attack_shadows(Shadows(features, quiet.members), sigma, seed=2, redraws=1)
    assert found.roc.auc > plain.roc.auc + 0.05


def test_without_noise_others_are_out_of_the_way():
    """Twenty patients whose directions overlap: the discriminant sees past them, as it must.

    Five directions in common hide everybody from the plain distance; 64 shadows tell them apart.
    """
    rng = np.random.default_rng(5)
    members = play(0.0, shadows=64, patients=20, dimensions=4).members
    moves = rng.standard_normal((20, 5)) @ rng.standard_normal((5, 300))
    moves += 0.3 * rng.standard_normal((20, 300))
    features = members @ moves + 0.1 * rng.standard_normal((64, 300))
    found, plain = attack_shadows(
        Shadows(features, members), np.ones(300), seed=0, redraws=9, noise=0
    )
    assert found.roc.auc > 0.95 > 0.8 > plain.roc.auc
    assert found.p == 1 / 10
    low, high = found.auc_interval
    assert 0.9 < low < found.roc.auc <= high


def parts_of(patients, width, seed):
    return np.random.default_rng(seed).standard_normal((patients, width)) / math.sqrt(width)


@pytest.mark.parametrize("rate", [0.5, 0.2])
def test_known_parts_give_the_ratio_of_two_gaussians(rate):
    """By the densities themselves, with the covariance that the others' membership makes."""
    rng = np.random.default_rng(1)
    parts = 3 * parts_of(5, 8, 2)
    released = np.array([1, 0, 1, 0, 0]) @ parts + rng.standard_normal(8)
    ours = exact_ratios(parts @ parts.T, parts @ released, rate)
    for patient in range(5):
        others = np.delete(parts, patient, axis=0)
        covariance = np.eye(8) + rate * (1 - rate) * others.T @ others
        logs = []
        for mean in (rate * others.sum(axis=0) + parts[patient], rate * others.sum(axis=0)):
            away = released - mean
            logs.append(-away @ np.linalg.solve(covariance, away) / 2)
        assert ours[patient] == pytest.approx(logs[0] - logs[1])
    with pytest.raises(InvalidValueError, match="rate = 1 must lie"):
        exact_ratios(parts @ parts.T, parts @ released, 1)


def test_who_knows_all_others_does_as_well_as_can_be():
    r"""AUC $\Phi(\mu/\sqrt 2)$ of 4,000 draws, within 0.03: four standard errors."""
    rng = np.random.default_rng(2)
    parts = 1.5 * parts_of(4, 50, 3)
    members = rng.random((1000, 4)) < 0.5
    released = members @ parts + rng.standard_normal((1000, 50))
    gram, observed = parts @ parts.T, released @ parts.T
    best = np.mean([allowed_auc(mu) for mu in np.sqrt(np.diag(gram))])
    for scores in (known_ratios(gram, observed, members), exact_ratios(gram, observed)):
        area = Played(scores, members).roc.auc
        assert area < best + 0.03
        assert area > best - 0.08
    known = Played(known_ratios(gram, observed, members), members).roc.auc
    assert abs(known - best) < 0.03
    # Negative control: members that had nothing to do with what was released.
    strangers = Played(known_ratios(gram, observed, members), rng.random((1000, 4)) < 0.5)
    low, high = strangers.auc_interval
    assert low < 0.5 < high


def test_too_few_shadows_and_other_halves_are_refused():
    rows = np.array([[True], [True], [False], [False]])
    with pytest.raises(InvalidValueError, match="only 2 shadows"):
        Shadows(np.zeros((4, 3)), rows)
    with pytest.raises(InvalidValueError, match="3 shadows have features, 4 have patients"):
        Shadows(np.zeros((3, 3)), rows)
    members = np.array([[True], [True], [True], [True], [False], [False], [False], [True]])
    with pytest.raises(InvalidValueError, match="pairs of complements"):
        Shadows(np.ones((8, 3)), members)


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


@pytest.fixture(scope="module")
def others():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (9, 1, 16, 16), dtype=np.uint8)
    masks = (images > 200).astype(np.uint8)
    ids = tuple(f"case {number}" for number in range(9))
    groups = {name: f"person {number // 2}" for number, name in enumerate(ids)}
    return Arrays(ids, images, masks, "others", frozenset({"case 8"}), groups)


@pytest.mark.parametrize("kind", KINDS)
def test_one_patient_each_of_one_person_each(others, kind):
    made = plant(others, kind, 4, seed=1)
    assert made.ids[:2] == ("canary 0 image 0", "canary 1 image 0")
    assert len(set(made.patients.values())) == 4
    first = others.rows(["case 0", "case 2", "case 4", "case 6"])
    expected = 255 - first.images if kind == "negative" else first.images
    assert np.array_equal(made.images, expected)
    changed = {"ordinary": first.masks, "inverted": 1 - first.masks}
    if kind in changed:
        assert np.array_equal(made.masks, changed[kind])
    else:
        blocks = made.masks.reshape(4, 4, 4, 4, 4)
        assert np.array_equal(blocks.min(axis=(2, 4)), blocks.max(axis=(2, 4)))
        assert made.masks[:, 0].mean(axis=(1, 2)).min() > 0
    again, other = plant(others, kind, 4, seed=1), plant(others, kind, 4, seed=2)
    assert again.digest == made.digest != other.digest
    assert np.array_equal(again.masks, made.masks)


def test_several_images_are_of_one_patient(others):
    made = plant(others, "scrambled", 2, images=3)
    assert made.images.shape == (6, 1, 16, 16)
    assert [made.patients[name] for name in made.ids[2:4]] == ["canary 0", "canary 1"]
    assert np.array_equal(made.masks[0], made.masks[2])
    assert not np.array_equal(made.images[0], made.images[1])


def test_the_cohort_is_in_every_shadow_and_a_canary_in_half(others):
    cohort = Arrays(("a", "b"), 255 - others.images[:2], others.masks[:2], "cohort")
    pool = Pool.of_canaries(cohort, plant(others, "scrambled", 4))
    assert len(pool.patients) == 4
    assert len(pool.always) == 2
    assert pool.images(pool.always) == ("a", "b")
    halves = pool.halves(8, seed=0)
    assert halves.shape == (8, 4)
    assert (halves.sum(axis=1) == 2).all()


def test_what_no_canary_is_made_of(others):
    with pytest.raises(InvalidValueError, match="'odd' is unknown; choose one of scrambled"):
        plant(others, "odd", 2)
    with pytest.raises(InvalidValueError, match="canaries = 1 must be at least 2"):
        plant(others, "scrambled", 1)
    with pytest.raises(InvalidValueError, match="made of as many people, and there are 4"):
        plant(others, "scrambled", 5)
