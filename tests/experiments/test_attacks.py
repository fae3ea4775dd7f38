"""The attack table: cells are made, go on where they were stopped, and are what the page says."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from canal.experiments import attack_table, attacks, roc_figure
from canal.experiments.attack_table import markdown
from canal.experiments.attacks import ARMS, AttackCell, NetworksCell
from canal.experiments.cell import Places
from canal.experiments.grid import missing, run_grid
from canal.experiments.roc_figure import figure
from canal.experiments.stage import Scene
from canal.learning.settings import TrainingSettings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cells(scene):
    networks = NetworksCell(scene, canaries=1)
    chosen = [arm for arm in ARMS if arm.name in ("no noise", roc_figure.LITTLE, roc_figure.CANAL)]
    return [AttackCell(networks, arm, decoder_steps=2) for arm in chosen]


def test_cells_go_on_and_are_made_once(cells, places, monkeypatch):
    invert = attacks.invert
    monkeypatch.setattr(attacks, "invert", lambda *a, **k: pytest.fail("the power went"))
    with pytest.raises(pytest.fail.Exception):
        run_grid(cells, places)
    monkeypatch.setattr(attacks, "invert", invert)
    monkeypatch.setattr(
        "canal.learning.runs.fit", lambda *a, **k: pytest.fail("trained a second time")
    )
    assert run_grid(cells, places) == {}
    silent, between, noisy = (cell.result(places) for cell in cells)
    networks = cells[0].networks.result(places)
    assert len(networks["variation"]) == 3
    assert silent["images"]["auc"] == 1
    assert silent["epsilon_patient"] is None
    assert silent["apart"] > between["apart"] > 10 * noisy["apart"]
    assert silent["canaries"][0]["mu"] is None
    assert 0 < noisy["canaries"][0]["mu"] < noisy["canaries"][0]["allowed"]["mu"]
    assert len(list(places.runs.glob("*.png"))) == 3
    svg = ET.fromstring(figure([silent, between, noisy]))  # noqa: S314  # our own
    assert len([path for path in svg.iter() if path.get("class", "").startswith("line")]) == 10
    images, patients = markdown([silent, noisy, silent, noisy]).split("\n\n")
    assert images.count("\n") == 1 + 2
    assert "| no noise | " in images
    assert "| 1.000 | – | anything |" in images
    assert patients.startswith("| release | a patient's eps |")


def test_the_page_is_what_the_cells_say():
    scene = Scene(
        *("ISIC 2018", 0),
        recipient=200,
        base_channels=8,
        training=TrainingSettings(steps=400, batch_size=8),
    )
    places = Places(ROOT, ROOT, ROOT / "paper/results/attacks.jsonl")
    networks = [NetworksCell(replace(scene, seed=seed)) for seed in range(5)]
    made = [AttackCell(each, arm) for each in networks for arm in ARMS]
    assert missing(made, places) == []
    found = [cell.result(places) for cell in made]
    page = (ROOT / "docs/attacks.md").read_text()
    for table in markdown(found).split("\n\n"):
        assert table.strip() in page
    assert (ROOT / "docs/figures/images.svg").read_text() == figure(found[: len(ARMS)])


def test_an_interval_is_over_seeds():
    """By hand: 0.4 and 0.6 have a standard error of 0.1, and Student's t is 12.706 for two."""
    assert attack_table._over([0.4, 0.6]) == "0.500 ± 1.271"
    assert attack_table._over([1.0, 1.0, 1.0]) == "1.000"
    assert attack_table._over([0.1], signed=True) == "+0.100"
