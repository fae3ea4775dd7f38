"""Whom does it protect? Epsilon of every release for everyone, and where the budget went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from canal.features.statement import PARTS
from canal.gradients.plan import AdapterPlan
from canal.privacy.units import Unit
from canal.release.chart import bar
from canal.release.digits import number, percent, upwards
from canal.release.page import bullets, code, note, section, table, text
from canal.report.arms import release_order
from canal.report.published import Published, PublishedAdapters, PublishedFeatures, names
from canal.report.run import Run
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
    paid = [each for each in releases if each.noisy]
    if paid:
        yield section(SPENT, *_spent(paid, called), style="wide")


def relations(published: Published) -> str:
    """Which relation a patient's epsilon is of, and the other's; empty where they are one."""
    other = replaced(published)
    return f"ε of a patient added or removed; {other}" if other else ""


def replaced(published: Published) -> str:
    """What a patient pays who is replaced by another; empty if that is a patient's epsilon."""
    epsilon = None if published.patient == "patient" else published.epsilon("patient")
    return "" if epsilon is None else f"{number(upwards(epsilon))} if replaced"


def _guarantees(releases: Sequence[Published], called: dict[str, str]) -> Iterable[str]:
    rows = []
    for each in releases:
        stamp = f'<small class="mark">{text(each.stamp)}</small>' if each.stamp else ""
        reading = each.promise(each.patient)["reading"]
        cells = (_cell(each, unit) for unit in HEADS)
        rows.append((escape(called[each.where]) + stamp, *cells, text(reading)))
    head = ("Release", *HEADS.values(), "What that means for a patient")
    yield table(head, rows, numbers=range(1, 4), words=(4,), style="reflow promises")
    deltas = " or ".join(sorted({number(each.plan.delta) for each in releases}))
    hypothetical = (
        " “If secret” is what the same noise would promise had it come from a secret; from a seed, "
        "it promises nothing."
        if any(_would(each, unit) is not None for each in releases for unit in each.units)
        else ""
    )
    kinds = sorted({each.release.kind for each in releases if each.patient == "membership"})
    others = " and ".join(kinds)
    relation = (
        " With features it is the same whether that patient is added, removed or replaced. With "
        f"{others} it is that of a patient who is added or removed, with that of one who is "
        f"replaced by another in small print; no query image has a part in {others}, and the "
        "paper does not count them."
        if kinds
        else ""
    )
    yield note(
        f"At δ = {deltas}; smaller is safer, four digits are shown, rounded up. A patient’s ε is "
        "the one to sign: one patient of a training cohort more or less, over all that the "
        f"release holds.{relation} An image’s is that of a query image, with the teachers public. "
        "The paper’s accounting is a guarantee for neither, and is there to be compared."
        f"{hypothetical}"
    )


def _cell(published: Published, head: Unit) -> str:
    """What is promised to whom a column is of; of a patient, under both relations."""
    if head != "patient":
        return _epsilon(published, head) if head in published.units else "–"
    if published.patient == "patient":
        return _epsilon(published, "patient")
    other = _epsilon(published, "patient")
    return _epsilon(published, published.patient) + (
        f"<small>if replaced: {other}</small>" if published.noisy else ""
    )


def _epsilon(published: Published, unit: Unit) -> str:
    asked = published.plan.unit == unit and published.noisy
    would = _would(published, unit)
    return (
        number(upwards(published.epsilon(unit)))
        + ("<small>asked for</small>" if asked else "")
        + (f"<small>if secret: {number(upwards(would))}</small>" if would is not None else "")
    )


def _would(published: Published, unit: Unit) -> float | None:
    if not published.stamp or not published.noisy:
        return None
    return published.epsilon_if_secret(unit)


def _spent(releases: Sequence[Published], called: dict[str, str]) -> Iterable[str]:
    features = [each for each in releases if isinstance(each, PublishedFeatures)]
    if features:
        yield from _budgets(features, called)
    taught = [each for each in releases if isinstance(each, PublishedAdapters)]
    yield bullets(f"<b>{escape(called[each.where])}</b>: {_rounds(each.plan)}" for each in taught)


def _rounds(plan: AdapterPlan) -> str:
    rounds = f"{number(plan.rounds)} round{'s' * (plan.rounds > 1)}, in equal parts"
    if not plan.count:
        return f"all of it went to {rounds}."
    return (
        f"{percent(plan.count)} counted the patients, {percent(1 - plan.count)} went to {rounds}."
    )


def _budgets(releases: Sequence[PublishedFeatures], called: dict[str, str]) -> Iterable[str]:
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
