"""The patient attack in a real release: what is left of one site, and halves of a pool."""

import json
from dataclasses import replace

import numpy as np
import pytest

from canal.attacks import shadows as shadows_module
from canal.attacks.finding import NOTHING
from canal.attacks.lira import Shadows
from canal.attacks.patients import Target, attack_canaries, attack_patients
from canal.attacks.shadows import Pool, train_shadows
from canal.attacks.view import noiseless_rows
from canal.data.arrays import Arrays
from canal.errors import InvalidValueError
from canal.features.ensemble import load_ensemble
from canal.features.queries import Queries
from canal.features.release import create
from canal.learning.networks import UNetArchitecture
from canal.learning.settings import TrainingSettings
from canal.learning.teacher import initialise, train

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
