"""What only a gradient release says of itself: in its statement, and on its privacy card."""

from __future__ import annotations

from typing import Any

from canal.gradients.plan import AdapterPlan, CalibratedAdapterPlan
from canal.gradients.subspace import BASIS
from canal.privacy.units import Unit
from canal.release.card import CardParts, shortened
from canal.release.chart import Point, lines
from canal.release.digits import number, short, upwards
from canal.release.manifest import Manifest
from canal.release.page import code, figure, section
from canal.release.statement import (
    IN_GENERAL,
    RANDOMNESS,
    Facts,
    Wording,
    every_patient,
    on_a_lattice,
)

# Of arbitrary teachers more may change; here a patient has a part of their own, and no other.
NEIGHBOURS: dict[Unit, str] = {
    "membership": "one patient, with all of their images, is added to one site's training cohort, "
    "or removed from it; everybody else's part stays as it is",
    "patient": "one patient of one site's training cohort, with all of their images, is replaced "
    "by another; everybody else's part stays as it is",
}


def wording(calibrated: CalibratedAdapterPlan, facts: Facts) -> Wording:
    """What only this mechanism says in a statement."""
    plan = calibrated.plan
    rounds = sorted({1, plan.rounds, *(plan.rounds * part // 4 for part in (1, 2, 3))} - {0})
    return Wording(
        entries={"relation": plan.relation},
        neighbours=NEIGHBOURS,
        split={"count": plan.count, "rounds": 1 - plan.count},
        steps="rounds",
        after={float(count): calibrated.after(count) for count in rounds},
        protected=_protected(calibrated, facts) if facts.private else (),
        not_protected=_not_protected(plan),
        named="Names of cohorts, how many there are",
        sees="every site's sum of clipped gradients",
        mechanism=_mechanism(calibrated, facts),
        one_cohort="No patient is in more than one cohort, or under two names in one.",
        most=plan.patients,
        assumptions=_assumptions(plan),
    )


def _protected(calibrated: CalibratedAdapterPlan, facts: Facts) -> list[str]:
    plan, guarantee = calibrated.plan, calibrated.guarantee
    joined, replaced = (
        short(upwards(guarantee.epsilon(plan.delta, unit, plan.conversion)))
        for unit in ("membership", "patient")
    )
    return [
        f"{every_patient(guarantee.mu(plan.unit), facts)}, with all of their "
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
        IN_GENERAL,
        "The recipient's own images. They count as public: the initialisation was trained on them, "
        f"and {measured} were measured with them{basis}.",
    ]


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
        f"{spread}. {on_a_lattice('Gradients', calibrated, facts)}",
        "A patient's part depends on that patient alone: augmentation follows from the patient's "
        "own pixels, and before the first round the machine was tried: with made-up images it "
        "computed each gradient to the same bits, whatever was computed beside it.",
    ]


def _in_directions(plan: AdapterPlan) -> str:
    if not plan.directions:
        return ""
    return f" in {plan.directions} directions of a public basis"


def _assumptions(plan: AdapterPlan) -> list[str]:
    sentences = [
        "A patient is whom the records of a site name. Where they name lesions, sequences or cases "
        "instead, it is each of these that is protected, and a person with several pays more.",
        "Every cohort has a patient with a label, and nothing is wrong with its files that its "
        "site did not accept; one of which this is not true is refused, and that shows.",
        "None of the recipient's images shows a patient of a cohort.",
        "The shared initialisation depends on no cohort.",
        RANDOMNESS,
    ]
    if not plan.count:
        sentences.append(
            "The number of patients was public before; nobody took it from the cohorts' records "
            "for this release."
        )
    return sentences


NAMES = {"membership": "added", "patient": "replaced"}
_STYLES = {"added": "patient", "replaced": "image"}


def card(manifest: Manifest) -> CardParts:
    """What only this mechanism shows on a card."""
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
