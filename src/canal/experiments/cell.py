"""A cell of an experiment: everything that determines it, and the file that holds its result.

The file is named by a digest of the cell, so a changed setting never finds a stale result, and a
stopped experiment goes on with the cells that are not there yet.
"""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from canal.files import replace_file
from canal.plain import plain

Report = Callable[[str, int, int], None]


def say_nothing(what: str, done: int, total: int) -> None:
    """A `Report` that nobody reads."""


@dataclass(frozen=True)
class Places:
    """Where an experiment reads and writes.

    Args:
        data: folder of the data sets.
        runs: where trainings and releases are kept; large.
        results: where the cells go; small.
    """

    data: Path
    runs: Path
    results: Path


@dataclass(frozen=True)
class Cell(ABC):
    """What determines one result; its fields are plain values, or dataclasses of those."""

    # Raised when the code comes to mean something else by the same fields.
    version: ClassVar[int] = 1

    @property
    @abstractmethod
    def name(self) -> str:
        """For people, in front of the digest; need not be unique."""

    @property
    def place(self) -> str:
        """Cells of one place share what the first of them trains, and wait for each other."""
        scene = getattr(self, "scene", None)
        return self.name if scene is None else str(scene.name)

    @property
    def after(self) -> tuple[Cell, ...]:
        """Cells that must be there before this one can be made."""
        return ()

    @abstractmethod
    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Plain values, that follow from the fields."""

    @property
    def digest(self) -> str:
        """Of all fields, of what they mean, and of the cells that this one builds on."""
        needs = [cell.digest for cell in self.after]
        about = [type(self).__name__, self.version, plain(self), needs]
        text = json.dumps(about, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def slug(self) -> str:
        """Names files and folders."""
        return f"{self.name}-{self.digest}"

    def path(self, places: Places) -> Path:
        """Of the result."""
        return places.results / f"{self.slug}.json"

    def result(self, places: Places, report: Report = say_nothing) -> dict[str, Any]:
        """Read what was made before, or make it and keep it, whole or not at all.

        `seconds` is the time of the run that finished it; what an earlier one had done is not in
        it.
        """
        path = self.path(places)
        if not path.is_file():
            started = time.monotonic()
            made = {"cell": plain(self), **self.make(places, report)}
            made["seconds"] = round(time.monotonic() - started, 1)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, (json.dumps(made) + "\n").encode())
        found: dict[str, Any] = json.loads(path.read_text())
        return found
