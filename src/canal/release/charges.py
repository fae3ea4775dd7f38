"""Who pays for a release: which cohorts, in which unit, how much. Fixed before it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from canal.errors import LedgerError
from canal.features.calibration import CalibratedPlan
from canal.privacy.ledger import Charge, Ledger
from canal.privacy.units import Unit

if TYPE_CHECKING:
    from canal.features.plan import Plan

QUERIES = "queries"
# Logarithms and exponentials of two machines agree up to this.
_LAST_BITS = 2.0**-44
_TEACHERS: tuple[Unit, ...] = ("patient", "paper", "membership")


def payers(plan: Plan, cohorts: Sequence[str]) -> list[tuple[str, Unit]]:
    """Who must have a budget: every cohort for its patients, and whoever the plan's unit names."""
    own = [(name, plan.unit) for name in ([QUERIES] if plan.unit == "image" else cohorts)]
    patients: list[tuple[str, Unit]] = [(name, "patient") for name in cohorts]
    return list(dict.fromkeys(own + patients))


def charges(calibrated: CalibratedPlan, cohorts: Sequence[str]) -> list[Charge]:
    """What a release costs everyone, in every unit.

    Whatever unit a plan counts in, the patients of each cohort need a budget that covers its cost
    to a patient. So does whoever the plan's own unit names. The cost to a query image is written
    down as well, unless it is infinite, and binds where there is a budget.

    Args:
        calibrated: the plan with flat weights; what it costs does not depend on them, up to
            rounding, which is rounded up here.
        cohorts: of the teachers.
    """
    plan = calibrated.plan
    needed = payers(plan, cohorts)
    everyone: list[tuple[str, Unit]] = [(name, unit) for name in cohorts for unit in _TEACHERS]
    if math.isfinite(calibrated.guarantee.rho("image")):
        everyone.append((QUERIES, "image"))
    return [
        Charge(
            *(cohort, unit, _rho(calibrated, unit), calibrated.guarantee.draws(unit)),
            needs_budget=(cohort, unit) in needed,
        )
        for cohort, unit in everyone
    ]


def check_queries(ledger: Ledger, calibrated: CalibratedPlan) -> None:
    """Refuse a plan that gives the query images up, where they have a budget."""
    have = {(row.cohort, row.unit) for row in ledger.rows() if row.action == "budget"}
    if (QUERIES, "image") in have and math.isinf(calibrated.guarantee.rho("image")):
        raise LedgerError(
            f"cohort {QUERIES!r} has a budget of unit image, but this plan publishes what is read "
            "from the query images in the clear; take private caps and importance, and an "
            "initialisation that was not trained on the queries"
        )


def _rho(calibrated: CalibratedPlan, unit: Unit) -> float:
    plan = calibrated.plan
    if unit == plan.unit:
        return math.fsum(plan.rho().values())
    # Flat weights may leave a little of the features' share unspent; the real ones need not.
    unspent = plan.rho()["release"] / calibrated.guarantee.events[-1].rho(plan.unit)
    return calibrated.guarantee.rho(unit) * unspent * (1 + 2.0**-40)


def covers(
    made: Sequence[dict[str, Any]], calibrated: CalibratedPlan, cohorts: Sequence[str]
) -> bool:
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
