"""The whole page, most important first; a section without ingredients says what is missing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from canal.release.page import document, note
from canal.report import (
    adversary,
    benefit,
    headline,
    noise,
    pictures,
    protection,
    reproduction,
    rounds,
)
from canal.report.arms import Arms
from canal.report.style import STYLE

if TYPE_CHECKING:
    from canal.data.arrays import Arrays
    from canal.report.run import Run


# A line does not end within ε = 8.
_EQUATION = re.compile(r"\b([εδμTB]) = ")


def render(run: Run, arrays: Arrays | None = None) -> str:
    """The report of a run, an HTML document.

    Args:
        run: as it was read.
        arrays: test images to show; None shows none.
    """
    arms = Arms.of(run)
    shown = [] if arrays is None else pictures.panels(arms, arrays)
    parts = (
        headline.render(run, arms),
        benefit.render(arms),
        *protection.render(run),
        noise.render(run, arms),
        rounds.render(run),
        adversary.render(run),
        pictures.render(shown, asked=arrays is not None),
        reproduction.render(run),
        _footer(arrays is not None),
    )
    page = document("Report of a CANAL run", parts, style=STYLE, pictures=bool(shown))
    return _EQUATION.sub("\\1\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}", page)


def _footer(pictured: bool) -> str:
    warning = " It shows images of patients: share it as you would share those." if pictured else ""
    about = (
        "This page was made with the private networks at hand, and no ε covers it: Dice of "
        "teachers, what an attack with the true teachers got. Hand out the "
        "release, not the page. It needs nothing else: no script, nothing to load."
    )
    return f"<footer>{note(about + warning)}</footer>"
