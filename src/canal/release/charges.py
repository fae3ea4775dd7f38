"""Who pays for a release: which cohorts, in which unit, how much. Fixed before it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from canal.privacy.ledger import Charge
from canal.privacy.units import Unit
from canal.release.plan import Calibrated, ReleasePlan

# The cohort that pays where the recipient's own images are protected.
QUERIES = "queries"
# Logarithms and exponentials of two machines agree up to this.
_LAST_BITS = 2.0**-44


def payers(plan: ReleasePlan, cohorts: Sequence[str]) -> list[tuple[str, Unit]]:
    """Who must have a budget, and in which unit."""
    return [
        (name, unit)
        for unit in plan.budgeted
        for name in ([QUERIES] if unit == "image" else cohorts)
    ]


def charges(calibrated: Calibrated, cohorts: Sequence[str]) -> list[Charge]:
    """What a release costs everyone, in every unit.

    The units that a plan calls `budgeted` need a budget that covers the cost. The others are
    written down as well, and bind where there is a budget. What costs a query image more than any
    number is charged to nobody.

    Args:
        calibrated: the plan with its noise, as far as that is known before the release is made.
        cohorts: of the sites.
    """
    plan, promise = calibrated.plan, calibrated.guarantee
    needed = payers(plan, cohorts)
    everyone: list[tuple[str, Unit]] = [
        (name, unit) for name in cohorts for unit in plan.charged if unit != "image"
    ]
    if "image" in plan.charged and math.isfinite(promise.rho("image")):
        everyone.append((QUERIES, "image"))
    return [
        Charge(
            *(cohort, unit, calibrated.charge(unit), promise.draws(unit)),
            needs_budget=(cohort, unit) in needed,
        )
        for cohort, unit in everyone
    ]


def covers(made: Sequence[dict[str, Any]], calibrated: Calibrated, cohorts: Sequence[str]) -> bool:
    """Whether charges pay for what was really released: everyone's, and enough."""
    promise = calibrated.guarantee
    return pays(
        made,
        {
            (each.cohort, each.unit): (promise.rho(each.unit), promise.draws(each.unit))
            for each in charges(calibrated, cohorts)
        },
    )


def pays(
    made: Sequence[dict[str, Any]], due: Mapping[tuple[str, Unit], tuple[float, float]]
) -> bool:
    """Whether charges in a manifest are everyone's, and enough.

    They may have been worked out by another machine, with other last bits.

    Args:
        made: the charges.
        due: rho and draws, by cohort and unit.
    """
    found = {(entry["cohort"], entry["unit"]): entry for entry in made}
    return found.keys() == due.keys() and all(
        found[who]["rho"] >= (1 - _LAST_BITS) * rho and found[who]["draws"] >= draws
        for who, (rho, draws) in due.items()
    )
