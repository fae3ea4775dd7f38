"""The privacy card: what a privacy officer reads and signs, as one page that needs nothing else.

All of it follows from the manifest, so the same release has the same card, to the byte. It
answers what NIST SP 800-226 asks, most important first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from canal.release.digits import number, upwards
from canal.release.manifest import MANIFEST, Manifest
from canal.release.page import (
    bullets,
    code,
    document,
    facts,
    note,
    section,
    sentences,
    table,
    text,
)
from canal.release.record import said_of_overlap
from canal.release.registry import kind_of

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
NOT_STATED = "not stated"


@dataclass(frozen=True, kw_only=True)
class CardParts:
    """What only one mechanism shows on a card.

    Args:
        title: what is released.
        facts: a few of the most important, for the top.
        sections: behind the guarantee.
        holds: what is in the folder.
        beside: other files in it.
    """

    title: str
    facts: Mapping[str, str]
    sections: Sequence[str]
    holds: Sequence[str]
    beside: Sequence[str] = ()


def render(manifest: Manifest) -> str:
    """The card of a release, an HTML document.

    Args:
        manifest: of the release; all that the card says is in it.
    """
    statement, parts = manifest.statement, kind_of(manifest.kind).card(manifest)
    by = "relation" if len(_people(statement)) > 1 else "unit of privacy"
    sections = (
        section("Who is protected, against what", sentences(statement["protected"])),
        section(f"The guarantee, by {by}", *_guarantee(statement), style="wide"),
        *parts.sections,
        section("Trust model", sentences(statement["trust"])),
        section("Mechanism", sentences(statement["mechanism"])),
        section("Not protected", sentences(statement["not_protected"])),
        section("Assumptions", sentences(statement["assumptions"])),
        section("Overlap", sentences(said_of_overlap(manifest.record["overlap"]))),
        section("About this release", _about(manifest)),
        section("In this folder", *_folder(manifest, parts)),
        section("Ledger", *_ledger(manifest)),
        section("Check it yourself", *_commands()),
        section("Signature", *_signature(manifest)),
    )
    title = f"Privacy card {manifest.digest[:DIGEST_LETTERS]}"
    top = (_banner(statement), _headline(statement, parts))
    return document(title, (*top, *sections, _footer(manifest)))


def _banner(statement: dict[str, Any]) -> str:
    """The warning on everything that protects nobody."""
    words = statement["stamp"]
    return f'<p class="stamp">{text(words)}</p>' if words else ""


def _people(statement: dict[str, Any]) -> list[str]:
    """Units that are patients; two, where each relation has a number of its own."""
    return [unit for unit in statement["guarantee"] if unit in ("membership", "patient")]


def _headline(statement: dict[str, Any], parts: CardParts) -> str:
    """The top of a card: its numbers, what they mean, and a few facts."""
    unit, people = statement["unit"], _people(statement)
    units = list(dict.fromkeys((unit, *people)))
    if all(statement["guarantee"][unit]["epsilon"] is None for unit in units):
        figures = "<span><b>No guarantee</b> for anyone</span>"
    else:
        figures = "".join(headline_epsilon(statement, unit) for unit in units)
    reading = statement["guarantee"][unit if unit in people else "patient"]["reading"]
    strip = "".join(
        f"<div><dt>{key}</dt><dd>{text(value)}</dd></div>" for key, value in parts.facts.items()
    )
    return (
        f'<header>\n<p class="kind">Privacy card of a CANAL {parts.title}</p>\n<h1>{figures}</h1>\n'
        f'<p class="lede">{text(reading)}</p>\n'
        f'<dl class="strip">{strip}</dl>\n</header>'
    )


def headline_epsilon(statement: dict[str, Any], unit: str) -> str:
    """The one number, large, and for whom it is."""
    epsilon = statement["guarantee"][unit]["epsilon"]
    large = "No guarantee" if epsilon is None else f"ε = {number(upwards(epsilon))}"
    where = "" if epsilon is None else f", at δ = {number(statement['delta'])}"
    replaced = unit == "patient" and len(_people(statement)) > 1
    whom = REPLACED if replaced else FOR_WHOM[unit]
    return f'<span class="{unit}"><b>{large}</b> {whom}{where}</span>'


def _guarantee(statement: dict[str, Any]) -> Iterable[str]:
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


def _folder(manifest: Manifest, parts: CardParts) -> Iterable[str]:
    """What is in the folder, and the files with their digests."""
    people = manifest.participants
    cohorts = ", ".join(escape(cohort) for cohort in people["cohorts"])
    entries = [*parts.holds, f"Cohorts {cohorts}."]
    if "initialisation" in people:
        entries.append(f"Shared initialisation {code(shortened(people['initialisation']))}")
    yield bullets((*entries, *parts.beside))
    if not manifest.shards:
        yield note(f"All of it is in {MANIFEST}; its digest is the one below.")
        return
    shards = manifest.shards[:MOST_SHARDS]
    rows = [
        (code(shard["file"]), number(shard["rows"]), code(shortened(shard["sha256"])))
        for shard in shards
    ]
    yield table(("File", "Rows", "SHA-256"), rows, numbers=(1,))
    left = len(manifest.shards) - len(shards)
    more = f"{number(left)} more files are not named here. " if left else ""
    yield note(f"{more}Digests are shortened; {MANIFEST} has them in full.")


def _about(manifest: Manifest) -> str:
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


def _ledger(manifest: Manifest) -> Iterable[str]:
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


def _commands() -> Iterable[str]:
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


def _signature(manifest: Manifest) -> Iterable[str]:
    """Where to sign."""
    yield f"<p>I have read the card of the release {code(manifest.digest)}.</p>"
    fields = "".join(
        f'<div class="field">{name}</div>' for name in ("Name", "Office", "Date", "Signature")
    )
    yield f'<div class="fields">{fields}</div>'


def _footer(manifest: Manifest) -> str:
    """What the page follows from."""
    about = note(
        f"This card follows from {MANIFEST} alone, whose digest is the one above. It answers what "
        "NIST SP 800-226 asks of a differential privacy guarantee."
    )
    return f"<footer>{_banner(manifest.statement)}{about}</footer>"


def shortened(digest: str) -> str:
    """The first letters of a digest."""
    return f"{digest[:DIGEST_LETTERS]}…"
