"""Public inputs that are not public: found by whoever computes them again, and by nobody else.

What is forged here is forged well: every number that follows from it is derived anew, the card and
every digest too, so that all other checks hold.
"""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest

from budgets import just_enough
from canal.errors import CheckpointError
from canal.features.mechanism import FeatureMechanism, TeacherSum
from canal.features.release import create
from canal.features.statistics import Statistics, sum_up
from canal.features.verification import TOLERANCE
from canal.learning.networks import BOTTLENECK, Tap
from canal.privacy import Ledger
from canal.release.card import render
from canal.release.recompute import PublicInputs
from canal.release.statement import Facts, state
from canal.release.verification import verify
from victim import Victim

NAMES = ("initialisation", "queries", "caps", "importance", "allocation")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, ensemble, queries, make_plan):
    """A private release whose caps and importance are public."""
    folder = tmp_path_factory.mktemp("recomputed")
    ledger, plan = Ledger(folder / "ledger"), make_plan()
    just_enough(ledger, plan, ensemble.cohorts)
    create(folder / "release", ensemble, queries, plan, ledger=ledger)
    return Victim(folder / "release", render)


@pytest.fixture
def victim(whole):
    """The same, healed after each test."""
    yield whole
    whole.heal()


@pytest.fixture(scope="module")
def public(checkpoints, arrays):
    """What every reader may hold."""
    return PublicInputs(checkpoints.init, arrays)


def looks(folder, public):
    return {check.what: check for check in verify(folder, None, public)}


def failed(folder, public=None):
    return [check.what for check in verify(folder, None, public) if check.passed is False]


def restated(victim, release, **values):
    """Publish other caps or importance, with all that follows from them."""
    content = victim.content()
    for name, numbers in values.items():
        content["statistics"][name]["values"] = [float(value) for value in numbers]
    statistics = Statistics.from_json(content["statistics"])
    calibrated = release.plan.calibrate(statistics.weights(release.plan))
    mechanism = TeacherSum.of(calibrated, statistics)
    facts = Facts.of(release.plan, content["noise"], content["participants"]["cohorts"])
    said = json.loads(json.dumps(state(calibrated, facts)))
    victim.forge(content | {"mechanism": mechanism.to_json(), "statement": said})


def read(release, network, queries):
    """Caps and importance of any network, as if it were public."""
    names = ["caps", "importance"]
    sums = sum_up(release.plan.calibrate(), names, queries, [("it", Tap(network, BOTTLENECK))])
    return {total.name: np.array(total.mean()) for total in sums}


@pytest.fixture(scope="module")
def release(whole):
    from canal.features.store import Release

    return Release.open(whole.folder)


def test_what_is_public_is_computed_again_to_the_last_bit(victim, public):
    found = looks(victim.folder, public)
    assert [found[name].passed for name in NAMES] == [True] * 5
    for name in ("caps", "importance"):
        assert found[name].numbers == {"difference": 0.0, "tolerance": TOLERANCE[name]}
        assert "to the last bit" in found[name].detail
    # A reader who has none of it is told nothing about it here.
    assert not set(NAMES) & set(looks(victim.folder, None))


@pytest.mark.parametrize("name", ["caps", "importance"])
def test_numbers_of_a_teacher_that_nobody_paid_for(
    name, victim, release, teachers, queries, public
):
    restated(victim, release, **{name: read(release, teachers["north"], queries)[name]})
    assert failed(victim.folder) == []  # nothing contradicts it
    assert failed(victim.folder, public) == [name, "allocation"]
    found = looks(victim.folder, public)[name]
    assert "may be patients, and nobody was charged" in found.detail
    assert found.numbers["difference"] > 10 * TOLERANCE[name]


def test_a_teacher_behind_the_code_that_publishes(
    tmp_path, ensemble, queries, make_plan, monkeypatch, public
):
    """The release is made as always, and its statistics come from the network of a hospital."""
    teacher = ensemble.teachers[0].tap
    real = FeatureMechanism.settle
    monkeypatch.setattr(
        FeatureMechanism, "settle", lambda self, sums: real(replace(self, shared=teacher), sums)
    )
    create(tmp_path / "r", ensemble, queries, make_plan(), seed=1)
    assert failed(tmp_path / "r") == []
    assert failed(tmp_path / "r", public) == ["caps", "importance", "allocation"]


@pytest.mark.parametrize("name", ["caps", "importance"])
def test_last_bits_are_another_machines_and_more_is_not(name, victim, release, public):
    """A single channel that is off by more than the tolerance is found."""
    values = np.array(release.manifest.statistics[name]["values"])
    size = np.sqrt(np.square(values).mean())
    for part, passes in ((0.9, True), (1.1, False)):
        other = values.copy()
        other[np.argmax(values)] += part * TOLERANCE[name] * size
        restated(victim, release, **{name: other})
        found = looks(victim.folder, public)
        assert found[name].passed is passes
        assert found["allocation"].passed is passes
        assert found[name].numbers["difference"] == pytest.approx(part * TOLERANCE[name], rel=1e-3)


def test_a_network_with_other_bits_in_its_kernels_is_within_the_tolerance(
    release, initialisation, queries
):
    """In 64-bit floats, the most that order and kernels can be apart."""
    network = copy.deepcopy(initialisation).double()

    class Wide(Tap):
        def features_and_energy(self, images, masks, *rest):
            return super().features_and_energy(images.double(), masks.double(), *rest)

    names = ["caps", "importance"]
    wide = sum_up(release.plan.calibrate(), names, queries, [("it", Wide(network, BOTTLENECK))])
    for total in wide:
        stated = np.array(release.manifest.statistics[total.name]["values"])
        apart = np.abs(np.array(total.mean()) - stated).max() / np.sqrt(np.square(stated).mean())
        assert 0 < apart < TOLERANCE[total.name] / 3


def test_another_initialisation_says_nothing_about_caps(
    victim, public, tmp_path, checkpoints, arrays
):
    from canal.learning import checkpoint
    from canal.learning.networks import UNetArchitecture, weights_digest

    made = checkpoint.describe(checkpoints.init)
    other = UNetArchitecture.from_json(made.architecture).build(seed=1)
    checkpoint.save(tmp_path / "i", other, replace(made, initialisation=weights_digest(other)))
    found = looks(victim.folder, PublicInputs(tmp_path / "i", arrays))
    assert found["initialisation"].passed is False
    assert found["initialisation"].numbers == {
        "expected": made.initialisation,
        "found": weights_digest(other),
    }
    assert found["caps"].passed is found["importance"].passed is None
    with pytest.raises(CheckpointError, match="no initialisation"):
        verify(victim.folder, None, PublicInputs(checkpoints.teachers[0], arrays))


def test_images_of_the_release(victim, public, arrays):
    """Others in the folder do no harm; one that is missing does, and so do more of one person."""
    shuffled = arrays.rows(tuple(reversed(arrays.ids)))
    assert looks(victim.folder, replace(public, arrays=shuffled))["caps"].passed
    found = looks(victim.folder, replace(public, arrays=arrays.rows(arrays.ids[1:])))
    assert "1 of the 40 queries" in found["queries"].detail
    assert found["caps"].passed is None
    same = replace(arrays, patients=dict.fromkeys(arrays.ids[:2], "one person"))
    found = looks(victim.folder, replace(public, arrays=same))
    assert "one person is on 2 of the images, and the plan counts 1" in found["queries"].detail


def test_other_images_under_the_same_names(victim, public, arrays):
    dark = replace(arrays, images=arrays.images // 2)
    assert {"caps", "importance"} <= set(failed(victim.folder, replace(public, arrays=dark)))


def test_an_initialisation_that_saw_the_queries(victim, public, checkpoints, tmp_path, arrays):
    from canal.learning import checkpoint

    network, made = checkpoint.load(checkpoints.init)
    checkpoint.save(tmp_path / "i", network, replace(made, notes=made.notes | {"trained": True}))
    found = looks(victim.folder, PublicInputs(tmp_path / "i", arrays))
    assert "was trained on the recipient's images" in found["initialisation"].detail


def test_what_was_paid_for_cannot_be_computed_again_and_says_so(
    tmp_path, ensemble, queries, make_plan, public
):
    create(tmp_path / "r", ensemble, queries, make_plan("paper"), seed=1)
    found = looks(tmp_path / "r", public)
    for name in ("caps", "importance"):
        assert found[name].passed is None
        assert "cannot be recomputed: read from the teachers, with noise of" in found[name].detail
