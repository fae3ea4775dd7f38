"""What a release costs: epsilon under every unit, at any delta, and each part's share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from canal.features.calibration import finite_or_none
from canal.features.store import Release
from canal.features.verification import check_statement
from canal.privacy.events import Guarantee
from canal.privacy.gaussian import Conversion
from canal.privacy.units import UNITS, Unit
from canal.release.manifest import Manifest


def account(release: Release, delta: float | None = None) -> dict[str, Any]:
    """Price a release again from its plan and published statistics, once both were checked.

    Args:
        release: an opened one.
        delta: another than the plan's.
    """
    promise = check_statement(release.manifest).guarantee
    return price(release.manifest, promise, release.plan.conversion, UNITS, delta)


def price(
    manifest: Manifest,
    promise: Guarantee,
    conversion: Conversion,
    known: Sequence[Unit],
    delta: float | None = None,
) -> dict[str, Any]:
    """What a promise costs every unit, and each part's share.

    Args:
        manifest: whose statement was checked.
        promise: that follows from its plan.
        conversion: of the plan.
        known: units that it speaks of.
        delta: another than the plan's.
    """
    delta = float(manifest.statement["delta"]) if delta is None else delta
    units: dict[str, Any] = {}
    for unit in known:
        if not manifest.private:
            units[unit] = {"epsilon": None, "epsilon_exact": None, "rho": None, "shares": {}}
            continue
        rho = promise.rho(unit)
        finite = finite_or_none(rho)
        units[unit] = {
            "epsilon": finite_or_none(promise.epsilon(delta, unit, conversion)),
            "epsilon_exact": finite_or_none(promise.epsilon(delta, unit, "exact")),
            "rho": finite,
            "shares": {
                event.name: event.rho(unit) / rho if finite else None for event in promise.events
            },
        }
    return {
        "stamp": manifest.statement["stamp"],
        "unit": manifest.statement["unit"],
        "delta": delta,
        "conversion": conversion,
        "units": units,
    }
