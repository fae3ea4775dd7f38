"""Who pays for a release: which cohorts, in which unit, how much. Fixed before it is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from canal.errors import LedgerError
from canal.privacy.ledger import Charge, Ledger
from canal.privacy.units import Unit
from canal.release.calibration import CalibratedPlan

if TYPE_CHECKING:
    from canal.privacy.chain import Row
    from canal.release.plan import Plan

QUERIES = "queries"


def payers(plan: Plan, cohorts: Sequence[str]) -> list[tuple[str, Unit]]:
    """Who must have a budget in the unit of this plan: the teachers' cohorts, or the queries."""
    return [(name, plan.unit) for name in ([QUERIES] if plan.unit == "image" else cohorts)]


def charges(
    calibrated: CalibratedPlan, cohorts: Sequence[str], rows: Sequence[Row]
) -> list[Charge]:
    """What a release costs everyone who has to pay or has said what they may spend.

    A budget in any unit binds: a cohort with a patient-level budget pays at patient level even
    for a release whose plan counts as the paper does.

    Args:
        calibrated: the plan with flat weights; what it costs does not depend on them, up to
            rounding, which is rounded up here.
        cohorts: of the teachers.
        rows: of the ledger.
    """
    plan = calibrated.plan
    wanted = payers(plan, cohorts)
    have = {(row.cohort, row.unit) for row in rows if row.action == "budget"}
    others: list[tuple[str, Unit]] = [(name, unit) for name in cohorts for unit in _TEACHERS]
    wanted += [
        each for each in [*others, (QUERIES, "image")] if each in have and each not in wanted
    ]
    return [
        Charge(cohort, unit, _rho(calibrated, cohort, unit), calibrated.guarantee.draws(unit))
        for cohort, unit in wanted
    ]


_TEACHERS: tuple[Unit, ...] = ("patient", "paper")


def _rho(calibrated: CalibratedPlan, cohort: str, unit: Unit) -> float:
    plan = calibrated.plan
    if unit == plan.unit:
        return math.fsum(plan.rho().values())
    rho = calibrated.guarantee.rho(unit)
    if math.isinf(rho):
        raise LedgerError(
            f"cohort {cohort!r} has a budget of unit {unit}, but this plan publishes caps or "
            f"importance read from its images in the clear; take --caps-source private and "
            "--importance-source private"
        )
    return rho * (1 + 2.0**-40)


def covers(made: Sequence[dict[str, Any]], calibrated: CalibratedPlan) -> bool:
    """Whether charges pay for what was really released."""
    return all(
        entry["rho"] >= calibrated.guarantee.rho(entry["unit"])
        and entry["draws"] >= calibrated.guarantee.draws(entry["unit"])
        for entry in made
    )


def start_ledger(ledger: Ledger, plan: Plan, cohorts: Sequence[str]) -> bool:
    """Give a ledger that holds nothing the budgets that this one plan needs; say if it was so."""
    if ledger.rows():
        return False
    names = [name for name, _ in payers(plan, cohorts)]
    ledger.set_budget(
        names, plan.unit, epsilon=plan.epsilon, delta=plan.delta, conversion=plan.conversion
    )
    return True
