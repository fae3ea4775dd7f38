"""The teachers of one release: what belongs together, and what would count a patient twice."""

import shutil
from dataclasses import replace

import pytest
import torch

from canal.data import overlap
from canal.errors import CheckpointError, ReleaseError
from canal.features.ensemble import Ensemble, Teacher, load_ensemble
from canal.features.queries import Queries
from canal.features.release import Options, create
from canal.learning import checkpoint
from canal.learning.networks import Tap, UNetArchitecture, weights_digest
from canal.privacy import Participants

SITES = ("north", "south", "west")


@pytest.fixture
def again(tmp_path, checkpoints):
    """The checkpoint of `north` once more, with something changed."""

    def make(network=None, notes=None, **changes):
        own, description = checkpoint.load(checkpoints.teachers[0])
        if network is not None:
            own = network
        elif changes or notes:
            with torch.no_grad():
                next(own.parameters()).add_(1e-3)
        notes = description.notes | {"site": "east"} if notes is None else notes
        changes = {"data": "images of east"} | changes
        checkpoint.save(tmp_path / "east", own, replace(description, notes=notes, **changes))
        return tmp_path / "east"

    return make


def test_checkpoints_become_an_ensemble(checkpoints, ensemble):
    loaded = load_ensemble(checkpoints.teachers, checkpoints.init)
    assert loaded.cohorts == ensemble.cohorts == SITES
    assert [t.digest for t in loaded.teachers] == [t.digest for t in ensemble.teachers]
    assert loaded.initialisation == ensemble.initialisation
    assert loaded.images == (1, 32, 32)
    assert weights_digest(loaded.shared.network) == loaded.initialisation
    assert loaded.shape(1, (32, 32)) == (128, (2, 2))
    images = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    for mine, theirs in zip(loaded.teachers, ensemble.teachers, strict=True):
        assert torch.equal(mine.tap.features(images), theirs.tap.features(images))
    assert load_ensemble(checkpoints.teachers).shared is None


def test_teachers_bring_the_digests_of_their_cohorts_where_there_are_any(
    tmp_path, checkpoints, arrays
):
    known = shutil.copytree(checkpoints.teachers[0], tmp_path / "north")
    overlap.write(known, overlap.digests_by_patient(arrays).values(), private=True)
    first, second = load_ensemble([known, checkpoints.teachers[1]]).teachers
    assert set(first.patients) == set(overlap.digests_by_patient(arrays).values())
    assert second.patients is None


def test_one_cohort_cannot_speak_twice(checkpoints, again):
    both = [*checkpoints.teachers, again(notes={"site": "north"}, data="other images")]
    with pytest.raises(ReleaseError, match=r"share the name of the cohort.*one teacher for each"):
        load_ensemble(both)


def test_the_same_weights_are_told_to_the_operator_alone(
    checkpoints, again, queries, make_plan, tmp_path
):
    """Weights hang on patients, so no refusal may; nor may the folder say which were alike."""
    network, _ = checkpoint.load(checkpoints.teachers[0])
    twins = load_ensemble([*checkpoints.teachers[:2], again(network)], checkpoints.init)
    assert twins.alike == ((SITES[0], "east"),)
    told = []
    options = Options(on_alike=lambda *pair: told.append(pair))
    made = create(tmp_path / "r", twins, queries, make_plan(), seed=1, options=options)
    assert told == [(SITES[0], "east")]
    assert "alike" not in (made.path / "manifest.json").read_text()
    untrained, _ = checkpoint.load(checkpoints.init)
    still = load_ensemble([*checkpoints.teachers[:2], again(untrained)], checkpoints.init)
    assert still.alike == (("east", "the initialisation"),)


def test_the_same_images_cannot_speak_twice(checkpoints, again):
    """Two teachers of other names and weights, trained on the same cohort."""
    twin = again(data="images of north")
    with pytest.raises(ReleaseError, match=r"trained on the same images.*one teacher for each"):
        load_ensemble([*checkpoints.teachers, twin])


def test_another_initialisation_cannot_be_averaged(checkpoints, again):
    with pytest.raises(CheckpointError, match=r"east and .*differ in their initialisation.*`canal"):
        load_ensemble([*checkpoints.teachers, again(initialisation="f" * 64)])


def test_another_architecture_or_layer_or_size_cannot_be_averaged(checkpoints, again):
    other = UNetArchitecture(in_channels=1, base_channels=8, norm="group")
    folder = again(other.build(seed=1), architecture=other.to_json())
    with pytest.raises(CheckpointError, match="differ in their architecture"):
        load_ensemble([*checkpoints.teachers, folder])
    for what, value in (("tap", "down_3"), ("size", (64, 64))):
        with pytest.raises(CheckpointError, match=f"differ in their {what}"):
            load_ensemble([*checkpoints.teachers, again(**{what: value})])


def test_the_initialisation_is_no_teacher_and_a_teacher_no_initialisation(checkpoints):
    with pytest.raises(CheckpointError, match="is an initialisation, not a teacher; train one"):
        load_ensemble([*checkpoints.teachers, checkpoints.init])
    with pytest.raises(
        CheckpointError, match=r"is no initialisation; give the one that `canal init"
    ):
        load_ensemble(checkpoints.teachers[:2], checkpoints.teachers[2])


def test_a_folder_names_a_cohort_that_has_no_name(tmp_path, checkpoints, again):
    shutil.move(again(notes={"role": "teacher"}), tmp_path / "outpost")
    loaded = load_ensemble([*checkpoints.teachers, tmp_path / "outpost"])
    assert loaded.cohorts == (*SITES, "outpost")


def test_nobody_and_unlike_shapes_are_errors(ensemble):
    with pytest.raises(ReleaseError, match="at least one teacher"):
        Ensemble((), "initialisation")
    shallow = Teacher("east", Tap(ensemble.shared.network, "down_3"), "digest")
    odd = Ensemble((*ensemble.teachers, shallow), ensemble.initialisation)
    with pytest.raises(ReleaseError, match=r"different shapes .*all sites use one architecture"):
        odd.shape(1, (32, 32))


@pytest.mark.parametrize(
    ("choices", "arguments", "match"),
    [
        (
            {"participants": Participants(2, 40)},
            {"seed": 1},
            "2 teachers of different cohorts, but there are 3",
        ),
        ({"participants": Participants(3, 39)}, {"seed": 1}, "39 queries, but there are 40"),
        ({"grid": (4, 4)}, {"seed": 1}, r"of \(4, 4\), the teachers have 128 of \(2, 2\)"),
        ({"channels": 64}, {"seed": 1}, "64 channels .* the teachers have 128"),
        ({"unit": "image"}, {"seed": 1}, "--caps-source private"),
        ({"releases": 2}, {"seed": 1}, "made once"),
        ({"allocation": "none"}, {"seed": 1}, "--not-private"),
        ({}, {}, "charged to a ledger"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path, ensemble, queries, make_plan, choices, arguments, match
):
    with pytest.raises(ReleaseError, match=match):
        create(tmp_path / "r", ensemble, queries, make_plan(**choices), **arguments)
    assert not list(tmp_path.iterdir())


def test_more_images_of_a_person_than_the_plan_counts_are_refused(
    tmp_path, ensemble, arrays, make_plan
):
    queries = Queries.of(replace(arrays, patients=dict.fromkeys(arrays.ids[:4], "one person")))
    with pytest.raises(ReleaseError, match=r"counts 1 images .* has 4 .*--images-per-person"):
        create(tmp_path / "r", ensemble, queries, make_plan(), seed=1)


def test_public_statistics_need_the_initialisation(tmp_path, ensemble, queries, make_plan):
    with pytest.raises(ReleaseError, match="--init"):
        create(tmp_path / "r", replace(ensemble, shared=None), queries, make_plan(), seed=1)
