"""Rounds of adapters: what they cost a patient, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from canal.gradients.statement import NAMES
from canal.release.chart import Point, lines
from canal.release.digits import number
from canal.release.page import figure, note, section
from canal.report.arms import release_order
from canal.report.published import PublishedAdapters, names
from canal.report.run import Run

TITLE = "What rounds of adapters cost"


def render(run: Run) -> str:
    """The section; nothing unless some rounds were paid for."""
    called = names(run.releases)
    charts = [
        f"<div>{figure(title, drawn)}</div>"
        for index, each in enumerate(sorted(run.adapters, key=release_order))
        for title, drawn in _chart(f"rounds-{index}", called[each.where], each)
    ]
    if not charts:
        return ""
    words = note(
        "“added” is a patient who is added or removed, “replaced” one who is replaced by another "
        "and moves a sum twice as far. All rounds are paid for before the first one; how many "
        "networks learn from them later costs nothing."
    )
    content = "".join(charts) + f"<div>{words}</div>"
    return section(TITLE, f'<div class="charts">{content}</div>', style="wide")


def _chart(name: str, called: str, published: PublishedAdapters) -> Iterator[tuple[str, str]]:
    rows = published.release.statement["epsilon_by_rounds"]
    if len(rows) < 2:  # of a research run, or of one round: no line
        return
    drawn: dict[str, list[Point]] = {
        label: [(row["rounds"], row[unit]) for row in rows] for unit, label in NAMES.items()
    }
    here = (rows[-1]["rounds"], f"this release: {number(published.plan.rounds)}")
    styles = {NAMES["membership"]: "patient", NAMES["patient"]: "often"}
    title = f"What a patient has paid, round by round: {called}"
    yield (
        title,
        lines(name, title, drawn, "rounds", "ε, smaller is safer", here, styles=styles),
    )
