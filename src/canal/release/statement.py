"""The statement: what a release promises, to whom, against whom, and what it does not promise.

Everything follows from the calibrated plan and a few public facts, so whoever holds a manifest can
derive it again and compare. The questions are those of NIST SP 800-226: unit of privacy, privacy
parameters, trust model, mechanism and its implementation, and what lies outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from canal.features.calibration import CalibratedPlan, finite_or_none
from canal.features.plan import Plan
from canal.privacy.events import GaussianEvent, Guarantee
from canal.privacy.gaussian import Conversion
from canal.privacy.units import UNITS, Participants, Unit
from canal.release.digits import short, upwards
from canal.release.promise import NO_PROTECTION, detected, promise


@dataclass(frozen=True)
class Facts:
    """What a statement says beside its plan; all of it public.

    Args:
        private: whether the noise came from a secret and there was noise at all.
        noise: where it came from.
        sampler: how bits become noise.
        lattice_step: of every sum.
        cohorts: names of the sites' training cohorts.
    """

    private: bool
    noise: str
    sampler: str
    lattice_step: float
    cohorts: tuple[str, ...]


def stamp(allocation: str, *, private: bool) -> str:
    """The warning on everything that protects nobody; empty otherwise."""
    if allocation == "none":
        return "NOT PRIVATE: no noise was added; for research on public data only"
    if not private:
        return "NOT PRIVATE: the noise is seeded and anyone can make it again; for research only"
    return ""


def state(calibrated: CalibratedPlan, facts: Facts) -> dict[str, Any]:
    """Everything a privacy officer signs, as plain values."""
    plan = calibrated.plan
    return {
        "stamp": stamp(plan.allocation, private=facts.private),
        "unit": plan.unit,
        "epsilon_asked": plan.epsilon,
        "delta": plan.delta,
        "conversion": plan.conversion,
        "guarantee": {
            unit: promise(
                calibrated.guarantee, unit, plan.delta, plan.conversion, private=facts.private
            )
            for unit in UNITS
        },
        "split": {
            "caps": plan.paid_split.caps,
            "importance": plan.paid_split.importance,
            "features": plan.paid_split.release,
        },
        "epsilon_by_queries": _by_queries(calibrated) if facts.private else [],
        "protected": _protected(calibrated, facts),
        "not_protected": _not_protected(calibrated),
        "trust": _trust(plan, facts),
        "mechanism": _mechanism(calibrated, facts),
        "assumptions": _assumptions(calibrated, facts),
    }


def _by_queries(calibrated: CalibratedPlan) -> list[dict[str, float | None]]:
    """Epsilon of every unit had the same noise answered this many queries."""
    plan = calibrated.plan
    table: list[dict[str, float | None]] = []
    for count in query_counts(plan):
        found = had_asked(calibrated, count).epsilons(plan.delta, plan.conversion)
        table.append({"queries": count} | {u: finite_or_none(e) for u, e in found.items()})
    return table


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
    warning = stamp(plan.allocation, private=facts.private)
    if warning:
        return [f"{warning}."]
    epsilon = guarantee.epsilon(plan.delta, "patient", plan.conversion)
    in_name = detected(guarantee.mu("patient")) > NO_PROTECTION
    often = "once, with noise added once" if plan.releases == 1 else f"{plan.releases} times"
    sentences = [
        ("In name only: e" if in_name else "E")
        + f"very patient of the training cohorts {', '.join(facts.cohorts)}, with epsilon "
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


def _not_protected(calibrated: CalibratedPlan) -> list[str]:
    plan = calibrated.plan
    sentences = [
        "What is true of patients in general: a good model shows it whether or not a given patient "
        "took part.",
        "Names of cohorts and queries, how many there are of each, and every number of the plan: "
        "they are published as they are.",
        "Other releases about the same patients. Their costs add up; the ledger of each site keeps "
        "the sum.",
        "How long the computation took, and anything a site publishes by other ways.",
    ]
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


def _trust(plan: Plan, facts: Facts) -> list[str]:
    if plan.trust == "secure-sum":
        return secure_sum(plan.participants.teachers, plan.colluding, plan.excess, facts)
    return central("every teacher's features", facts)


def secure_sum(sites: int, told: int, excess: float, facts: Facts) -> list[str]:
    """Who is trusted with what where every site adds a share of the noise.

    Args:
        sites: K.
        told: t, the sites that may tell others their shares.
        excess: how much wider the noise is for readers.
        facts: of the release.
    """
    whoever = f"whoever learns the shares of {told} of them" if told else "anyone who learns none"
    return [
        f"Secure sum of {sites} sites (secure-sum): every site adds a share of the noise before it "
        "sends anything, under masks that cancel only in the sum over all. The aggregator learns "
        "that noisy sum, and nothing of a single site.",
        f"Colluding sites: t = {told}. Each share has a variance of 1/{sites - told} of the noise "
        f"that is accounted for, so every epsilon here holds against {whoever}, the aggregator "
        f"among them. Readers face {short(excess)} times that noise.",
        f"Noise: {facts.noise}."
        + (
            " Each secret stays at its site and is destroyed when the release is finished."
            if facts.private
            else ""
        ),
    ]


def central(what: str, facts: Facts) -> list[str]:
    """Who is trusted with what where an aggregator adds the noise.

    Args:
        what: it sees without noise.
        facts: of the release.
    """
    return [
        f"Central model: the aggregator sees {what} before noise is added (and all images, where "
        "it reads the folders of the sites itself), and all sites trust it with that. The readers "
        "of this folder need not be trusted.",
        f"Noise: {facts.noise}."
        + (
            " The secret was never in this folder and is destroyed when the release is finished; "
            "whoever kept a copy could take the noise off."
            if facts.private
            else ""
        ),
    ]


def _mechanism(calibrated: CalibratedPlan, facts: Facts) -> list[str]:
    plan, teachers = calibrated.plan, calibrated.plan.participants.teachers
    clamp = "clamped to be non-negative, " if plan.nonnegative else ""
    distance = "√2" if plan.nonnegative else "2"
    step = f"2^{math.log2(facts.lattice_step):.0f}"
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
            f"{published}, as integers on a lattice of step {step}.",
            silent,
        ]
    return [
        f"Gaussian mechanism on the mean of {teachers} bottlenecks: {clipped}.",
        f"{published}; noise is spread over them {_SPREAD[plan.allocation]}"
        + ("." if plan.allocation == "uniform" else f", weighted by {_WEIGHTED[plan.weight]}."),
        f"Features are summed as integers on a lattice of step {step}, the noise is an integer too "
        f"({facts.sampler}); its finite precision is part of every epsilon here.",
        silent,
        "Epsilon follows from rho by "
        + (
            "the exact curve of the Gaussian mechanism."
            if plan.conversion == "exact"
            else "the paper's formula, which is never below the exact one."
        ),
    ]


_SPREAD = {
    "canal": "by water-filling (canal)",
    "uniform": "evenly (uniform)",
    "reverse": "by noise-aware water-filling (reverse)",
}
_WEIGHTED = {"importance": "importance", "matched": "importance and the square of the cap"}


def several_times(
    guarantee: Guarantee,
    units: Mapping[Unit, str],
    most: int,
    delta: float,
    conversion: Conversion,
) -> str:
    """What a patient pays who is in the data more often than is assumed.

    Args:
        guarantee: of the release.
        units: for whom, and how that is called behind a number.
        most: how often anybody can be there, as far as this is said.
        delta: of the plan.
        conversion: of the plan.
    """
    if most < 2:
        return ""
    said = []
    for times in range(2, min(most, 3) + 1):
        group = guarantee.farther(times)
        each = (
            short(upwards(group.epsilon(delta, unit, conversion))) + name
            for unit, name in units.items()
        )
        said.append(f"{' and '.join(each)} for one who is in {times}")
    return (
        f" If that is wrong, epsilon at delta {short(delta)} is {', '.join(said)}: mu grows "
        "with their number, rho with its square."
    )


def _persons(calibrated: CalibratedPlan) -> list[str]:
    """What the epsilon of a query image rests on, where there is one."""
    if not math.isfinite(calibrated.guarantee.rho("image")):
        return []
    most = calibrated.plan.participants.images_per_person
    return [f"Nobody is on more than {most} of the query images."]


def _assumptions(calibrated: CalibratedPlan, facts: Facts) -> list[str]:
    plan, twice = calibrated.plan, ""
    if facts.private:
        teachers = plan.participants.teachers
        guarantee = calibrated.guarantee
        twice = several_times(guarantee, {"patient": ""}, teachers, plan.delta, plan.conversion)
    sentences = [
        "No patient is in more than one cohort." + twice,
        "No query shows a patient of a cohort.",
        *_persons(calibrated),
        "A teacher depends on its own cohort and on the shared initialisation, and that "
        "initialisation on no cohort.",
        "ChaCha20 under keys from HKDF-SHA256 cannot be told from true randomness.",
    ]
    if plan.trust == "trusted":
        return [
            *sentences,
            "The software ran as published, on a machine that only the aggregator controls.",
        ]
    return [
        *sentences,
        "X25519 keys that two sites agree on are known to nobody else; every site knew the "
        "identity of every other beforehand.",
        f"At all but {plan.colluding} of the sites the software ran as published, on a machine "
        "that only the site controls.",
    ]
