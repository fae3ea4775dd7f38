"""Every table and figure of the documents has the numbers that it had when it was pinned.

Words may be changed, numbers may not: `golden/` holds tables and figures as they were made from the
first results, and only what is a number in them is compared.
"""

import re
from pathlib import Path

import pytest

from paper.__main__ import RESULTS
from paper.grids import GRIDS
from paper.trial import Results

GOLDEN = Path(__file__).parent / "golden"
NUMBER = re.compile(r"[-+−]?\d[\d.,]*(?:e[-+]?\d+)?|∞|anything|no gap")
TABLES = {name: make for grid in GRIDS.values() for name, make in grid.tables.items()}
FIGURES = {name: make for grid in GRIDS.values() for name, make in grid.figures.items()}


@pytest.fixture(scope="session")
def results():
    return Results(RESULTS)


def numbers(text):
    """Those of every line that has any."""
    found = [NUMBER.findall(line) for line in text.splitlines()]
    return [line for line in found if line]


def test_all_are_pinned():
    assert {path.name for path in GOLDEN.iterdir()} == {
        *(f"{name}.md" for name in TABLES),
        *FIGURES,
    }


@pytest.mark.parametrize("name", TABLES)
def test_a_table_keeps_its_numbers(name, results):
    assert numbers(TABLES[name](results)) == numbers((GOLDEN / f"{name}.md").read_text())


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_keeps_its_numbers(name, results):
    assert numbers(FIGURES[name](results)) == numbers((GOLDEN / name).read_text())
