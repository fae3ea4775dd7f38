"""Whom does it protect? Epsilon of every release for everyone, and where the budget went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from canal.privacy.units import UNITS, Unit
from canal.release.card import PARTS
from canal.release.chart import bar
from canal.release.digits import number, percent, upwards
from canal.release.page import code, note, section, table, text
from canal.report.arms import release_order
from canal.report.run import Published, Run, names
from canal.report.style import swatches

PROTECTS, SPENT = "Whom does it protect?", "Where the budget went"
HEADS: dict[Unit, str] = {"patient": "Patient’s ε", "image": "Image’s ε", "paper": "Paper’s ε"}


def render(run: Run) -> Iterator[str]:
    """Both sections."""
    if not run.releases:
        missing = code("canal release create --out RUN/release")
        yield section(PROTECTS, f"<p>There is no release in this run; {missing} makes one.</p>")
        return
    releases = sorted(run.releases, key=release_order)
    called = names(run.releases)
    yield section(PROTECTS, *_guarantees(releases, called), style="wide")
    paid = [each for each in releases if each.plan.allocation != "none"]
    if paid:
        yield section(SPENT, *_budgets(paid, called), style="wide")


def _guarantees(releases: Sequence[Published], called: dict[str, str]) -> Iterable[str]:
    rows = []
    for each in releases:
        stamp = f'<small class="mark">{text(each.stamp)}</small>' if each.stamp else ""
        reading = each.release.statement["guarantee"]["patient"]["reading"]
        cells = (_epsilon(each, unit) for unit in HEADS)
        rows.append((escape(called[each.where]) + stamp, *cells, text(reading)))
    head = ("Release", *HEADS.values(), "What that means for a patient")
    yield table(head, rows, numbers=range(1, 4), words=(4,), style="reflow promises")
    deltas = " or ".join(sorted({number(each.plan.delta) for each in releases}))
    hypothetical = (
        " “If secret” is what the same noise would promise had it come from a secret; from a seed, "
        "it promises nothing."
        if any(_would(each, unit) is not None for each in releases for unit in UNITS)
        else ""
    )
    yield note(
        f"At δ = {deltas}; smaller is safer, four digits are shown, rounded up. A patient’s ε is "
        "the one to sign: one patient of a training cohort more or less, over all that the "
        "release holds. An image’s is that of a query image, with the teachers public. The "
        f"paper’s accounting is a guarantee for neither, and is there to be compared.{hypothetical}"
    )


def _epsilon(published: Published, unit: Unit) -> str:
    asked = published.plan.unit == unit and published.plan.allocation != "none"
    would = _would(published, unit)
    return (
        number(upwards(published.epsilon(unit)))
        + ("<small>asked for</small>" if asked else "")
        + (f"<small>if secret: {number(upwards(would))}</small>" if would is not None else "")
    )


def _would(published: Published, unit: Unit) -> float | None:
    if not published.stamp or published.plan.allocation == "none":
        return None
    return published.epsilon_if_secret(unit)


def _budgets(releases: Sequence[Published], called: dict[str, str]) -> Iterable[str]:
    yield swatches(PARTS.items())
    rows, styles = [], []
    for index, each in enumerate(releases):
        styles.append("")
        split = each.release.statement["split"]
        rows.append(_budget(f"budget-{index}", called[each.where], split))
        rho = each.calibrated.guarantee.rho("patient")
        if each.plan.unit != "patient" and rho > 0:
            spent = {
                event.name: event.rho("patient") / rho for event in each.calibrated.guarantee.events
            }
            shares = {part: spent.get(part, 0.0) for part in PARTS}
            rows.append(_budget(f"patient-{index}", "… of what a patient pays", shares))
            styles.append("lighter")
    head = ("Release", "Shares", *(part.capitalize() for part in PARTS))
    yield table(head, rows, numbers=range(2, 5), plots=(1,), rows_style=styles, style="reflow bars")


def _budget(name: str, title: str, shares: dict[str, float]) -> tuple[str, ...]:
    drawing = bar(name, f"Shares of the budget: {title}", shares)
    return (escape(title), drawing, *(percent(shares[part]) for part in PARTS))
