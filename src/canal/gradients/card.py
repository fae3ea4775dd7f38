"""What a gradient release shows on its privacy card (`canal.release.card`)."""

from __future__ import annotations

from typing import Any

from canal.gradients.subspace import BASIS
from canal.release.card import CardParts, shortened
from canal.release.chart import Point, lines
from canal.release.digits import number, short
from canal.release.manifest import Manifest
from canal.release.page import code, figure, section

NAMES = {"membership": "added", "patient": "replaced"}
_STYLES = {"added": "patient", "replaced": "image"}


def card(manifest: Manifest) -> CardParts:
    """What only a gradient release shows."""
    plan, adapter = manifest.plan, manifest.plan["adapter"]
    counted = "counted with noise" if plan["count"] else "as stated"
    facts = {
        "Sites": number(plan["sites"]),
        "Patients": f"{number(round(manifest.statistics['patients']))}, {counted}",
        "Rounds": number(plan["rounds"]),
        "Parameters": number(plan["parameters"]),
        "Noise spread": plan["allocation"],
    }
    if plan["directions"]:
        facts["Directions"] = number(plan["directions"])
    parts = ", ".join(code(part) for part in adapter["parts"])
    taught = "all weights" if adapter["parts"] == ["*"] else parts
    products = f", and products of rank {adapter['rank']} beside convolutions" * bool(
        adapter["rank"]
    )
    within = f", in {number(plan['directions'])} directions" * bool(plan["directions"])
    update = manifest.statistics["update"]
    return CardParts(
        title="release of adapters",
        facts=facts,
        sections=[_charts(manifest.statement)],
        holds=[
            f"Noisy sums of {number(len(manifest.shards))} rounds for {taught}{products}: "
            f"{number(plan['parameters'])} parameters of the shared network{within}.",
            f"Readers take steps of {short(update['step'])} clips with momentum "
            f"{short(update['momentum'])}, and average the last "
            f"{short(100 * update['averaged'])} % of the networks.",
        ],
        beside=[
            f"The directions, {code(BASIS)}, which follow from the recipient's images; "
            f"{code('canal release verify')} holds their content against its digest, "
            f"{code(shortened(manifest.statistics['basis']))}."
        ]
        if plan["directions"]
        else (),
    )


def _charts(statement: dict[str, Any]) -> str:
    rows = statement["epsilon_by_rounds"]
    if len(rows) < 2:
        return ""
    title = "What the rounds cost, one after the other"
    drawn: dict[str, list[Point]] = {
        name: [(row["rounds"], row[unit]) for row in rows] for unit, name in NAMES.items()
    }
    last = rows[-1]["rounds"]
    here = (last, f"this release: {number(last)}")
    chart = lines("rounds", title, drawn, "rounds", "ε, smaller is safer", here, styles=_STYLES)
    return section("Rounds", f'<div class="charts">{figure(title, chart)}</div>', style="wide")
