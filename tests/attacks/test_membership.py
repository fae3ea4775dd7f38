"""Membership attacks on small releases: matching of images, and shadows of patients."""

import dataclasses
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from canal.attacks import lira as shadows_module
from canal.attacks.lira import Pool, Shadows, train_shadows
from canal.attacks.membership import (
    Target,
    _log_population,
    _score,
    attack_canaries,
    attack_patients,
    match,
)
from canal.attacks.roc import NOTHING, Finding, Roc, allowed_auc, features_mu
from canal.attacks.view import noiseless_rows, released_rows, spreads
from canal.data.arrays import Arrays
from canal.errors import InvalidValueError
from canal.features.ensemble import load_ensemble
from canal.features.queries import Queries
from canal.features.release import create
from canal.learning.networks import UNetArchitecture
from canal.learning.settings import TrainingSettings
from canal.learning.teacher import initialise, train


@pytest.fixture(scope="module")
def members(make_arrays):
    return make_arrays(40, seed=0)


@pytest.fixture(scope="module")
def others(make_arrays):
    return make_arrays(80, seed=1, prefix="other")


def test_without_noise_it_is_right_every_time(make_release, ensemble, members, others):
    release = make_release(arrays=members, allocation="none")
    roc = match(release, ensemble, members, others)
    assert (len(roc.members), len(roc.others)) == (40, 40)
    assert roc.auc == 1
    assert roc.tpr(0) == 1


def test_what_it_expects_without_noise_is_what_is_released(make_release, ensemble, members):
    release = make_release(arrays=members, allocation="none")
    expected = noiseless_rows(release, ensemble, members)
    assert expected.shape == (40, 6 * 16)
    # Half a unit of storage.
    unit = np.repeat(release.scale / release.caps, 16)
    assert (np.abs(released_rows(release) - expected) <= unit * (0.5 + 1e-9)).all()


def test_what_is_released_is_what_it_expects_and_noise(make_release, ensemble, members):
    """False-alarm rate 1e-6: the sum of squares of that noise is chi-square."""
    release = make_release(arrays=members, seed=0)
    rest = (released_rows(release) - noiseless_rows(release, ensemble, members)) / spreads(release)
    assert 5e-7 < stats.chi2.cdf(np.square(rest).sum(), rest.size) < 1 - 5e-7


def test_with_much_noise_it_is_a_coin(make_release, ensemble, members, others):
    release = make_release(arrays=members, seed=0, epsilon=0.01)
    roc = match(release, ensemble, members, others)
    low, high = roc.auc_interval
    # Five standard errors: false-alarm rate 6e-7.
    assert abs(roc.auc - 0.5) < 5 * (high - low) / (2 * 1.96)


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 100.0])
def test_never_above_what_the_noise_allows(make_release, ensemble, members, others, epsilon):
    """By more than chance: the lower end of its interval. Seeds are fixed."""
    release = make_release(arrays=members, seed=1, epsilon=epsilon)
    roc = match(release, ensemble, members, others)
    mu = features_mu(release, "image")
    assert roc.auc_interval[0] <= allowed_auc(mu)
    finding = Finding("membership", "digest", roc, "image", mu)
    assert not any("has a bug" in sentence for sentence in finding.words())


def test_fewer_channels_than_were_paid_for(make_release, ensemble, members, others):
    """Noise-aware allocation drops channels; what is left of them has its price all the same."""
    release = make_release(arrays=members, seed=1, allocation="reverse", epsilon=0.2)
    assert 0 < len(release.channels) < release.plan.released
    assert 0 < features_mu(release, "image") < 10
    match(release, ensemble, members, others)


def test_an_attack_above_what_is_allowed_says_so():
    roc = Roc.of(np.ones(100), np.zeros(100))
    assert any("has a bug" in said for said in Finding("a", "d", roc, "image", 0.1).words())
    assert any("no noise" in said for said in Finding("a", "d", roc, "image", None).words())


@pytest.mark.parametrize("size", [1.0, 2.0])
def test_the_best_score_of_a_gaussian_toy(size):
    r"""One released row, and images whose features are normal: the optimum is known.

    A member's score is the log of $p(r \mid f)/p(r)$; by Neyman and Pearson, no other attack has a
    larger area. It is held against the exact density, and against the nearest-neighbour attack,
    which it must not lose to. Standard error of the areas: 0.01.
    """
    rng = np.random.default_rng(0)
    dimensions, runs = 6, 2000
    references = rng.normal(0, size, (20_000, dimensions))
    true = {"members": [], "others": []}
    exact, nearest = {"members": [], "others": []}, {"members": [], "others": []}
    density = stats.multivariate_normal(np.zeros(dimensions), (1 + size**2) * np.eye(dimensions))
    member = rng.normal(0, size, (runs, dimensions))
    other = rng.normal(0, size, (runs, dimensions))
    rows = member + rng.normal(0, 1, member.shape)
    nobody = _log_population(rows, references)
    for index in range(runs):
        row = rows[index : index + 1]
        for name, feature in (("members", member[index]), ("others", other[index])):
            true[name].append(_score(row, feature[None], nobody[index : index + 1])[0])
            log = -np.square(row[0] - feature).sum() / 2
            exact[name].append(log - density.logpdf(row[0]))
            nearest[name].append(log)
    ours, best, plain = (Roc.of(each["members"], each["others"]) for each in (true, exact, nearest))
    assert ours.auc == pytest.approx(best.auc, abs=0.01)
    assert ours.auc >= plain.auc - 0.01
    assert ours.auc > 0.75


def test_with_one_neighbour_it_reaches_what_is_allowed():
    """Two worlds, one row: the score is the likelihood ratio, its area that of the Gaussian."""
    rng = np.random.default_rng(2)
    mean, runs = np.array([1.5, 0.0]), 4000
    rows = {
        "members": rng.normal(0, 1, (runs, 2)) + mean,
        "others": rng.normal(0, 1, (runs, 2)),
    }
    found = {
        name: [
            _score(row[None], mean[None], -np.square(row[None]).sum(axis=1) / 2)[0] for row in each
        ]
        for name, each in rows.items()
    }
    roc = Roc.of(found["members"], found["others"])
    # False-alarm rate below 1e-6.
    assert roc.auc == pytest.approx(allowed_auc(1.5), abs=5 * 0.006)


def test_a_row_far_from_every_image_does_no_harm():
    found = _score(np.array([[1e4, 0.0]]), np.array([[0.0, 0.0]]), np.array([-1e3]))
    assert math.isfinite(found[0])


def test_other_teachers_are_refused(make_release, ensemble, members, others):
    release = make_release(arrays=members, seed=0)
    turned = dataclasses.replace(ensemble, teachers=ensemble.teachers[::-1])
    with pytest.raises(InvalidValueError, match="north, south, west, in this order"):
        match(release, turned, members, others)


def test_members_that_were_not_asked_about_are_refused(make_release, ensemble, members, others):
    release = make_release(arrays=members, seed=0)
    with pytest.raises(InvalidValueError, match="80 of the 80 members are not in"):
        match(release, ensemble, others, members)


def test_others_that_are_members_or_too_few_are_refused(
    make_release, ensemble, members, others, make_arrays
):
    release = make_release(arrays=members, seed=0)
    with pytest.raises(InvalidValueError, match="40 of these 40 are"):
        match(release, ensemble, members, members)
    with pytest.raises(InvalidValueError, match="at least 4 images"):
        match(release, ensemble, members, make_arrays(3, seed=5))


def test_others_that_the_release_answers_are_refused(make_release, ensemble, members, others):
    """Half of the queries are given as members, the other half as others: both were asked."""
    release = make_release(arrays=members, seed=0)
    half = members.rows(members.ids[:20])
    rest = members.rows(members.ids[20:]).beside(others)
    with pytest.raises(InvalidValueError, match=r"20 of the 100 others are in .*case-20, …"):
        match(release, ensemble, half, rest)


def test_progress_counts_every_image_and_network(make_release, ensemble, members, others):
    counted = []
    match(make_release(arrays=members, seed=0), ensemble, members, others, counted.append)
    assert sum(counted) == 3 * 120


def test_a_few_found_for_sure_are_above_what_is_allowed_too():
    """An area near a half, and a fifth of the members named without one false alarm."""
    rng = np.random.default_rng(0)
    members = np.r_[np.full(60, 100.0), rng.standard_normal(240)]
    roc = Roc.of(members, rng.standard_normal(1000))
    assert roc.auc < allowed_auc(0.5)
    said = Finding("membership", "digest", roc, "image", 0.5).words()
    assert any("has a bug" in sentence for sentence in said)
    assert not any("has a bug" in sentence for sentence in Finding("", "", roc, "image", 3).words())


SHORT = TrainingSettings(steps=2, batch_size=4, save_every=2)


def discs(count, seed, prefix, per_person=2):
    rng = np.random.default_rng(seed)
    row, column = np.mgrid[:32, :32]
    masks = np.zeros((count, 1, 32, 32), dtype=np.uint8)
    for mask in masks:
        y, x = rng.uniform(8, 24, 2)
        mask[0] = np.hypot(row - y, column - x) < rng.uniform(4, 9)
    images = (rng.integers(0, 100, masks.shape) + 130 * masks).astype(np.uint8)
    ids = tuple(f"{prefix}-{number}" for number in range(count))
    people = {name: f"{prefix} person {n // per_person}" for n, name in enumerate(ids)}
    return Arrays(ids, images, masks, prefix, patients=people)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """An initialisation, two teachers, queries and a pool."""
    folder = tmp_path_factory.mktemp("site")
    cohorts = {"north": discs(8, 1, "north"), "south": discs(8, 2, "south")}
    architecture = UNetArchitecture(in_channels=1, base_channels=8)
    initialise(folder / "init", architecture, seed=0, size=(32, 32))
    for name, arrays in cohorts.items():
        train(folder / name, folder / "init", arrays, SHORT, name=name)
    ensemble = load_ensemble([folder / name for name in cohorts], folder / "init")
    return folder, cohorts, ensemble, discs(6, 3, "query"), discs(8, 4, "other")


def released(site, name, **choices):
    folder, _, ensemble, asked, _ = site
    queries = Queries.of(asked)
    plan = ensemble.plan(queries, "honest", epsilon=8, **choices)
    return create(folder / name, ensemble, queries, plan, seed=1, not_private=True)


def test_what_is_left_without_noise_is_the_sites_own(site):
    folder, _, ensemble, asked, _ = site
    release = released(site, "clear", allocation="none")
    target = Target.of(release, asked)
    own = noiseless_rows(release, load_ensemble([folder / "north"]), asked).ravel()
    # In units of the rounding that is all the noise there is: uniform, at most sqrt 3 of them.
    rest = target.part(ensemble, "north") - own / target.noise
    assert np.abs(rest).max() < 3**0.5 * (1 + 1e-6)
    assert target.features([folder / "north"])[0] == pytest.approx(own / target.noise)
    with pytest.raises(InvalidValueError, match="no teacher of 'east'"):
        target.part(ensemble, "east")


def test_halves_are_even_for_everybody(site):
    _, cohorts, _, _, others = site
    pool = Pool.of_both(cohorts["north"], others)
    assert len(pool.patients) == 8
    halves = pool.halves(8, seed=0)
    assert (halves.sum(axis=0) == 4).all()
    assert (halves.sum(axis=1) == 4).all()
    assert np.array_equal(halves[:4], ~halves[4:])
    assert not np.array_equal(halves, pool.halves(8, seed=1))
    assert len(pool.images(pool.patients[:2])) == 4
    with pytest.raises(InvalidValueError, match="must be even"):
        pool.halves(5, seed=0)


@pytest.mark.parametrize("allocation", ["none", "canal"])
def test_from_shadows_to_a_finding(site, allocation, monkeypatch):
    folder, cohorts, ensemble, asked, others = site
    pool = Pool.of_both(cohorts["north"], others)
    halves = pool.halves(8, seed=0)
    told = []
    places = (folder / "shadows", folder / "init", pool, halves, SHORT)
    networks = train_shadows(*places, lambda number, progress: told.append(number))
    assert len(set(networks)) == 8
    first = {path: (path / "weights.safetensors").stat().st_mtime_ns for path in networks}
    monkeypatch.setattr(
        "canal.learning.runs.fit", lambda *a, **k: pytest.fail("trained a second time")
    )
    assert train_shadows(*places) == networks
    assert first == {path: (path / "weights.safetensors").stat().st_mtime_ns for path in networks}
    release = released(site, allocation, allocation=allocation)
    target = Target.of(release, asked)
    shadows = Shadows(target.features(networks), halves)
    passed = []
    found = attack_patients(target, ensemble, "north", pool, shadows, passed.append)
    assert sum(passed) == len(asked.ids)  # of the one other teacher
    plain = json.loads(json.dumps(found.to_json()))
    assert (plain["members"], plain["others"]) == (4, 4)
    assert (plain["allowed"] is None) == (allocation == "none")
    assert plain["baseline"]["attack"] == "plain distance attack"
    assert "LiRA, 8 shadows" in plain["attack"]
    low, high = plain["control"]["auc_interval"]
    assert low <= plain["control"]["auc"] <= high
    assert shadows_module.train is train


@pytest.mark.parametrize(("leak", "allocation"), [(0, "canal"), (40, "canal"), (40, "none")])
def test_an_attack_tells_what_it_can_do_without_noise(site, leak, allocation):
    """A planted leak of so many deviations of the noise, among chance of one; then none at all."""
    target = Target.of(released(site, f"told-{leak}-{allocation}", allocation=allocation), site[3])
    rng = np.random.default_rng(leak)
    first = np.array([rng.permutation(np.arange(6) < 3) for _ in range(16)])
    members = np.concatenate([first, ~first])
    moves = rng.standard_normal((6, len(target.noise)))
    moves *= leak / np.linalg.norm(moves, axis=1, keepdims=True)
    chance = rng.standard_normal((32, len(target.noise)))
    found = attack_canaries(target, Shadows(members @ moves + chance, members))
    words, (low, high) = found.words(), found.control.auc_interval
    assert (found.mu is None) == (allocation == "none")
    assert "membership of 6 canaries (LiRA, 32 shadows)" in found.attack
    if leak:
        assert low > 0.95
        assert any(said.startswith("Without noise the same attack has an AUC of") for said in words)
        # More than the accounting allows: who plants that into a release has a bug.
        assert any("The attack is above that" in said for said in words) == (allocation != "none")
    else:
        assert low < 0.5 < high
        assert any(said.startswith("The attack shows nothing: even without") for said in words)
        assert NOTHING in words
        assert not any("The attack is above that" in said for said in words)


def test_two_folders_may_both_have_a_patient_one():
    one, two = discs(4, 1, "a"), discs(4, 2, "b")
    same = [replace(each, patients=dict.fromkeys(each.ids, "1")) for each in (one, two)]
    pool = Pool.of_both(*same)
    assert pool.patients == ("cohort 1", "outside 1")
    assert pool.members == ("cohort 1",)
    assert pool.images(pool.members) == one.ids


def test_near_identical_images_are_of_one_patient():
    """A twin in another shadow would hide both from the attack."""
    one, two = discs(6, 1, "a", per_person=1), discs(6, 2, "b", per_person=1)
    images = one.images.copy()
    images[4] = np.minimum(images[1] + 1, 255)
    pool = Pool.of_both(replace(one, images=images), two)
    assert len(pool.patients) == 11
    assert pool.images(["cohort a person 1"]) == ("a-1", "a-4")
    assert len(Pool.of_both(one, two).patients) == 12


def test_who_cannot_be_in_a_pool():
    one, two = discs(4, 1, "a"), discs(4, 2, "b")
    with pytest.raises(InvalidValueError, match="1 images have none"):
        Pool.of_both(one, replace(two, unlabelled=frozenset({"b-0"})))
    with pytest.raises(InvalidValueError, match="4 of the outsiders' images are the cohort's own"):
        Pool.of_both(one, replace(one, ids=two.ids))
