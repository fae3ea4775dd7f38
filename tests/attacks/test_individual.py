"""Individual privacy loss: what one real patient moved, exactly; and where such figures may lie."""

import copy
import dataclasses
import math

import numpy as np
import pytest

from canal.attacks.individual import check_place, exchange, loss_of_patient
from canal.attacks.view import passes
from canal.errors import InvalidValueError
from canal.features.queries import Queries
from canal.release.manifest import MANIFEST


def moved(ensemble, networks, site, amount):
    """The same teachers, but that of one site is a little different."""
    import torch

    from canal.features.ensemble import Ensemble, Teacher
    from canal.learning.networks import Tap, weights_digest

    network = copy.deepcopy(networks[site])
    with torch.no_grad():
        next(network.parameters()).mul_(1 - amount)
        network[0].bias.add_(amount)
    teacher = Teacher(site, Tap(network, "1"), weights_digest(network))
    return exchange(ensemble, Ensemble((teacher,), ensemble.initialisation))


@pytest.fixture(scope="module")
def queries(make_arrays):
    return Queries.of(make_arrays())


def plainly(release, one, other, queries):
    """The same mu in floating point, query by query and channel by channel."""
    total = 0.0
    sigma = release.manifest.mechanism["sigma"]
    for batch in queries.batches():
        means = []
        for ensemble in (one, other):
            mean = 0.0
            for teacher in ensemble.teachers:
                features = teacher.tap.features(batch.images).double().numpy()
                chosen = np.maximum(features[:, release.channels], 0)
                norms = np.sqrt(np.square(chosen).sum(axis=(2, 3)))
                mean = mean + chosen / np.maximum(norms, release.caps)[..., None, None] / 3
            means.append(mean)
        apart = np.square(means[0] - means[1]).sum(axis=(0, 2, 3))
        total += (apart / np.square(sigma)).sum()
    return math.sqrt(total)


@pytest.mark.parametrize("site", ["north", "west"])
def test_it_is_the_distance_over_the_noise(make_release, ensemble, networks, queries, site):
    release = make_release(seed=0)
    other = moved(ensemble, networks, site, 0.3)
    found = loss_of_patient(release, ensemble, other, queries)
    assert found.cohort == site
    assert found.mu == pytest.approx(plainly(release, ensemble, other, queries), rel=1e-2)
    assert 0 < found.mu < found.allowed
    assert found.holds
    assert 0 < found.epsilon < 8
    assert found.to_json()["holds"]
    assert "the accounting allows the worst patient 8" in found.words()


def test_a_patient_who_moves_little_pays_little(make_release, ensemble, networks, queries):
    release = make_release(seed=0)
    costs = [
        loss_of_patient(release, ensemble, moved(ensemble, networks, "south", amount), queries).mu
        for amount in (0.01, 0.1, 0.5)
    ]
    assert costs == sorted(costs)


def test_statistics_with_noise_are_part_of_it(make_release, ensemble, networks, queries):
    """More than the features alone, exactly by what moved the two sums."""
    from canal.attacks.view import noiseless_rows
    from canal.features.statistics import sum_up
    from canal.release.verification import check_statement

    release = make_release("paper", seed=0)
    other = moved(ensemble, networks, "north", 0.3)
    found = loss_of_patient(release, ensemble, other, queries)
    sigma = np.repeat(release.manifest.mechanism["sigma"], release.plan.positions)
    rows = [noiseless_rows(release, each, queries.arrays) for each in (ensemble, other)]
    square = np.square((rows[0] - rows[1]) / sigma).sum()
    calibrated = check_statement(release.manifest)
    means = []
    for each in (ensemble, other):
        networks_of = [(teacher.cohort, teacher.tap) for teacher in each.teachers]
        sums = sum_up(calibrated, ["caps", "importance"], queries, networks_of)
        means.append([np.array(total.mean()) for total in sums])
    for name, one, two in zip(("caps", "importance"), *means, strict=True):
        square += np.square((one - two) / calibrated.sigma(name)[0]).sum()
    # The attack computes it in floating point, a release on a lattice.
    assert found.mu == pytest.approx(math.sqrt(square), rel=1e-5)
    assert found.mu > np.linalg.norm((rows[0] - rows[1]) / sigma) * 1.001
    assert found.holds


@pytest.mark.parametrize(
    ("preset", "times"), [("honest", 2), ("paper", 4)], ids=["public", "private"]
)
def test_progress_counts_every_image_and_network(
    make_release, ensemble, networks, queries, preset, times
):
    """Twice all teachers and queries; twice again where caps and importance are made too."""
    release = make_release(preset, seed=0)
    counted = []
    loss_of_patient(
        release, ensemble, moved(ensemble, networks, "north", 0.3), queries, counted.append
    )
    assert sum(counted) == times * 3 * 24 == 2 * passes(release.plan)


def test_without_noise_it_is_infinite(make_release, ensemble, networks, queries):
    release = make_release(allocation="none")
    found = loss_of_patient(release, ensemble, moved(ensemble, networks, "north", 0.3), queries)
    assert found.mu == math.inf
    assert found.to_json()["mu"] is None
    assert "there is no noise" in found.words()


def test_one_teacher_must_differ(make_release, ensemble, networks, queries):
    release = make_release(seed=0)
    with pytest.raises(InvalidValueError, match="differ in 0 teachers"):
        loss_of_patient(release, ensemble, ensemble, queries)
    two = moved(moved(ensemble, networks, "north", 0.1), networks, "south", 0.1)
    with pytest.raises(InvalidValueError, match="differ in 2 teachers"):
        loss_of_patient(release, ensemble, two, queries)
    turned = dataclasses.replace(ensemble, teachers=ensemble.teachers[::-1])
    with pytest.raises(InvalidValueError, match="in this order"):
        loss_of_patient(release, ensemble, turned, queries)


def test_all_queries_are_needed(make_release, ensemble, networks, make_arrays):
    few = Queries.of(make_arrays(5))
    with pytest.raises(InvalidValueError, match="answers 24 queries, not these 5"):
        loss_of_patient(
            make_release(seed=0), ensemble, moved(ensemble, networks, "north", 0.1), few
        )


def test_a_teacher_of_another_cohort_is_refused(ensemble):
    from canal.features.ensemble import Ensemble

    stranger = dataclasses.replace(ensemble.teachers[0], cohort="east")
    with pytest.raises(InvalidValueError, match="must be of one of north, south, west"):
        exchange(ensemble, Ensemble((stranger,), ensemble.initialisation))
    with pytest.raises(InvalidValueError, match="start from"):
        exchange(ensemble, Ensemble(ensemble.teachers[:1], "another"))


@pytest.mark.slow
def test_a_teacher_trained_with_and_without_one_patient(tmp_path):
    """From training to mu, same seed: the canary costs something, and less than is allowed.

    Trained twice on the same cohort, a teacher is the same to the bit: no difference would be
    anything but the patient's.
    """
    from canal.data.arrays import Arrays
    from canal.data.synthetic import generate
    from canal.features.ensemble import load_ensemble
    from canal.features.plan import Plan
    from canal.features.release import create
    from canal.learning.networks import UNetArchitecture
    from canal.learning.settings import TrainingSettings
    from canal.learning.teacher import initialise, train
    from canal.privacy import Participants

    made = generate(48, size=(32, 32))
    everyone = Arrays(made.ids, made.images, made.masks, "all")
    settings = TrainingSettings(steps=20, batch_size=4, save_every=20)
    architecture = UNetArchitecture(in_channels=made.images.shape[1], base_channels=8)
    initialise(tmp_path / "init", architecture, seed=0, size=(32, 32))

    def teach(name, site, ids):
        cohort = everyone.rows(ids)
        train(tmp_path / name, tmp_path / "init", cohort, settings, name=site)
        return tmp_path / name

    north, south = list(made.ids[:12]), list(made.ids[12:24])
    folders = [teach("north", "north", north), teach("south", "south", south)]
    ensemble = load_ensemble(folders, tmp_path / "init")
    queries = Queries.of(everyone.rows(made.ids[24:]))
    plan = Plan.preset(
        "honest",
        epsilon=8.0,
        participants=Participants(2, 24),
        channels=128,
        grid=(2, 2),
        trained_initialisation=ensemble.trained_initialisation,
    )
    release = create(tmp_path / "release", ensemble, queries, plan, seed=0)
    same = load_ensemble([teach("again", "north", north)])
    assert same.teachers[0].digest == ensemble.teachers[0].digest
    other = load_ensemble([teach("without", "north", north[1:])])
    found = loss_of_patient(release, ensemble, exchange(ensemble, other), queries)
    assert found.cohort == "north"
    assert 0 < found.mu <= found.allowed
    assert found.holds


def test_no_way_leads_into_a_release(tmp_path):
    release, kept = tmp_path / "run" / "release", tmp_path / "kept"
    (release / "own.private").mkdir(parents=True)
    kept.mkdir()
    (release / MANIFEST).touch()
    (tmp_path / "run" / "mine.private").mkdir()
    (release / "link.json").symlink_to(kept / "figures.json")
    for fine in (kept / "figures.json", tmp_path / "run" / "mine.private" / "figures.json"):
        check_place(fine, release, None)
    for place in (release / "x.json", release / "own.private" / "x.json", release / "link.json"):
        with pytest.raises(InvalidValueError, match="--private"):
            check_place(place, release, None)
