"""The statement: what a release promises, to whom, against whom, and what it does not promise.

Everything follows from the calibrated plan and a few public facts, so whoever holds a manifest can
derive it again and compare. The questions are those of NIST SP 800-226: unit of privacy, privacy
parameters, trust model, mechanism and its implementation, and what lies outside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from canal.privacy.events import GaussianEvent, Guarantee
from canal.privacy.units import NEIGHBOURS, UNITS, Unit
from canal.release.calibration import CalibratedPlan, finite_or_none

FALSE_ALARMS = 0.01
# Found out of a hundred members, at one false alarm in a hundred, from which on we say so.
NO_PROTECTION = 0.9


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


def stamp(calibrated: CalibratedPlan, *, private: bool) -> str:
    """The warning on everything that protects nobody; empty otherwise."""
    if calibrated.plan.allocation == "none":
        return "NOT PRIVATE: no noise was added; for research on public data only"
    if not private:
        return "NOT PRIVATE: the noise is seeded and anyone can make it again; for research only"
    return ""


def state(calibrated: CalibratedPlan, facts: Facts) -> dict[str, Any]:
    """Everything a privacy officer signs, as plain values."""
    plan = calibrated.plan
    return {
        "stamp": stamp(calibrated, private=facts.private),
        "unit": plan.unit,
        "epsilon_asked": plan.epsilon,
        "delta": plan.delta,
        "conversion": plan.conversion,
        "guarantee": {unit: _promise(calibrated, unit, private=facts.private) for unit in UNITS},
        "split": {
            "caps": plan.paid_split.caps,
            "importance": plan.paid_split.importance,
            "features": plan.paid_split.release,
        },
        "epsilon_by_queries": _by_queries(calibrated) if facts.private else [],
        "protected": _protected(calibrated, facts),
        "not_protected": _not_protected(calibrated),
        "trust": _trust(facts),
        "mechanism": _mechanism(calibrated, facts),
        "assumptions": _assumptions(),
    }


def short(number: float) -> str:
    """Four digits, and no zeros in an exponent: 1e-5."""
    return f"{number:.4g}".replace("e-0", "e-").replace("e+0", "e")


def _promise(calibrated: CalibratedPlan, unit: Unit, *, private: bool) -> dict[str, Any]:
    plan, promise = calibrated.plan, calibrated.guarantee
    if not private:
        nothing = dict.fromkeys(("epsilon", "epsilon_exact", "rho", "mu"))
        return nothing | {
            "neighbours": NEIGHBOURS[unit],
            "reading": "Nothing is promised.",
            "parts": {},
        }
    epsilon = promise.epsilon(plan.delta, unit, plan.conversion)
    rho, mu = promise.rho(unit), promise.mu(unit)
    return {
        "epsilon": finite_or_none(epsilon),
        "epsilon_exact": finite_or_none(promise.epsilon(plan.delta, unit, "exact")),
        "rho": finite_or_none(rho),
        "mu": finite_or_none(mu),
        "neighbours": NEIGHBOURS[unit],
        "reading": _reading(unit, epsilon, mu),
        "parts": {
            event.name: {
                "rho": finite_or_none(event.rho(unit)),
                "share": event.rho(unit) / rho if 0 < rho < math.inf else None,
            }
            for event in promise.events
        },
    }


def _reading(unit: Unit, epsilon: float, mu: float) -> str:
    if math.isinf(epsilon):
        return (
            "No guarantee: caps and importance were read from the query images with public "
            "weights and are published as they are. Query images count as public here."
        )
    if unit == "paper":
        return "The paper's accounting, to be compared with its tables; a guarantee for nobody."
    caught = _detected(mu)
    whom = "patients of a training cohort" if unit == "patient" else "query images"
    sentence = (
        "Someone who reads this release and wrongly names 1 in 100 outsiders can rightly name at "
        f"most {100 * caught:.3g} in 100 {whom}."
    )
    return sentence + (" That is no protection." if caught > NO_PROTECTION else "")


def _detected(mu: float) -> float:
    """Most true positives at 1 % false ones that Gaussian DP with this mu leaves."""
    normal = NormalDist()
    return normal.cdf(normal.inv_cdf(FALSE_ALARMS) + mu)


def _by_queries(calibrated: CalibratedPlan) -> list[dict[str, float | None]]:
    """Epsilon of every unit had the same noise answered this many queries."""
    plan = calibrated.plan
    counts = {1, plan.participants.queries}
    counts |= {10**power for power in range(1, 7) if 10**power < 10 * plan.participants.queries}
    table = []
    for count in sorted(counts):
        people = replace(
            plan.participants,
            queries=count,
            images_per_person=min(plan.participants.images_per_person, count),
        )
        events = tuple(
            GaussianEvent(event.name, event.sigma, people.features(plan.diameter), event.draws)
            if event.name == "features"
            else event
            for event in calibrated.guarantee.events
        )
        found = Guarantee(events).epsilons(plan.delta, plan.conversion)
        table.append({"queries": count} | {u: finite_or_none(e) for u, e in found.items()})
    return table


def _protected(calibrated: CalibratedPlan, facts: Facts) -> list[str]:
    warning = stamp(calibrated, private=facts.private)
    if warning:
        return [f"{warning}."]
    plan, promise = calibrated.plan, calibrated.guarantee
    epsilon = promise.epsilon(plan.delta, "patient", plan.conversion)
    in_name = _detected(promise.mu("patient")) > NO_PROTECTION
    sentences = [
        ("In name only: e" if in_name else "E")
        + f"very patient of the training cohorts {', '.join(facts.cohorts)}, with epsilon "
        f"{epsilon:.4g} at delta {short(plan.delta)}, against anyone who reads this folder, "
        "whatever else they know and however much they compute.",
        f"{plan.participants.teachers} teachers answered {plan.participants.queries} queries, each "
        "once, with noise added once. Reading the release again, or training any number of "
        "students on it, reveals nothing more.",
    ]
    if plan.unit == "paper":
        sentences.append(
            f"The epsilon of {plan.epsilon:g} that was asked for is the paper's reading. The one "
            f"to sign, or not to sign, is the patient's: {epsilon:.4g}."
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
    if plan.reads_queries:
        sentences.insert(
            1,
            "The query images. They are the recipient's own and count as public; caps or "
            "importance were read from them with public weights.",
        )
    return sentences


def _trust(facts: Facts) -> list[str]:
    return [
        "Central model: the aggregator sees every teacher's features before noise is added, and "
        "all sites trust it with that. The readers of this folder need not be trusted.",
        f"Noise: {facts.noise}."
        + (
            " The secret was never in this folder and is destroyed when the release is finished; "
            "whoever kept a copy could take the noise off."
            if facts.private
            else ""
        ),
    ]


def _mechanism(calibrated: CalibratedPlan, facts: Facts) -> list[str]:
    plan = calibrated.plan
    clamp = "clamped to be non-negative, " if plan.nonnegative else ""
    step = f"2^{math.log2(facts.lattice_step):.0f}"
    return [
        f"Gaussian mechanism on the mean of {plan.participants.teachers} clipped bottlenecks: "
        f"{clamp}each channel clipped to its cap and divided by it, so that one teacher moves it "
        f"by at most {plan.diameter:.4g}/{plan.participants.teachers}.",
        f"{len(calibrated.published)} of {plan.channels} channels are published; noise is spread "
        f"over them by the allocation {plan.allocation!r} with weight {plan.weight!r}.",
        f"All sums are integers on a lattice of step {step}, the noise is an integer "
        f"too ({facts.sampler}); its finite precision is part of every epsilon here.",
        f"Conversion between rho and epsilon: {plan.conversion}.",
    ]


def _assumptions() -> list[str]:
    return [
        "No patient is in more than one cohort. A patient in two has twice the distance to move "
        "things by.",
        "A teacher depends on its own cohort and on the shared initialisation, and that "
        "initialisation on no cohort.",
        "The software ran as published, on a machine that only the aggregator controls.",
    ]
