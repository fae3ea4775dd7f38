"""What a feature release shows on its privacy card (`canal.release.card`)."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import groupby

from canal.privacy.units import UNITS
from canal.release.card import CardParts
from canal.release.chart import Point, bar, lines, scatter
from canal.release.digits import number, percent
from canal.release.manifest import Manifest
from canal.release.page import code, figure, section, table

PARTS = {
    "caps": "Caps: how large each channel gets",
    "importance": "Importance: how much each channel matters",
    "features": "Features: the channels themselves",
}
WEIGHTS = {"importance": "importance", "matched": "importance × cap²"}


def card(manifest: Manifest) -> CardParts:
    """What only a feature release shows."""
    plan, people = manifest.plan, manifest.plan["participants"]
    channels = manifest.mechanism["channels"]
    grid = " × ".join(number(side) for side in plan["grid"])
    return CardParts(
        title="release",
        facts={
            "Sites": number(people["teachers"]),
            "Queries": number(people["queries"]),
            "Channels": f"{number(len(channels))} of {number(plan['channels'])}",
            "Allocation": plan["allocation"],
            "Weights": WEIGHTS[plan["weight"]],
        },
        sections=[
            section("Where the budget went", *_budget(manifest), style="wide"),
            _charts(manifest),
        ],
        holds=[
            f"Features of {number(len(manifest.rows))} query images at "
            f"{code(manifest.participants['tap'])}, "
            f"for each {number(len(channels))} channels of {grid} values.",
            f"Channels {_runs(channels)}.",
        ],
    )


def _budget(manifest: Manifest) -> Iterable[str]:
    statement, plan = manifest.statement, manifest.plan
    if plan["allocation"] == "none":
        yield "<p>No noise was added, so there was no budget to split.</p>"
        return
    shares = {"of the budget": statement["split"]}
    patient = statement["guarantee"]["patient"]["parts"]
    if statement["unit"] != "patient" and patient:
        spent = {part: patient[part]["share"] if part in patient else 0.0 for part in PARTS}
        shares["of a patient’s cost"] = spent
    for index, (whole, split) in enumerate(shares.items()):
        yield figure(f"Shares {whole}", bar(f"split-{index}", f"Shares {whole}", split))
    rows = []
    for part, words in PARTS.items():
        source = escape(plan.get(f"{part}_source", "private"))
        swatch = f'<span class="swatch {part}"></span>'
        rows.append((swatch + words, source, *(percent(split[part]) for split in shares.values())))
    head = ("Part", "Source", *(f"Share {whole}" for whole in shares))
    yield table(head, rows, numbers=range(2, len(head)), style="reflow")


def _charts(manifest: Manifest) -> str:
    statement, mechanism = manifest.statement, manifest.mechanism
    pairs = zip(mechanism["weights"], mechanism["sigma"], strict=True)
    points = [(weight, sigma) for weight, sigma in pairs if weight > 0 and sigma > 0]
    figures = []
    if points:
        lost = len(mechanism["weights"]) - len(points)
        title = "Noise on each published channel" + (f" but {lost} of weight 0" if lost else "")
        x_name = f"weight of the channel ({WEIGHTS[manifest.plan['weight']]})"
        figures.append(
            (title, scatter("noise", title, {"channels": points}, x_name, "σ, noise on the mean"))
        )
    counts = statement["epsilon_by_queries"]
    drawn: dict[str, list[Point]] = {
        unit: [(row["queries"], row[unit]) for row in counts]
        for unit in UNITS
        if all(row[unit] is not None for row in counts)
    }
    # One number of queries makes no line.
    if len(counts) > 1 and drawn:
        title = "What more queries with this noise would cost"
        queries = manifest.plan["participants"]["queries"]
        here = (queries, f"this release: {number(queries)}")
        figures.append(
            (title, lines("queries", title, drawn, "queries answered", "ε, smaller is safer", here))
        )
    if not figures:
        return ""
    content = "".join(figure(*each) for each in figures)
    return section("Noise and queries", f'<div class="charts">{content}</div>', style="wide")


def _runs(channels: Iterable[int]) -> str:
    """Numbers in order, neighbours as one: 0–2, 7."""
    runs = []
    for _, group in groupby(enumerate(sorted(channels)), key=lambda pair: pair[1] - pair[0]):
        run = [channel for _, channel in group]
        runs.append(number(run[0]) if len(run) == 1 else f"{number(run[0])}–{number(run[-1])}")
    return ", ".join(runs)
