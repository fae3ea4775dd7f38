"""A cell of an experiment: everything that determines it, and the file that holds its result.

The file is named by a digest of the cell, so a changed setting never finds a stale result, and a
stopped experiment goes on with the cells that are not there yet.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from canal.files import replace_file


@dataclass(frozen=True)
class Cell(ABC):
    """What determines one result; its fields are plain values, or dataclasses of those."""

    @property
    @abstractmethod
    def name(self) -> str:
        """For people, in front of the digest; need not be unique."""

    @property
    def digest(self) -> str:
        """Of all fields."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def slug(self) -> str:
        """Names files and folders."""
        return f"{self.name}-{self.digest}"

    def result(self, folder: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Read what was made before, or make it and keep it, whole or not at all.

        Args:
            folder: of the results.
            make: gives plain values.
        """
        path = folder / f"{self.slug}.json"
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            made = {"cell": asdict(self), **make()}
            replace_file(path, (json.dumps(made, indent=1) + "\n").encode())
        found: dict[str, Any] = json.loads(path.read_text())
        return found
