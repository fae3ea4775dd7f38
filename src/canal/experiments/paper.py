"""Tables and figures of the documentation: what each is made of, and the page that it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from canal.experiments import (
    adapters,
    composition,
    ensemble_size,
    federation,
    gains,
    levers,
    qualitative,
    table1,
)
from canal.experiments.cell import Cell, Places
from canal.experiments.preset import Preset


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    Args:
        cells: what it is made of.
        page: its part of a document, once the cells are there.
        figures: as SVG, by file name.
        document: that it is a part of.
    """

    cells: Callable[[Preset], Sequence[Cell]]
    page: Callable[[Preset, Places], str]
    figures: Callable[[Preset, Places], Mapping[str, str]] = lambda preset, places: {}
    document: str = "docs/results.md"


EXPERIMENTS = {
    "table1": Experiment(table1.cells, table1.page),
    "ensemble-size": Experiment(ensemble_size.cells, ensemble_size.page, ensemble_size.figures),
    "qualitative": Experiment(qualitative.cells, qualitative.page, qualitative.figures),
    "composition": Experiment(composition.cells, composition.page, composition.figures),
    "federation": Experiment(federation.cells, federation.page),
    "levers": Experiment(levers.cells, levers.page),
    "gains": Experiment(gains.cells, gains.page, document="docs/adapters-method.md"),
    "adapters": Experiment(
        adapters.cells, adapters.page, adapters.figures, document="docs/adapters.md"
    ),
}


def write_synthetic(folder: Path) -> Path:
    """Invented images, for a run that only asks whether everything works."""
    from canal.data.synthetic import write

    for seed, name in enumerate(("synthetic", "elsewhere")):
        if not (folder / name).is_dir():
            write(folder / name, 60, size=(32, 32), seed=seed)
    return folder
