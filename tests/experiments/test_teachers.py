"""The teachers' table: the page says what the cells say, and a cell can be made and read again."""

import json
from pathlib import Path

import pytest

from canal.data.synthetic import write
from canal.experiments.cell import Places
from canal.experiments.stage import PAPERS, Scene
from canal.experiments.teachers import TeachersCell, markdown
from canal.teachers.settings import TrainingSettings

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_cells_say():
    order = list(PAPERS)
    cells = [json.loads(path.read_text()) for path in (ROOT / "results/teachers").glob("*.json")]
    cells.sort(key=lambda cell: order.index(cell["cell"]["scene"]["data_set"]))
    assert len(cells) == len(order)
    assert markdown(cells) in (ROOT / "docs/teachers.md").read_text()


@pytest.fixture
def small(tmp_path, monkeypatch):
    write(tmp_path / "data" / "synthetic", 40, size=(32, 32))
    monkeypatch.setenv("CANAL_CACHE", str(tmp_path / "cache"))
    training = TrainingSettings(steps=4, batch_size=4, save_every=2)
    scene = Scene("synthetic", size=32, recipient=4, base_channels=8, training=training)
    return TeachersCell(scene, random=True)


def test_a_cell_is_made_once_and_read_again(small, tmp_path, monkeypatch):
    places = Places(tmp_path / "data", tmp_path / "runs", tmp_path / "results")
    made = small.result(places)
    assert list(made["networks"]) == ["site-1", "site-2", "site-3", "pooled"]
    assert made["networks"]["pooled"]["trained_on"] > made["networks"]["site-1"]["trained_on"]
    assert len(made["alignment"]) == 3
    monkeypatch.setattr(TeachersCell, "make", None)  # nothing is trained a second time
    assert small.result(places) == made
    assert "| synthetic | pooled |" in markdown([made])
