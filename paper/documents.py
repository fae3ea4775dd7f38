"""Tables and figures in the documents: written there from results, or compared with them.

A document says where a table goes, and nothing between the two lines is written by hand:

    <!-- table: NAME -->
    <!-- end of table -->
"""

from __future__ import annotations

import re
from pathlib import Path

from canal.errors import InvalidValueError
from paper.grids import GRIDS
from paper.trial import Results

ROOT = Path(__file__).parents[1]
FIGURES = Path("docs/figures")
_PLACE = re.compile(r"<!-- table: ([\w-]+) -->\n(.*?)<!-- end of table -->", re.DOTALL)


def written(results: Results, root: Path = ROOT) -> dict[Path, str]:
    """Every document and figure as it should be.

    Args:
        results: of all grids.
        root: of the checkout.
    """
    documents: dict[str, dict[str, str]] = {}
    files: dict[Path, str] = {}
    for grid in GRIDS.values():
        tables = documents.setdefault(grid.document, {})
        tables |= {name: make(results) for name, make in grid.tables.items()}
        files |= {root / FIGURES / name: make(results) for name, make in grid.figures.items()}
    for name, tables in documents.items():
        path = root / name
        files[path] = filled(path.read_text(), tables, name)
    return files


def filled(text: str, tables: dict[str, str], name: str) -> str:
    """A document with its tables.

    Args:
        text: of the document.
        tables: by name.
        name: of the document.
    """
    places = [found.group(1) for found in _PLACE.finditer(text)]
    if sorted(places) != sorted(tables):
        raise InvalidValueError(
            f"{name} has places for the tables {', '.join(places) or 'none'}; it must have one for "
            f"each of {', '.join(tables)}: <!-- table: NAME -->, <!-- end of table -->"
        )
    return _PLACE.sub(
        lambda found: (
            f"<!-- table: {found.group(1)} -->\n\n{tables[found.group(1)]}\n<!-- end of table -->"
        ),
        text,
    )


def outdated(files: dict[Path, str]) -> list[Path]:
    """Files that are not as they should be."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text() != text]
