"""What only a feature release says of itself: in its statement, and on its privacy card."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from html import escape
from itertools import groupby

from canal.features.calibration import CalibratedPlan
from canal.features.plan import Plan
from canal.privacy.events import GaussianEvent, Guarantee
from canal.privacy.units import UNITS, Participants
from canal.release.card import CardParts
from canal.release.chart import Point, bar, lines, scatter
from canal.release.digits import number, percent, short, upwards
from canal.release.manifest import Manifest
from canal.release.page import code, figure, section, table
from canal.release.statement import (
    IN_GENERAL,
    RANDOMNESS,
    Facts,
    Wording,
    every_patient,
    on_a_lattice,
    step_of,
)

_SPREAD = {
    "canal": "by water-filling (canal)",
    "uniform": "evenly (uniform)",
    "reverse": "by noise-aware water-filling (reverse)",
}
_WEIGHTED = {"importance": "importance", "matched": "importance and the square of the cap"}


def wording(calibrated: CalibratedPlan, facts: Facts) -> Wording:
    """What only this mechanism says in a statement."""
    plan, people = calibrated.plan, calibrated.plan.participants
    return Wording(
        split={
            "caps": plan.paid_split.caps,
            "importance": plan.paid_split.importance,
            "features": plan.paid_split.release,
        },
        steps="queries",
        after={count: had_asked(calibrated, count) for count in query_counts(plan)},
        protected=_protected(calibrated, facts) if facts.private else (),
        not_protected=_not_protected(plan),
        named="Names of cohorts and queries, how many there are of each",
        sees="every teacher's features",
        mechanism=_mechanism(calibrated, facts),
        one_cohort="No patient is in more than one cohort.",
        most=people.teachers,
        assumptions=[
            "No query shows a patient of a cohort.",
            *_persons(calibrated),
            "A teacher depends on its own cohort and on the shared initialisation, and that "
            "initialisation on no cohort.",
            RANDOMNESS,
        ],
    )


def query_counts(plan: Plan) -> list[int]:
    """Numbers of queries to compare: that of the plan, and powers of ten up to ten times it."""
    asked = plan.participants.queries
    return sorted({1, asked, *(10**power for power in range(1, 8) if 10**power <= 10 * asked)})


def had_asked(calibrated: CalibratedPlan, queries: int) -> Guarantee:
    """What the same noise would promise, had it answered this many queries."""
    plan = calibrated.plan
    images = min(plan.participants.images_per_person, queries)
    people = replace(plan.participants, queries=queries, images_per_person=images)
    events = (_asked_otherwise(event, plan, people) for event in calibrated.guarantee.events)
    return Guarantee(tuple(events))


def _asked_otherwise(event: GaussianEvent, plan: Plan, people: Participants) -> GaussianEvent:
    """The same noise, had these taken part."""
    if event.name == "features":
        made = replace(event, exposures=people.features(plan.diameter))
        return made.times(plan.releases)
    if event.name == "initialisation":
        return event
    bound = plan.bound if event.name == "caps" else 1.0
    private = plan.sources["caps" if event.name == "caps" else "importance"] == "private"
    exposures = people.statistic(bound) if private else people.read_in_the_clear(bound)
    return replace(event, exposures=exposures)


def _protected(calibrated: CalibratedPlan, facts: Facts) -> list[str]:
    plan, guarantee = calibrated.plan, calibrated.guarantee
    epsilon = guarantee.epsilon(plan.delta, "patient", plan.conversion)
    often = "once, with noise added once" if plan.releases == 1 else f"{plan.releases} times"
    sentences = [
        f"{every_patient(guarantee.mu('patient'), facts)}, with epsilon "
        f"{short(upwards(epsilon))} at delta {short(plan.delta)}, against anyone who reads this "
        "folder, whatever else they know or will know.",
        f"{plan.participants.teachers} teachers answered {plan.participants.queries} queries, each "
        f"{often}. Reading the release again, or training any number of "
        "students on it, reveals nothing more.",
    ]
    image = guarantee.epsilon(plan.delta, "image", plan.conversion)
    if math.isfinite(image):
        most = plan.participants.images_per_person
        sentences.append(
            f"Every query image, with all images of one person ({most} at most), with epsilon "
            f"{short(upwards(image))}; for that, the teachers count as public."
        )
    if plan.unit == "paper":
        sentences.append(
            f"The epsilon of {plan.epsilon:g} that was asked for is the paper's reading. The one "
            f"to sign, or not to sign, is the patient's: {short(upwards(epsilon))}."
        )
    return sentences


def _not_protected(plan: Plan) -> list[str]:
    sentences = [IN_GENERAL]
    if plan.broken == "refuse":
        sentences.insert(
            0,
            "That there is a release at all. It was to be given up if a teacher returned NaN or "
            "infinity (broken = refuse), which can hang on one patient: no epsilon covers it.",
        )
    if plan.reads_queries or plan.trained_initialisation:
        why = " and ".join(
            ["caps or importance were read from them with public weights"] * plan.reads_queries
            + ["the shared initialisation was trained on them"] * plan.trained_initialisation
        )
        sentences.insert(
            1, f"The query images. They are the recipient's own and count as public; {why}."
        )
    return sentences


def _mechanism(calibrated: CalibratedPlan, facts: Facts) -> list[str]:
    plan, teachers = calibrated.plan, calibrated.plan.participants.teachers
    clamp = "clamped to be non-negative, " if plan.nonnegative else ""
    distance = "√2" if plan.nonnegative else "2"
    clipped = (
        f"{clamp}each channel clipped to its cap and divided by it, so that one teacher moves it "
        f"by at most {distance}/{teachers}"
    )
    published = f"{len(calibrated.published)} of {plan.channels} channels are published"
    silent = (
        "A teacher that returns NaN or infinity for a query says nothing there, and the divisor "
        f"stays {teachers}."
        if plan.broken == "zero"
        else "Had a teacher returned NaN or infinity for a query, there would be no release."
    )
    if plan.allocation == "none":
        return [
            f"The mean of {teachers} bottlenecks, without noise: {clipped}.",
            f"{published}, as integers on a lattice of step {step_of(calibrated)}.",
            silent,
        ]
    return [
        f"Gaussian mechanism on the mean of {teachers} bottlenecks: {clipped}.",
        f"{published}; noise is spread over them {_SPREAD[plan.allocation]}"
        + ("." if plan.allocation == "uniform" else f", weighted by {_WEIGHTED[plan.weight]}."),
        on_a_lattice("Features", calibrated, facts),
        silent,
    ]


def _persons(calibrated: CalibratedPlan) -> list[str]:
    """What the epsilon of a query image rests on, where there is one."""
    if not math.isfinite(calibrated.guarantee.rho("image")):
        return []
    most = calibrated.plan.participants.images_per_person
    return [f"Nobody is on more than {most} of the query images."]


PARTS = {
    "caps": "Caps: how large each channel gets",
    "importance": "Importance: how much each channel matters",
    "features": "Features: the channels themselves",
}
WEIGHTS = {"importance": "importance", "matched": "importance × cap²"}


def card(manifest: Manifest) -> CardParts:
    """What only this mechanism shows on a card."""
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
