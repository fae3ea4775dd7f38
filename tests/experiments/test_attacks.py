"""The attack table: a cell is made, and goes on where it was stopped."""

from xml.etree import ElementTree as ET

import pytest

from canal.data.synthetic import write
from canal.experiments import attacks
from canal.experiments.attacks import ARMS, AttacksCell, markdown, run_cell
from canal.experiments.roc_figure import figure
from canal.teachers.settings import TrainingSettings


@pytest.fixture
def small(tmp_path, monkeypatch):
    write(tmp_path / "data" / "synthetic", 60, size=(32, 32))
    monkeypatch.setitem(attacks.DATA_SETS, "synthetic", "synthetic")
    monkeypatch.setenv("CANAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        attacks, "ARMS", {name: ARMS[name] for name in ("no noise", "CANAL, the paper's eps 8")}
    )
    training = TrainingSettings(steps=2, batch_size=4, save_every=2)
    return AttacksCell(
        data_set="synthetic", size=32, queries=8, shadows=8, decoder_steps=2, training=training
    )


def test_a_cell_goes_on_and_is_made_once(small, tmp_path, monkeypatch):
    places = (tmp_path / "data", tmp_path / "runs", tmp_path / "results")
    told = []
    invert = attacks.invert
    monkeypatch.setattr(attacks, "invert", lambda *a, **k: pytest.fail("the power went"))
    with pytest.raises(pytest.fail.Exception):
        run_cell(small, *places)
    monkeypatch.setattr(attacks, "invert", invert)
    monkeypatch.setattr(
        "canal.teachers.folder.fit", lambda *a, **k: pytest.fail("trained a second time")
    )
    made = run_cell(small, *places, report=lambda *words: told.append(words))
    assert list(made["arms"]) == list(attacks.ARMS)
    assert made["arms"]["no noise"]["images"]["auc"] == 1
    assert made["arms"]["no noise"]["epsilon_patient"] is None
    assert any(what.startswith("inversion") for what, _, _ in told)
    monkeypatch.setattr(attacks, "_Scene", None)
    assert run_cell(small, *places) == made
    svg = ET.fromstring(figure(made, "images"))  # noqa: S314  # our own
    assert len([path for path in svg.iter() if path.get("class", "").startswith("line")]) == 8
    table = markdown([made, made])
    assert table.count("\n") == 2 + len(attacks.ARMS)
    assert "| no noise | none | 1.000 (1.000 to 1.000) |" in table
