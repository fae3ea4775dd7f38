"""Invented data and a training of seconds, for experiments that are only to be seen running."""

from pathlib import Path

import pytest

from canal.data.synthetic import write
from canal.experiments.cell import Cell, Places
from canal.experiments.stage import Scene
from canal.learning.settings import TrainingSettings


@pytest.fixture
def places(tmp_path, monkeypatch):
    write(tmp_path / "data" / "synthetic", 60, size=(32, 32))
    monkeypatch.setenv("CANAL_CACHE", str(tmp_path / "cache"))
    return Places(tmp_path / "data", tmp_path / "runs", tmp_path / "results")


@pytest.fixture
def scene():
    training = TrainingSettings(steps=4, batch_size=4, save_every=2)
    return Scene("synthetic", size=32, recipient=8, base_channels=8, training=training)


@pytest.fixture
def published(monkeypatch):
    """The results of this repository; one that is not there is not made: the test fails."""
    kept = Cell._kept

    def there(cell, places):
        found = kept(cell, places)
        assert found is not None, f"{cell.slug} is not there; `canal experiment` makes it"
        return found

    monkeypatch.setattr(Cell, "_kept", there)
    root = Path(__file__).parents[2]
    return Places(root, root, root / "paper/results/cpu.jsonl")
