"""Canaries in releases of features and of rounds: found without noise; the page says what is so."""

from dataclasses import replace
from pathlib import Path

import pytest

from canal.attacks.finding import STRONG
from canal.attacks.roc import allowed_auc
from canal.experiments.cell import Places
from canal.experiments.course import Course
from canal.experiments.grid import missing, run_grid
from canal.experiments.patients import (
    CLEAR,
    FEATURES,
    GRADIENTS,
    FeaturesCell,
    Planting,
    RoundsCell,
    ShadowsCell,
    cells,
)
from canal.experiments.patients_table import markdown
from canal.experiments.taught import Lesson
from canal.learning.settings import TrainingSettings

ROOT = Path(__file__).parents[2]
SEEDS = 2
SHORT = TrainingSettings(steps=4, batch_size=8, save_every=4)


@pytest.fixture
def in_lines(places):
    return replace(places, results=places.results / "patients.jsonl")


def scene(training, invented):
    return Course(
        "endoscopy",
        size=32,
        sites=2,
        recipient=12,
        base_channels=8,
        training=training,
        start=training.steps,
        invented=invented,
    )


def test_cells_are_lines_of_one_file(in_lines, monkeypatch):
    few = Planting(canaries=4, ordinary=4, always=4)
    networks = ShadowsCell(scene(SHORT, 60), few, 8, TrainingSettings(steps=1, save_every=1))
    lesson = Lesson(rounds=2, parts=("norms", "head"), directions=8)
    made = [FeaturesCell(networks, FEATURES[4])]
    made += [
        RoundsCell(networks.scene, arm, replace(few, always=0), 2, lesson) for arm in GRADIENTS[:2]
    ]
    assert run_grid(made, in_lines) == {}
    lines = in_lines.results.read_text().splitlines()
    assert len(lines) == 4
    assert missing(made, in_lines) == []
    monkeypatch.setattr(
        "canal.learning.runs.fit", lambda *a, **k: pytest.fail("trained a second time")
    )
    assert run_grid(made, in_lines) == {}
    assert in_lines.results.read_text().splitlines() == lines
    features, clear, noisy = found = [cell.result(in_lines) for cell in made]
    assert features["epsilon"] <= 8
    assert len(features["canaries"]["scores"]["members"]) == 8 * 4 // 2
    for who in ("canaries", "ordinary"):
        # Without noise the sums name everybody, with no shadow trained.
        assert clear[who]["auc"] == clear[who]["known"] == clear[who]["played"]["auc"] == 1
        assert noisy[who]["played"]["auc"] < 0.95
        assert noisy[who]["mu"] <= noisy["mu"] * (1 + 1e-9)
    page = markdown(found)
    assert page.count("| canaries | ") == 3
    assert "| no noise | ∞ | canaries | 1.000" in page
    controls = [line for line in page.splitlines() if line.startswith("| no noise | ∞ | ")]
    assert [line.count("| anything |") for line in controls] == [3, 3]
    assert all("| 100.0 % (" in line for line in controls)


@pytest.mark.slow
def test_without_noise_the_attack_finds_canaries(in_lines):
    """A real training for each shadow: the area is above 0.8, and its interval above a coin's."""
    training = TrainingSettings(steps=100, batch_size=8)
    networks = ShadowsCell(scene(training, 100), Planting(canaries=8, ordinary=4, always=4), 32)
    found = FeaturesCell(networks, CLEAR)
    networks.result(in_lines)
    canaries = found.result(in_lines)["canaries"]
    assert canaries["auc"] > 0.8
    assert canaries["auc_interval"][0] > 0.5
    assert canaries["p"] <= 0.05


def test_the_page_is_what_the_cells_say():
    """And the attack has power everywhere, and is nowhere above what the noise allows."""
    places = Places(ROOT, ROOT, ROOT / "paper/results/patients.jsonl")
    made = cells(SEEDS)
    assert missing(made, places) == []
    found = [cell.result(places) for cell in made]
    page = (ROOT / "docs/attacks.md").read_text()
    for table in markdown(found).split("\n\n"):
        assert table.strip() in page
    for cell in found:
        for who in ("canaries", "ordinary"):
            low = cell[who]["auc_interval"][0]
            if cell["epsilon"] is None:
                assert cell[who]["auc"] >= STRONG
                assert low > 0.5
            else:
                assert low <= allowed_auc(cell["mu"])
