"""A course: where its initialisation comes from."""

import json
from dataclasses import replace

import pytest

from canal.experiments.cell import Places
from canal.experiments.course import Course
from canal.models import checkpoint
from canal.teachers.settings import TrainingSettings

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
