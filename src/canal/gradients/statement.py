"""The statement of an adapter release: what it promises, to whom, and what it does not promise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from canal.gradients.plan import DISTANCE, AdapterPlan, CalibratedAdapterPlan
from canal.privacy.units import Unit
from canal.release.conditions import check_noise, noise_source
from canal.release.digits import short, upwards
from canal.release.promise import NO_PROTECTION, detected, promise
from canal.release.statement import Facts, central, secure_sum, several_times, stamp

__all__ = ["facts_of", "noise_source", "stamp", "state"]


# Of arbitrary teachers more may change; here a patient has a part of their own, and no other.
NEIGHBOURS: dict[Unit, str] = {
    "membership": "one patient, with all of their images, is added to one site's training cohort, "
    "or removed from it; everybody else's part stays as it is",
    "patient": "one patient of one site's training cohort, with all of their images, is replaced "
    "by another; everybody else's part stays as it is",
}


def facts_of(
    calibrated: CalibratedAdapterPlan, noise: Mapping[str, str], cohorts: Sequence[str]
) -> Facts:
    """What a statement says beside its plan; refuses noise of unknown origin."""
    return Facts(
        private=check_noise(calibrated.plan, noise["source"], noise["sampler"]),
        noise=noise["source"],
        sampler=noise["sampler"],
        lattice_step=calibrated.lattice.step,
        cohorts=tuple(cohorts),
    )


def state(calibrated: CalibratedAdapterPlan, facts: Facts) -> dict[str, Any]:
    """Everything a privacy officer signs, as plain values."""
    plan = calibrated.plan
    return {
        "stamp": stamp(plan.allocation, private=facts.private),
        "unit": plan.unit,
        "relation": plan.relation,
        "epsilon_asked": plan.epsilon,
        "delta": plan.delta,
        "conversion": plan.conversion,
        "guarantee": {
            unit: promise(
                *(calibrated.guarantee, unit, plan.delta, plan.conversion),
                private=facts.private,
                outsiders=unit == "membership",
            )
            | {"neighbours": NEIGHBOURS[unit]}
            for unit in DISTANCE
        },
        "split": {"count": plan.count, "rounds": 1 - plan.count},
        "epsilon_by_rounds": _by_rounds(calibrated) if facts.private else [],
        "protected": _protected(calibrated, facts),
        "not_protected": _not_protected(calibrated.plan),
        "trust": _trust(plan, facts),
        "mechanism": _mechanism(calibrated, facts),
        "assumptions": _assumptions(calibrated, facts),
    }


def _by_rounds(calibrated: CalibratedAdapterPlan) -> list[dict[str, float]]:
    """Epsilon after some of the rounds."""
    plan = calibrated.plan
    stops = sorted({1, plan.rounds, *(plan.rounds * part // 4 for part in (1, 2, 3))} - {0})
    return [
        {"rounds": float(stop)}
        | {
            unit: calibrated.after(stop).epsilon(plan.delta, unit, plan.conversion)
            for unit in DISTANCE
        }
        for stop in stops
    ]


def _protected(calibrated: CalibratedAdapterPlan, facts: Facts) -> list[str]:
    plan, guarantee = calibrated.plan, calibrated.guarantee
    warning = stamp(plan.allocation, private=facts.private)
    if warning:
        return [f"{warning}."]
    in_name = detected(guarantee.mu(plan.unit)) > NO_PROTECTION
    joined, replaced = (
        short(upwards(guarantee.epsilon(plan.delta, unit, plan.conversion)))
        for unit in ("membership", "patient")
    )
    return [
        ("In name only: e" if in_name else "E")
        + f"very patient of the training cohorts {', '.join(facts.cohorts)}, with all of their "
        f"images, against anyone who reads this folder, whatever else they know or will know: with "
        f"epsilon {joined} at delta {short(plan.delta)} where a patient is added or removed (what "
        f"DP-SGD reports), {replaced} where one is replaced by another.",
        f"{plan.rounds} rounds, each with noise added once; the network of a round follows from "
        "what was published before. Reading the release again, or training any number of networks "
        "with it, reveals nothing more.",
    ]


def _not_protected(plan: AdapterPlan) -> list[str]:
    basis = (
        "; a basis holds directions of their gradients, and may tell a reader what they show"
        if plan.directions
        else ""
    )
    measured = "scales, bounds and the basis" if plan.directions else "scales and bounds"
    return [
        "What is true of patients in general: a good model shows it whether or not a given patient "
        "took part.",
        "The recipient's own images. They count as public: the initialisation was trained on them, "
        f"and {measured} were measured with them{basis}.",
        "Names of cohorts, how many there are, and every number of the plan: they are published as "
        "they are.",
        "Other releases about the same patients. Their costs add up; the ledger of each site keeps "
        "the sum.",
        "How long the computation took, and anything a site publishes by other ways.",
    ]


def _trust(plan: AdapterPlan, facts: Facts) -> list[str]:
    if plan.trust == "secure-sum":
        return secure_sum(plan.sites, plan.colluding, plan.excess, facts)
    return central("every site's sum of clipped gradients", facts)


def _clipped(plan: AdapterPlan) -> str:
    """What is done to a patient's gradient, and how far it moves a sum then."""
    block = "direction" if plan.directions else "channel"
    how = {
        "ellipsoid": f"rescaled {block} by {block} by public numbers and clipped as a whole",
        "channels": f"clipped {block} by {block} to public bounds",
    }.get(plan.allocation, "clipped as a whole")
    what = f"every {block} of a sum" if plan.allocation == "channels" else "a sum"
    return (
        f"each patient's gradient, the mean over all of their images, is {how}, so that a patient "
        f"moves {what} by at most 1 (added or removed) or 2 (replaced), in units of the bound"
    )


def _mechanism(calibrated: CalibratedAdapterPlan, facts: Facts) -> list[str]:
    plan = calibrated.plan
    step = f"2^{math.log2(facts.lattice_step):.0f}"
    number = (
        f"The number of patients was counted with noise of {short(calibrated.count_sigma)}."
        if plan.count
        else f"The number of patients, {plan.patients}, is what somebody stated."
    )
    first = (
        f"{plan.rounds} sums over patients of gradients for {plan.parameters} parameters"
        f"{_in_directions(plan)}: {_clipped(plan)}."
    )
    if plan.allocation == "none":
        return [first, number, "No noise was added."]
    sigma = calibrated.sigma
    spread = (
        f"Noise of {short(float(sigma[0]))} bounds on every "
        + ("direction" if plan.directions else "parameter")
        if len(sigma) == 1
        else f"Noise of {short(float(sigma.min()))} to {short(float(sigma.max()))} bounds, by "
        "water-filling"
    )
    return [
        f"Gaussian mechanism on {first}",
        number,
        f"{spread}. Gradients are summed as integers on a lattice of step {step}, the noise is an "
        f"integer too ({facts.sampler}); its finite precision is part of every epsilon here.",
        "A patient's part depends on that patient alone: augmentation follows from the patient's "
        "own pixels, and before the first round the machine was tried: with made-up images it "
        "computed each gradient to the same bits, whatever was computed beside it.",
        "Epsilon follows from rho by "
        + (
            "the exact curve of the Gaussian mechanism."
            if plan.conversion == "exact"
            else "the paper's formula, which is never below the exact one."
        ),
    ]


def _in_directions(plan: AdapterPlan) -> str:
    if not plan.directions:
        return ""
    return f" in {plan.directions} directions of a public basis"


def _assumptions(calibrated: CalibratedAdapterPlan, facts: Facts) -> list[str]:
    plan, twice = calibrated.plan, ""
    relations: dict[Unit, str] = {"membership": " (added or removed)", "patient": " (replaced)"}
    if facts.private:
        guarantee = calibrated.guarantee
        twice = several_times(guarantee, relations, plan.patients, plan.delta, plan.conversion)
    sentences = [
        "No patient is in more than one cohort, or under two names in one." + twice,
        "A patient is whom the records of a site name. Where they name lesions, sequences or cases "
        "instead, it is each of these that is protected, and a person with several pays more.",
        "Every cohort has a patient with a label, and nothing is wrong with its files that its "
        "site did not accept; one of which this is not true is refused, and that shows.",
        "None of the recipient's images shows a patient of a cohort.",
        "The shared initialisation depends on no cohort.",
        "ChaCha20 under keys from HKDF-SHA256 cannot be told from true randomness.",
    ]
    if not plan.count:
        sentences.append(
            "The number of patients was public before; nobody took it from the cohorts' records "
            "for this release."
        )
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
