"""A course: where its initialisation comes from."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from canal.experiments import course
from canal.experiments.cell import Places
from canal.experiments.course import Course
from canal.experiments.taught import Lesson, PupilCell
from canal.gradients.patients import Patients
from canal.learning import checkpoint
from canal.learning.prediction import predict
from canal.learning.settings import TrainingSettings
from canal.learning.teacher import labelled_by

TINY = Course(
    "dermoscopy",
    size=32,
    recipient=4,
    base_channels=8,
    training=TrainingSettings(steps=4, batch_size=4, learning_rate=1e-3),
    start=2,
    invented=24,
    deform=1.0,
)


@pytest.fixture
def places(tmp_path):
    return Places(tmp_path, tmp_path, tmp_path)


def training(init):
    return json.loads((init / "settings.json").read_text())


def test_an_initialisation_settles_after_it_was_bent(places):
    before = TINY.on(places, lambda *told: None).init
    settled = replace(TINY, settle=3).on(places, lambda *told: None)
    assert (training(before)["training"]["steps"], training(before)["training"]["deform"]) == (2, 1)
    found = training(settled.init)
    assert found["after"] == checkpoint.describe(before).initialisation
    assert found["training"]["steps"] == 3
    assert found["training"]["learning_rate"] == 2.5e-4
    assert "deform" not in found["training"]
    assert found["data"] == settled.part("recipient").digest


def test_real_patients_are_told_by_their_looks(places, monkeypatch):
    """Those of sites, where nothing else says who they are; the initialisation is the same."""
    monkeypatch.setattr(course, "joined", lambda arrays: ["somebody"] * len(arrays.ids))
    by_name = TINY.on(places, lambda *told: None)
    by_looks = replace(TINY, people=True).on(places, lambda *told: None)
    assert by_looks.init == by_name.init
    assert by_looks.split.digest == by_name.split.digest
    site = by_name.sites[0]
    assert len(Patients(site, by_looks.part(site))) == 1 < len(Patients(site, by_name.part(site)))
    assert by_looks.part("recipient").patients == by_name.part("recipient").patients


def test_pooled_at_length_goes_on_from_the_initialisation(places):
    cell = course.PooledCell(replace(TINY, settle=3))
    found = cell.make(places, lambda *told: None)
    runs = {name: training(places.runs / cell.slug / name) for name in ("bent", "settled")}
    everybody = cell.scene.on(places, lambda *told: None).part("pooled").digest
    assert [each["data"] for each in runs.values()] == [everybody] * 2
    assert [each["training"]["steps"] for each in runs.values()] == [2, 3]
    assert 0 <= found["dice"] <= 1
    # Stopped between the two, or after, it is the same network.
    assert cell.make(places, lambda *told: None)["images"] == found["images"]


def test_an_initialisation_labels_more_images_and_then_settles(places):
    scene = replace(TINY, start=4, settle=3, unlabelled=5)
    stage = scene.on(places, lambda *told: None)
    more = replace(scene, settle=0).on(places, lambda *told: None)
    first = replace(scene, settle=0, unlabelled=0).on(places, lambda *told: None).init
    assert training(stage.init)["after"] == checkpoint.describe(more.init).initialisation
    found = training(more.init)
    assert found["after"] == checkpoint.describe(first).initialisation
    assert (found["training"]["steps"], found["training"]["deform"]) == (2, 1.0)
    said = labelled_by(first, stage.unlabelled(5))
    assert said.labelled.all()
    assert (said.masks == predict(checkpoint.load(first)[0], said)).all()
    assert found["data"] == stage.part("recipient").beside(said).digest


@pytest.mark.slow
def test_two_cells_that_want_one_initialisation_make_it_once(tmp_path):
    """In processes of their own, as `--jobs 2` has them; either one waits for the other."""
    here = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    asked = [sys.executable, "-c", _MAKE, str(tmp_path)]
    made = [subprocess.Popen(asked, stdout=subprocess.PIPE, text=True, env=here) for _ in range(2)]
    told = [each.communicate(timeout=240)[0].split() for each in made]
    assert [each.returncode for each in made] == [0, 0]
    assert told[0][0] == told[1][0]
    assert sorted(len(each) for each in told) == [1, 2]  # one of them was told of progress


_MAKE = """
import sys
from dataclasses import replace
from pathlib import Path
from canal.experiments.cell import Places
from canal.learning import checkpoint
from experiments.test_course import TINY
told, place = [], Path(sys.argv[1])
stage = replace(TINY, start=30).on(Places(place, place, place), lambda *each: told.append(each))
print(checkpoint.describe(stage.init).initialisation, *(["trained"] if told else []))
"""


@pytest.mark.parametrize("queries", [0, 5])
def test_a_student_of_adapters_reads_the_recipients_images_and_public_ones(places, queries):
    cell = PupilCell(TINY, Lesson(8.0, 2, ("head",), directions=8), queries=queries)
    cell.make(places, lambda *told: None)
    notes = checkpoint.describe(places.runs / cell.slug / "student").notes
    assert (notes["images"], notes["labelled"]) == (TINY.recipient + queries, TINY.recipient)
