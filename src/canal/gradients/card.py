"""The privacy card of an adapter release: one page, for a privacy officer to read and sign."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from canal.gradients.basis import BASIS
from canal.release.card import (
    DIGEST_LETTERS,
    about_table,
    banner,
    commands,
    files_table,
    footer,
    guarantee_table,
    header,
    headline_epsilon,
    ledger_table,
    shortened,
    signature,
)
from canal.release.chart import Point, lines
from canal.release.digits import number, short
from canal.release.manifest import Manifest
from canal.release.page import bullets, code, document, figure, section, sentences
from canal.release.record import said_of_overlap

NAMES = {"membership": "added", "patient": "replaced"}
_STYLES = {"added": "patient", "replaced": "image"}


def render(manifest: Manifest) -> str:
    """The card of an adapter release, an HTML document.

    Args:
        manifest: of the release; all that the card says is in it.
    """
    statement = manifest.statement
    sections = (
        section("Who is protected, against what", sentences(statement["protected"])),
        section("The guarantee, by relation", *guarantee_table(statement), style="wide"),
        _charts(statement),
        section("Trust model", sentences(statement["trust"])),
        section("Mechanism", sentences(statement["mechanism"])),
        section("Not protected", sentences(statement["not_protected"])),
        section("Assumptions", sentences(statement["assumptions"])),
        section("Overlap", sentences(said_of_overlap(manifest.record["overlap"]))),
        section("About this release", about_table(manifest)),
        section("In this folder", *_folder(manifest)),
        section("Ledger", *ledger_table(manifest)),
        section("Check it yourself", *commands()),
        section("Signature", *signature(manifest)),
    )
    title = f"Privacy card {manifest.digest[:DIGEST_LETTERS]}"
    return document(title, (banner(statement), _headline(manifest), *sections, footer(manifest)))


def _headline(manifest: Manifest) -> str:
    statement, plan = manifest.statement, manifest.plan
    units = list(dict.fromkeys((statement["unit"], *statement["guarantee"])))
    if all(statement["guarantee"][unit]["epsilon"] is None for unit in units):
        figures = "<span><b>No guarantee</b> for anyone</span>"
    else:
        figures = "".join(headline_epsilon(statement, unit) for unit in units)
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
    reading = statement["guarantee"][statement["unit"]]["reading"]
    return header("release of adapters", figures, reading, facts)


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


def _folder(manifest: Manifest) -> Iterable[str]:
    plan, people = manifest.plan, manifest.participants
    cohorts = ", ".join(escape(cohort) for cohort in people["cohorts"])
    adapter = plan["adapter"]
    parts = ", ".join(code(part) for part in adapter["parts"])
    taught = "all weights" if adapter["parts"] == ["*"] else parts
    beside = f", and products of rank {adapter['rank']} beside convolutions" * bool(adapter["rank"])
    within = f", in {number(plan['directions'])} directions" * bool(plan["directions"])
    update = manifest.statistics["update"]
    entries = [
        f"Noisy sums of {number(len(manifest.shards))} rounds for {taught}{beside}: "
        f"{number(plan['parameters'])} parameters of the shared network{within}.",
        f"Readers take steps of {short(update['step'])} clips with momentum "
        f"{short(update['momentum'])}, and average the last "
        f"{short(100 * update['averaged'])} % of the networks.",
        f"Cohorts {cohorts}.",
        f"Shared initialisation {code(shortened(people['initialisation']))}",
    ]
    if plan["directions"]:
        entries.append(
            f"The directions, {code(BASIS)}, which follow from the recipient's images; "
            f"{code('canal release verify')} holds their content against its digest, "
            f"{code(shortened(manifest.statistics['basis']))}."
        )
    yield bullets(entries)
    yield from files_table(manifest)
