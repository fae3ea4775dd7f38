"""Who pays for adapters: every cohort, under both neighbour relations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from canal.gradients.plan import DISTANCE, CalibratedAdapterPlan
from canal.privacy.ledger import Charge
from canal.release.charges import pays


def charges(calibrated: CalibratedAdapterPlan, cohorts: Sequence[str]) -> list[Charge]:
    """What a release costs everyone; a budget is needed for the plan's own relation.

    Args:
        calibrated: the plan with its sigmas.
        cohorts: of the sites.
    """
    promise = calibrated.guarantee
    return [
        Charge(
            *(cohort, unit, promise.rho(unit), promise.draws(unit)),
            needs_budget=unit == calibrated.plan.unit,
        )
        for cohort in cohorts
        for unit in DISTANCE
    ]


def covers(
    made: Sequence[dict[str, Any]], calibrated: CalibratedAdapterPlan, cohorts: Sequence[str]
) -> bool:
    """Whether charges pay for what is released: everyone's, and enough."""
    due = charges(calibrated, cohorts)
    return pays(made, {(each.cohort, each.unit): (each.rho, each.draws) for each in due})
