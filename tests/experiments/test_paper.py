"""All of docs/results.md on invented images, by the command; and what arms of a scene share."""

from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from canal.attacks.view import noiseless_rows, released_rows, spreads
from canal.errors import DataError
from canal.experiments import levers, table1
from canal.experiments.cell import Places, say_nothing
from canal.experiments.paper import EXPERIMENTS
from canal.experiments.preset import PRESETS
from canal.experiments.stage import Federation, check_data
from canal.experiments.students import Asked, NetworksCell, StudentCell, predict
from canal.features.store import Release
from typed import call, call_here

SMOKE = PRESETS["smoke"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`canal experiment all --smoke`, once for all tests here."""
    home = tmp_path_factory.mktemp("smoke")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANAL_CACHE", str(home / "cache"))
        patch.chdir(home)
        said = call(home, "experiment", "all", "--smoke", timeout=900)
        yield Places(home / "runs" / "data", home / "runs", home / "runs" / "smoke.jsonl"), said


def test_every_table_and_figure_is_made(made):
    places, said = made
    for page in (
        "| CANAL eps 8 | ",
        "| synthetic | 8 | ",
        "| K = 1 | K = 2 |",
        "| 10,000 | ",
        "at every step, Q = 2",
        "recipient synthetic",
        "| all together, K = 10 | ",
        "| as chosen | ",
        "| adapters eps 8 | ",
        "| adapters, fine-tuned eps 8 | ",
        "| 8 | adapters, fine-tuned | DP-SGD over the union, all weights | ",
    ):
        assert page in said
    for name in ("ensemble-size", "qualitative", "composition"):
        ET.parse(places.runs / "figures" / f"{name}.svg")  # noqa: S314  # our own
    assert (places.runs / "qualitative.png").is_file()


def test_a_second_run_makes_nothing(made, monkeypatch):
    places, said = made
    monkeypatch.setattr(StudentCell, "make", None)
    monkeypatch.setattr(NetworksCell, "make", None)
    for name, experiment in EXPERIMENTS.items():
        assert all(cell.is_there(places) for cell in experiment.cells(SMOKE)), name
        assert experiment.page(SMOKE, places) in said
        for file, drawn in experiment.figures(SMOKE, places).items():
            assert (places.runs / "figures" / file).read_text() == drawn


def test_arms_share_all_but_one_thing(made):
    """Split, teachers, caps, channels and draws: noise over its sigma is the same in releases."""
    places, _ = made
    arms = table1.students(SMOKE.scenes("synthetic", 1)[0], SMOKE.epsilons)
    stage = arms["alone"].scene.on(places, say_nothing)
    drawn, published = [], []
    for name in ("uniform 8", "canal 8"):
        release = Release.open(places.runs / arms[name].slug / "release")
        clear = noiseless_rows(release, stage.ensemble, stage.part("recipient"))
        drawn.append((released_rows(release) - clear) / spreads(release))
        published.append((release.channels.tolist(), release.caps.tolist()))
    assert published[0] == published[1]
    assert np.corrcoef(drawn[0].ravel(), drawn[1].ravel())[0, 1] > 0.999


def test_an_ensemble_votes_with_probabilities(made):
    import torch

    places, _ = made
    test = SMOKE.scenes("synthetic", 1)[0].on(places, say_nothing).part("test")

    class Sure(torch.nn.Module):
        def __init__(self, logit):
            super().__init__()
            self.logit = logit

        def forward(self, images):
            return torch.full_like(images[:, :1], self.logit)

    assert not predict([Sure(5.0), Sure(-0.1), Sure(-5.1)], test).any()
    # Two of three say no, but the third is surer.
    assert predict([Sure(5.0), Sure(-0.1), Sure(-0.2)], test).all()
    assert predict([Sure(5.0), Sure(0.3), Sure(-4.9)], test).all()


def test_signal_is_what_it_says(made):
    """Less noise is more signal; to shrink what one hears is not."""
    places, _ = made
    scene = SMOKE.scenes("synthetic", 1)[0]
    lever = levers.LEVERS[levers.PAPERS].student(scene, "patient", 8.0)
    shrunk, many = (
        levers.LEVERS[name].student(scene, "patient", 8.0).result(places)["release"]["signal_db"]
        for name in ("Wiener", "K = 10")
    )
    patient, paper = (
        cell.result(places)["release"] for cell in (lever, StudentCell(scene, "release", Asked()))
    )
    assert shrunk == pytest.approx(patient["signal_db"], abs=3)
    assert min(many, paper["signal_db"]) > patient["signal_db"] + 2
    assert patient["epsilon"]["patient"] < 8 < paper["epsilon"]["patient"]


def test_hospitals_with_the_same_names_are_pooled(places):
    scene = Federation("synthetic", size=32, recipient=6, test=0.5, others=("synthetic",))
    stage = scene.on(places, say_nothing)
    parts = {name: set(stage.part(name).ids) for name in ("test", "recipient", "synthetic")}
    assert not parts["test"] & parts["recipient"]
    assert len(stage.part("pooled").ids) == len(parts["recipient"]) + len(parts["synthetic"])


def test_other_data_are_refused(places, tmp_path):
    check_data(places)
    check_data(places)
    with pytest.raises(DataError, match="holds none of the data sets"):
        check_data(replace(places, data=tmp_path / "nothing"))
    next((places.data / "synthetic").rglob("*.png")).write_bytes(b"another image")
    with pytest.raises(DataError, match="made with another synthetic"):
        check_data(places)


def test_another_scene_is_another_cell():
    cell = StudentCell(SMOKE.scene, "alone")
    digests = {
        replace(cell, scene=replace(cell.scene, **change)).digest
        for change in ({}, {"seed": 1}, {"sites": 4}, {"test": 0.3}, {"base_channels": 16})
    }
    assert len(digests) == 5


def test_without_data_the_way_is_told(tmp_path):
    assert "give --data" in call_here(tmp_path, "experiment", "table1", code=2)
    said = call_here(tmp_path, "experiment", "table1", "--data", tmp_path, code=2)
    assert "holds none of the data sets" in said
