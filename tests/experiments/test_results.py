"""The documents say what the cells say, and leave none of them out."""

import json
from pathlib import Path

import pytest

from canal.experiments.cell import Places
from canal.experiments.grid import missing
from canal.experiments.paper import EXPERIMENTS
from canal.experiments.preset import PRESETS

ROOT = Path(__file__).parents[2]
CPU = PRESETS["cpu"]
PLACES = Places(ROOT, ROOT, ROOT / "paper/results/cpu.jsonl")
THERE = [name for name, each in EXPERIMENTS.items() if not missing(each.cells(CPU), PLACES)]


def test_table_1_is_there():
    assert "table1" in THERE


def test_every_result_is_of_an_experiment(tmp_path):
    """What no page reads is deleted, and does not lie about."""
    nowhere = Places(ROOT, ROOT, tmp_path)
    known = {
        cell.slug for each in EXPERIMENTS.values() for cell in missing(each.cells(CPU), nowhere)
    }
    found = {json.loads(line)["slug"] for line in PLACES.results.read_text().splitlines()}
    assert found
    assert found <= known


@pytest.mark.parametrize("name", THERE)
def test_the_page_is_what_the_cells_say(name):
    page = (ROOT / EXPERIMENTS[name].document).read_text()
    for table in EXPERIMENTS[name].page(CPU, PLACES).split("\n\n"):
        assert table.strip() in page
    if name == "qualitative":  # outlines are drawn where the data and the students are
        return
    for file, drawn in EXPERIMENTS[name].figures(CPU, PLACES).items():
        assert (ROOT / "docs/figures" / file).read_text() == drawn
        assert file in page
