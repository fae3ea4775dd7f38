"""The privacy card: what a privacy officer reads and signs, as one page that needs nothing else.

All of it follows from the manifest, so the same release has the same card, to the byte. It
answers what NIST SP 800-226 asks, most important first.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import groupby
from typing import Any

from canal.privacy.units import UNITS
from canal.release.chart import Point, bar, lines, scatter
from canal.release.digits import number, percent, upwards
from canal.release.manifest import MANIFEST, Manifest
from canal.release.page import (
    bullets,
    code,
    document,
    facts,
    figure,
    note,
    section,
    sentences,
    table,
    text,
)
from canal.release.record import said_of_overlap

# Every shard has its digest in the manifest; the card names no more of them than fit a page.
MOST_SHARDS = 12
DIGEST_LETTERS = 12
FOR_WHOM = {
    "patient": "for a patient of a training cohort",
    "image": "for a query image",
    "paper": "in the paper’s accounting",
    "membership": "for a patient who is added or removed",
}
# The same patient, where both relations stand beside each other.
REPLACED = "for a patient who is replaced by another"
PARTS = {
    "caps": "Caps: how large each channel gets",
    "importance": "Importance: how much each channel matters",
    "features": "Features: the channels themselves",
}
NOT_STATED = "not stated"
WEIGHTS = {"importance": "importance", "matched": "importance × cap²"}


def render(manifest: Manifest) -> str:
    """The card of a release, an HTML document.

    Args:
        manifest: of the release; all that the card says is in it.
    """
    statement = manifest.statement
    sections = (
        section("Who is protected, against what", sentences(statement["protected"])),
        section("The guarantee, by unit of privacy", *guarantee_table(statement), style="wide"),
        section("Where the budget went", *_budget(manifest), style="wide"),
        _charts(manifest),
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


def banner(statement: dict[str, Any]) -> str:
    """The warning on everything that protects nobody."""
    words = statement["stamp"]
    return f'<p class="stamp">{text(words)}</p>' if words else ""


def _headline(manifest: Manifest) -> str:
    statement, plan = manifest.statement, manifest.plan
    units = list(dict.fromkeys((statement["unit"], "patient")))
    if all(statement["guarantee"][unit]["epsilon"] is None for unit in units):
        figures = "<span><b>No guarantee</b> for anyone</span>"
    else:
        figures = "".join(headline_epsilon(statement, unit) for unit in units)
    people = plan["participants"]
    facts = {
        "Sites": number(people["teachers"]),
        "Queries": number(people["queries"]),
        "Channels": f"{number(len(manifest.mechanism['channels']))} of {number(plan['channels'])}",
        "Allocation": plan["allocation"],
        "Weights": WEIGHTS[plan["weight"]],
    }
    return header("release", figures, statement["guarantee"]["patient"]["reading"], facts)


def header(kind: str, figures: str, reading: str, facts: dict[str, str]) -> str:
    """The top of a card: its numbers, what they mean, and a few facts."""
    strip = "".join(
        f"<div><dt>{key}</dt><dd>{text(value)}</dd></div>" for key, value in facts.items()
    )
    return (
        f'<header>\n<p class="kind">Privacy card of a CANAL {kind}</p>\n<h1>{figures}</h1>\n'
        f'<p class="lede">{text(reading)}</p>\n'
        f'<dl class="strip">{strip}</dl>\n</header>'
    )


def headline_epsilon(statement: dict[str, Any], unit: str) -> str:
    """The one number, large, and for whom it is."""
    epsilon = statement["guarantee"][unit]["epsilon"]
    large = "No guarantee" if epsilon is None else f"ε = {number(upwards(epsilon))}"
    where = "" if epsilon is None else f", at δ = {number(statement['delta'])}"
    both = {"patient", "membership"} <= statement["guarantee"].keys()
    whom = REPLACED if both and unit == "patient" else FOR_WHOM[unit]
    return f'<span class="{unit}"><b>{large}</b> {whom}{where}</span>'


def guarantee_table(statement: dict[str, Any]) -> Iterable[str]:
    """What is promised to every unit."""
    rows = []
    for unit, promise in statement["guarantee"].items():
        epsilon, exact = (number(upwards(promise[name])) for name in ("epsilon", "epsilon_exact"))
        asked = "<small>asked for</small>" if unit == statement["unit"] else ""
        tighter = "" if exact == epsilon else f"<small>exact: {exact}</small>"
        delta = "none" if promise["epsilon"] is None else number(statement["delta"])
        numbers = (delta, number(promise["rho"]), number(promise["mu"]))
        words = (text(promise["neighbours"]), text(promise["reading"]))
        rows.append((unit + asked, epsilon + tighter, *numbers, *words))
    head = ("Unit", "ε", "δ", "ρ", "μ", "Neighbours: what may differ", "What that means")
    yield table(head, rows, numbers=range(1, 5), words=(5, 6), style="reflow")
    below = (
        ""
        if statement["conversion"] == "exact"
        else "“Exact” is the same by the exact conversion. "
    )
    yield note(
        "Smaller is safer. ε and δ are those of differential privacy, ρ of zero-concentrated and μ "
        f"of Gaussian differential privacy. {below}Four digits are shown, ε rounded up; {MANIFEST} "
        "has them all."
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


def _folder(manifest: Manifest) -> Iterable[str]:
    plan, people = manifest.plan, manifest.participants
    grid = " × ".join(number(side) for side in plan["grid"])
    channels = manifest.mechanism["channels"]
    cohorts = ", ".join(escape(cohort) for cohort in people["cohorts"])
    yield bullets(
        (
            f"Features of {number(len(manifest.rows))} query images at {code(people['tap'])}, "
            f"for each {number(len(channels))} channels of {grid} values.",
            f"Channels {_runs(channels)}.",
            f"Cohorts {cohorts}.",
            f"Shared initialisation {code(shortened(people['initialisation']))}",
        )
    )
    yield from files_table(manifest)


def files_table(manifest: Manifest) -> Iterable[str]:
    """The files, with their digests."""
    shards = manifest.shards[:MOST_SHARDS]
    rows = [
        (code(shard["file"]), number(shard["rows"]), code(shortened(shard["sha256"])))
        for shard in shards
    ]
    yield table(("File", "Rows", "SHA-256"), rows, numbers=(1,))
    left = len(manifest.shards) - len(shards)
    more = f"{number(left)} more files are not named here. " if left else ""
    yield note(f"{more}Digests are shortened; {MANIFEST} has them in full.")


def about_table(manifest: Manifest) -> str:
    """What its makers say about the release."""
    record = manifest.record
    rows = [
        ("Day", text(record["date"])),
        ("Purpose", text(record["purpose"] or NOT_STATED)),
        ("Contact", text(record["contact"] or NOT_STATED)),
        ("Software", text(manifest.software)),
        ("Code, SHA-256", " ".join(code(digest) for digest in record["code"])),
    ]
    return facts(rows)


def ledger_table(manifest: Manifest) -> Iterable[str]:
    """Who paid."""
    ledger = manifest.ledger
    if ledger is None:
        yield "<p>Nothing was charged to a ledger.</p>"
        return
    yield f"<p>Charged before any noise was drawn, under the key {code(ledger['key'])}.</p>"
    rows = [
        (escape(c["cohort"]), escape(c["unit"]), number(c["rho"]), number(c["draws"]))
        for c in ledger["charges"]
    ]
    yield table(("Cohort", "Unit", "ρ", "Noise values"), rows, numbers=(2, 3))
    totals = ledger["totals"]
    if totals:
        yield "<p>What each cohort has spent in all, with this release, of what it may spend:</p>"
        spent = [
            (
                *(escape(total["cohort"]), escape(total["unit"])),
                *(number(upwards(total["epsilon_spent"])), number(total["epsilon_budget"])),
                number(total["delta"]),
            )
            for total in totals
        ]
        yield table(("Cohort", "Unit", "ε spent", "ε budget", "δ"), spent, numbers=(2, 3, 4))
        yield note(
            "Sums of what releases cost by their plans; no patient’s data enter them. What holds "
            "over all releases, however they were chosen, is the budget."
        )
    head = ledger["head"]
    if head is not None:
        yield facts(
            [
                ("Head before", code(head["before"])),
                ("Head after", code(head["after"])),
            ]
        )
        yield note(
            "The ledger’s own digest of all its rows, before and after this charge. A ledger that "
            "does not hold both is not the one that was charged, or lost rows: "
            "canal ledger verify LEDGER --head HEAD."
        )


def commands() -> Iterable[str]:
    """How to check a release."""
    for command, words in (
        (
            "canal release verify DIR",
            "compares every file with its digest, and derives every promise and this card again.",
        ),
        (
            "canal account DIR --json",
            "prices the release again, for every unit, to be compared with your own accountant.",
        ),
    ):
        yield f"<pre><code>{command}</code></pre>{note(words)}"


def signature(manifest: Manifest) -> Iterable[str]:
    """Where to sign."""
    yield f"<p>I have read the card of the release {code(manifest.digest)}.</p>"
    fields = "".join(
        f'<div class="field">{name}</div>' for name in ("Name", "Office", "Date", "Signature")
    )
    yield f'<div class="fields">{fields}</div>'


def footer(manifest: Manifest) -> str:
    """What the page follows from."""
    about = note(
        f"This card follows from {MANIFEST} alone, whose digest is the one above. It answers what "
        "NIST SP 800-226 asks of a differential privacy guarantee."
    )
    return f"<footer>{banner(manifest.statement)}{about}</footer>"


def shortened(digest: str) -> str:
    """The first letters of a digest."""
    return f"{digest[:DIGEST_LETTERS]}…"


def _runs(channels: Iterable[int]) -> str:
    """Numbers in order, neighbours as one: 0–2, 7."""
    runs = []
    for _, group in groupby(enumerate(sorted(channels)), key=lambda pair: pair[1] - pair[0]):
        run = [channel for _, channel in group]
        runs.append(number(run[0]) if len(run) == 1 else f"{number(run[0])}–{number(run[-1])}")
    return ", ".join(runs)
