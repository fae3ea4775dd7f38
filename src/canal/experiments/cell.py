"""A cell of an experiment: everything that determines it, and the file that holds its result.

The file is named by a digest of the cell, so a changed setting never finds a stale result, and a
stopped experiment goes on with the cells that are not there yet.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
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
        results: where the cells go; small. A folder with a file for each, or a file of lines
            (`.jsonl`).
    """

    data: Path
    runs: Path
    results: Path

    @property
    def in_lines(self) -> bool:
        """Whether all cells are in one file."""
        return self.results.suffix == ".jsonl"

    @property
    def notes(self) -> Path:
        """Where it is noted which data the cells were made with."""
        return (self.results.parent if self.in_lines else self.results) / "data.json"


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
        """Of the result, where every cell has a file of its own."""
        return places.results / f"{self.slug}.json"

    def is_there(self, places: Places) -> bool:
        """Whether it was made."""
        return self._kept(places) is not None

    def _kept(self, places: Places) -> dict[str, Any] | None:
        if not places.in_lines:
            path = self.path(places)
            return _plain(path.read_text()) if path.is_file() else None
        if not places.results.is_file():
            return None
        state = places.results.stat()
        return _lines(places.results, state.st_mtime_ns, state.st_size).get(self.slug)

    def result(self, places: Places, report: Report = say_nothing) -> dict[str, Any]:
        """Read what was made before, or make it and keep it, whole or not at all.

        `seconds` is the time of the run that finished it; what an earlier one had done is not in
        it.
        """
        found = self._kept(places)
        if found is not None:
            return found
        started = time.monotonic()
        made = {"cell": plain(self), **self.make(places, report)}
        made["seconds"] = round(time.monotonic() - started, 1)
        places.results.parent.mkdir(parents=True, exist_ok=True)
        if places.in_lines:
            _append(places, {"slug": self.slug, **made})
        else:
            path = self.path(places)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, (json.dumps(made) + "\n").encode())
        # As the next reader finds it: numbers that went through JSON.
        return _plain(json.dumps(made))


def _plain(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


@lru_cache(maxsize=4)
def _lines(path: Path, changed: int, size: int) -> dict[str, dict[str, Any]]:  # noqa: ARG001
    """All cells of a file as it is now, by slug."""
    return {found["slug"]: found for found in map(_plain, path.read_text().splitlines())}


def _append(places: Places, line: dict[str, Any]) -> None:
    """Put a line into a file that other processes may be writing, in the order of names."""
    path = places.results
    places.runs.mkdir(parents=True, exist_ok=True)
    with (places.runs / f"{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = path.read_text().splitlines() if path.is_file() else []
        lines = sorted([*lines, json.dumps(line)], key=lambda each: str(_plain(each)["slug"]))
        replace_file(path, "".join(f"{each}\n" for each in lines).encode())
