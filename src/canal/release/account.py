"""What a release costs: epsilon under every unit, at any delta, and each part's share."""

from __future__ import annotations

from typing import Any

from canal.privacy.units import UNITS
from canal.release.calibration import finite_or_none
from canal.release.store import Release
from canal.release.verification import check_statement


def account(release: Release, delta: float | None = None) -> dict[str, Any]:
    """Price a release again from its plan and published statistics, once both were checked.

    Args:
        release: an opened one.
        delta: another than the plan's.
    """
    plan = release.plan
    delta = plan.delta if delta is None else delta
    promise = check_statement(release.manifest).guarantee
    units: dict[str, Any] = {}
    for unit in UNITS:
        if not release.private:
            units[unit] = {"epsilon": None, "epsilon_exact": None, "rho": None, "shares": {}}
            continue
        rho = promise.rho(unit)
        finite = finite_or_none(rho)
        units[unit] = {
            "epsilon": finite_or_none(promise.epsilon(delta, unit, plan.conversion)),
            "epsilon_exact": finite_or_none(promise.epsilon(delta, unit, "exact")),
            "rho": finite,
            "shares": {
                event.name: event.rho(unit) / rho if finite else None for event in promise.events
            },
        }
    return {
        "stamp": release.statement["stamp"],
        "unit": plan.unit,
        "delta": delta,
        "conversion": plan.conversion,
        "units": units,
    }
