"""Rivals of adapters, in the cells of the comparison."""

import json
import math

import pytest
import torch

from canal.experiments import rivals
from canal.experiments.cell import Places, say_nothing
from canal.experiments.course import Course, CourseStage
from canal.experiments.rivals import EchoCell, PrivateTeachersCell, UnionCell
from canal.learning import checkpoint
from canal.learning.settings import TrainingSettings
from canal.rivals.dpsgd import PrivateSettings

SCENE = Course(
    "dermoscopy",
    size=32,
    recipient=4,
    base_channels=8,
    training=TrainingSettings(steps=2, batch_size=4),
    start=2,
    invented=24,
)
# So much noise that what was learned does not show.
SETTINGS = PrivateSettings(epsilon=0.5, epochs=1, rate=0.5, parts=("final_conv.*",))


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Weights of every network that DP-SGD trains for a cell, and where they began."""
    monkeypatch.setattr("canal.rivals.dpsgd._multiplier", lambda *asked: 100.0)
    train = rivals.dpsgd.train

    def run(kind):
        found, began = [], []

        def watched(network, *args, **more):
            began.append(network.final_conv.weight.detach().flatten().clone())
            made = train(network, *args, **more)
            found.append(made.final_conv.weight.detach().flatten().clone())
            return made

        monkeypatch.setattr(rivals.dpsgd, "train", watched)
        kind(SCENE, SETTINGS).make(Places(tmp_path, tmp_path, tmp_path), say_nothing)
        assert all(each.equal(began[0]) for each in began)
        return [after - began[0] for after in found]

    return run


def test_no_two_networks_have_the_same_noise(trained):
    """Else an ensemble could not average it, and one site's patients would show in another's.

    By chance, two of eight numbers each are so much alike once in ten thousand runs.
    """
    moved = [*trained(PrivateTeachersCell), *trained(UnionCell)]
    assert len(moved) == 4
    alike = torch.corrcoef(torch.stack(moved)) - torch.eye(4)
    assert float(alike.abs().max()) < 0.97


def test_the_same_cell_has_the_same_noise(trained):
    (one,), (other,) = trained(UnionCell), trained(UnionCell)
    assert one.equal(other)
    assert math.isfinite(float(one.sum()))


def test_an_echo_asks_no_patient(tmp_path, monkeypatch):
    """A student of the initialisation is a control: it has nothing from any site."""
    places, cell = Places(tmp_path, tmp_path, tmp_path), EchoCell(SCENE)
    stage = SCENE.on(places, say_nothing)
    start = checkpoint.describe(stage.init).initialisation
    asked, part = set(), CourseStage.part

    def watched(self, name):
        asked.add(name)
        return part(self, name)

    monkeypatch.setattr(CourseStage, "part", watched)
    found = cell.make(places, say_nothing)
    assert asked == {"recipient", "test"}
    assert 0 <= found["dice"] <= 1
    run = json.loads((tmp_path / cell.slug / "student" / "settings.json").read_text())
    assert (run["init"], run["said"]) == (start, {"networks": [start]})
