"""A scenario: where its initialisation comes from, who is in which part, and whose data it is."""

import json
from dataclasses import replace

import pytest

from canal.data.synthetic import write
from canal.errors import DataError
from canal.gradients.patients import Patients
from canal.learning import checkpoint
from canal.learning.prediction import predict
from canal.learning.teacher import labelled_by
from paper import scenario as scenarios
from paper.arms import LongCentralised
from paper.scenario import DATA_SETS, Folders, Scenario, check_data

TINY = Scenario(
    *("dermoscopy",), size=32, recipient=4, steps=2, batch_size=4, synthetic=24, deform=1.0
)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("CANAL_CACHE", str(tmp_path / "cache"))
    return Folders(tmp_path / "data", tmp_path / "runs")


def training(place):
    return json.loads((place / "settings.json").read_text())


def test_an_initialisation_settles_after_it_was_deformed(folders):
    before = TINY.study(folders).init
    settled = replace(TINY, settle=1.5).study(folders)
    first, found = training(before), training(settled.init)
    assert (first["training"]["steps"], first["training"]["deform"]) == (2, 1)
    assert found["after"] == checkpoint.describe(before).initialisation
    assert found["training"]["steps"] == 3
    assert found["training"]["learning_rate"] == 0.25 * first["training"]["learning_rate"]
    assert "deform" not in found["training"]
    assert found["data"] == settled.part("recipient").digest


def test_an_initialisation_labels_more_images_and_then_settles(folders):
    scenario = replace(TINY, init_length=2, settle=1.5, self_labelled=5)
    study, more = (each.study(folders) for each in (scenario, replace(scenario, settle=0)))
    first = replace(scenario, settle=0, self_labelled=0).study(folders).init
    assert training(study.init)["after"] == checkpoint.describe(more.init).initialisation
    found = training(more.init)
    assert found["after"] == checkpoint.describe(first).initialisation
    assert (found["training"]["steps"], found["training"]["deform"]) == (2, 1.0)
    said = labelled_by(first, study.unlabelled(5))
    assert said.labelled.all()
    assert (said.masks == predict(checkpoint.load(first)[0], said)).all()
    assert found["data"] == study.part("recipient").beside(said).digest


def test_centralised_training_goes_on_from_the_initialisation(folders, tmp_path):
    study = replace(TINY, settle=1.5).study(folders)
    found = LongCentralised().run(study, tmp_path / "run")
    runs = {name: training(tmp_path / "run" / name) for name in ("deformed", "settled")}
    assert [each["data"] for each in runs.values()] == [study.part("pooled").digest] * 2
    assert [each["training"]["steps"] for each in runs.values()] == [2, 3]
    # Stopped between the two, or after, it is the same network.
    assert LongCentralised().run(study, tmp_path / "run") == found


def test_real_patients_are_told_by_their_looks(folders, monkeypatch):
    """Those of sites, where nothing else says who they are; the initialisation is the same."""
    monkeypatch.setattr(scenarios, "joined", lambda arrays: ["somebody"] * len(arrays.ids))
    by_name, by_looks = TINY.study(folders), replace(TINY, match_people=True).study(folders)
    assert by_looks.init == by_name.init
    assert by_looks.split.digest == by_name.split.digest
    site = by_name.sites[0]
    assert len(Patients(site, by_looks.part(site))) == 1 < len(Patients(site, by_name.part(site)))
    assert by_looks.part("recipient").patients == by_name.part("recipient").patients


def test_hospitals_with_the_same_names_are_pooled(folders):
    write(folders.data / DATA_SETS["BUSI"], 60, size=(32, 32))
    scenario = Scenario("BUSI", size=32, recipient=6, test=0.5, others=("BUSI",))
    study = scenario.study(folders)
    assert study.sites == ("BUSI",)
    parts = {name: set(study.part(name).ids) for name in ("test", "recipient", "BUSI")}
    assert not parts["test"] & parts["recipient"]
    assert len(study.part("pooled").ids) == len(parts["recipient"]) + len(parts["BUSI"])


def test_other_data_are_refused(folders, tmp_path):
    write(folders.data / DATA_SETS["BUSI"], 3, size=(32, 32))
    check_data(folders.data, tmp_path / "results")
    check_data(folders.data, tmp_path / "results")
    with pytest.raises(DataError, match="holds none of the data sets"):
        check_data(tmp_path / "nothing", tmp_path / "results")
    next(folders.data.rglob("*.png")).write_bytes(b"another image")
    with pytest.raises(DataError, match="made with another BUSI"):
        check_data(folders.data, tmp_path / "results")
