"""What a feature release says of itself in a statement (`canal.release.statement`)."""

from __future__ import annotations

import math
from dataclasses import replace

from canal.features.calibration import CalibratedPlan
from canal.features.plan import Plan
from canal.privacy.events import GaussianEvent, Guarantee
from canal.privacy.units import Participants
from canal.release.digits import short, upwards
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
    """What only a feature release says."""
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
