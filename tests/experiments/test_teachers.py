"""The teachers' table: the page says what the cells say, and a cell can be made and read again."""

import json
from pathlib import Path

from canal.experiments.stage import PAPERS
from canal.experiments.teachers import TeachersCell, markdown

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_cells_say():
    order = list(PAPERS)
    cells = [
        json.loads(line)
        for line in (ROOT / "paper/results/teachers.jsonl").read_text().splitlines()
    ]
    cells.sort(key=lambda cell: order.index(cell["cell"]["scene"]["data_set"]))
    assert len(cells) == len(order)
    assert markdown(cells) in (ROOT / "docs/teachers.md").read_text()


def test_a_cell_is_made_once_and_read_again(scene, places, monkeypatch):
    small = TeachersCell(scene, random=True)
    made = small.result(places)
    assert list(made["networks"]) == ["site-1", "site-2", "site-3", "pooled"]
    assert made["networks"]["pooled"]["trained_on"] > made["networks"]["site-1"]["trained_on"]
    assert len(made["alignment"]) == 3
    monkeypatch.setattr(TeachersCell, "make", None)  # nothing is trained a second time
    assert small.result(places) == made
    assert "| synthetic | pooled |" in markdown([made])
