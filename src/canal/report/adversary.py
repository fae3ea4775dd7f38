"""What an attacker gets: the curve of each attack, beside what the guarantee allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from canal.attacks.roc import NOTHING, WHOM
from canal.release.chart import Point, lines
from canal.release.digits import number, upwards
from canal.release.page import code, section, sentences, table
from canal.report.attack import Attack
from canal.report.evidence import CHECKS, FAILED, REFUTED, Evidence
from canal.report.published import names
from canal.report.run import Run
from canal.report.style import legend

TITLE = "What an attacker gets"
OURS, ALLOWED, CHANCE = "this attack", "most that the noise allows", "guessing"
LOWEST = 1e-3
_STEPS = 60


def render(run: Run) -> str:
    """The section."""
    if not run.attacks and not run.evidence:
        missing = code("canal attack membership RELEASE --out RUN/attack.json")
        return section(
            TITLE, f"<p>Nobody attacked this run; {missing} does, and writes what it got.</p>"
        )
    called = names(run.releases)

    def whom(digest: str) -> str:
        release = run.release(digest)
        if release is None:
            return f"release {digest[:12]}…, which is not in this run"
        return called[release.where]

    content: list[str] = []
    for index, attack in enumerate(run.attacks):
        content += _attack(index, attack, whom(attack.release))
    for evidence in run.evidence:
        content += _evidence(evidence, whom(evidence.release))
    return section(TITLE, *content, style="wide long")


def _evidence(found: Evidence, whom: str) -> Iterable[str]:
    yield f"<h3>{escape(found.name)}: {escape(whom)}</h3>"
    numbers = range(1, len(found.head))
    yield _rows(found.head, found.rows, numbers=numbers)
    yield sentences(found.words)
    if found.checks:
        yield _rows(CHECKS, found.checks, words=(CHECKS.index("Found"),))


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]], **columns: Sequence[int]) -> str:
    """A table in which faults stand out."""
    safe = [tuple(escape(cell) for cell in row) for row in rows]
    faults = ["fault" if {REFUTED, FAILED} & set(row) else "" for row in safe]
    return table(head, safe, rows_style=faults, style="reflow", **columns)


def rate(share: float) -> str:
    """A rate of false positives as people write it.

    >>> rate(0.01), rate(0.001)
    ('1 %', '0.1 %')
    """
    return f"{number(100 * share)} %"


def _attack(index: int, attack: Attack, whom: str) -> Iterable[str]:
    low, high = attack.interval
    rows = [
        (
            "AUC<small>0.5 is guessing</small>",
            f"{attack.auc:.3f}<small>{low:.3f} to {high:.3f}</small>",
            _bound(attack.allowed_auc, share=False),
        ),
        *(
            (
                f"Found at {rate(false)} false alarms",
                rate(true),
                _bound(attack.allowed(false), share=True),
            )
            for false, true in sorted(attack.tpr.items(), reverse=True)
        ),
    ]
    head = ("", "This attack", "The noise allows")
    told = [NOTHING] if attack.like_chance and NOTHING not in attack.words else []
    whose = f"{number(attack.members)} members and {number(attack.others)} others. "
    about = whose + (
        "There is no noise to hold it against."
        if attack.mu is None or attack.unit is None
        else f"What the noise allows is for {WHOM[attack.unit]}, μ = {number(upwards(attack.mu))}."
    )
    left = table(head, rows, numbers=(1, 2)) + sentences([about, *told, *attack.words])
    yield f"<h3>{escape(attack.name.capitalize())}: {escape(whom)}</h3>"
    yield f'<div class="beside"><div>{left}</div><div>{_curve(index, attack)}</div></div>'


def _bound(value: float | None, *, share: bool) -> str:
    if value is None:
        return "anything"
    most = upwards(value)
    return f"at most {rate(most or 0.0) if share else number(most)}"


def _curve(index: int, attack: Attack) -> str:
    lowest = min(LOWEST, *(false for false in attack.tpr if false > 0), 1.0)
    grid = [lowest ** (1 - step / _STEPS) for step in range(_STEPS + 1)]
    drawn: dict[str, list[Point]] = {}
    if attack.mu is not None:
        drawn[ALLOWED] = [(x, max(attack.allowed(x) or 0.0, lowest)) for x in grid]
    drawn[CHANCE] = [(lowest, lowest), (1.0, 1.0)]
    ours = _visible(attack.roc, lowest)
    if ours:
        drawn[OURS] = ours
    title = f"{attack.name.capitalize()}: found against false alarms"
    styles = {OURS: "ours", ALLOWED: "allowed", CHANCE: "chance"}
    chart = lines(
        *(f"roc-{index}", title, drawn, "outsiders wrongly named", "members rightly named"),
        styles=styles,
        named=False,
    )
    order = [name for name in (OURS, ALLOWED, CHANCE) if name in drawn]
    return chart + legend((f"line {styles[name]}", "", name) for name in order)


def _visible(roc: Iterable[Point], lowest: float) -> list[Point]:
    """What logarithmic axes can show: from the lowest rate up, nothing found at the bottom.

    A staircase: between two points an attack finds what it found at the first.
    """
    points = sorted(roc)
    if not points:
        return []
    found = max((true for false, true in points if false <= lowest), default=0.0)
    shown = [(lowest, max(found, lowest))]
    for false, true in points:
        if false > lowest:
            shown += [(false, shown[-1][1]), (false, max(true, lowest))]
    return shown
