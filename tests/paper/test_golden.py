"""Every table and figure of the documentation has the numbers that it had when it was pinned.

Words may be changed, numbers may not: `golden/` holds the tables and figures as they were made
from the first results, and only what is a number in them is compared.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from canal.experiments import attack_table, attacks, patients, patients_table, roc_figure, teachers
from canal.experiments.cell import Places
from canal.experiments.paper import EXPERIMENTS
from canal.experiments.preset import PRESETS
from canal.experiments.stage import PAPERS, Scene
from canal.learning.settings import TrainingSettings

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
CPU = PRESETS["cpu"]
NUMBER = re.compile(r"[-+−]?\d[\d.,]*(?:e[-+]?\d+)?|∞|anything|no gap")


def results(name):
    return Places(ROOT, ROOT, ROOT / "paper/results" / f"{name}.jsonl")


def attack_cells():
    scene = Scene(
        *("ISIC 2018", 0),
        recipient=200,
        base_channels=8,
        training=TrainingSettings(steps=400, batch_size=8),
    )
    networks = [attacks.NetworksCell(replace(scene, seed=seed)) for seed in range(5)]
    made = [attacks.AttackCell(each, arm) for each in networks for arm in attacks.ARMS]
    return [cell.result(results("attacks")) for cell in made]


def teacher_cells():
    lines = results("teachers").results.read_text().splitlines()
    return sorted(
        map(json.loads, lines),
        key=lambda cell: list(PAPERS).index(cell["cell"]["scene"]["data_set"]),
    )


TABLES = {
    name: lambda each=each: each.page(CPU, results("cpu")) for name, each in EXPERIMENTS.items()
} | {
    "attacks": lambda: attack_table.markdown(attack_cells()),
    "patients": lambda: patients_table.markdown(
        [cell.result(results("patients")) for cell in patients.cells(2)]
    ),
    "teachers": lambda: teachers.markdown(teacher_cells()),
}


def numbers(text):
    """Those of every line that has any."""
    found = [NUMBER.findall(line) for line in text.splitlines()]
    return [line for line in found if line]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_keeps_its_numbers(name):
    assert numbers(TABLES[name]()) == numbers((GOLDEN / f"{name}.md").read_text())


@pytest.mark.parametrize("name", ["ensemble-size", "composition", "adapters"])
def test_a_figure_keeps_its_numbers(name):
    for file, drawn in EXPERIMENTS[name].figures(CPU, results("cpu")).items():
        assert numbers(drawn) == numbers((GOLDEN / file).read_text())


def test_the_roc_keeps_its_numbers():
    drawn = roc_figure.figure(attack_cells()[: len(attacks.ARMS)])
    assert numbers(drawn) == numbers((GOLDEN / "images.svg").read_text())
    assert (GOLDEN / "qualitative.svg").read_text() == (
        ROOT / "docs/figures/qualitative.svg"
    ).read_text()
