"""Checking a release of adapters without trusting whoever made it: digests, arithmetic, ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from canal.adapters.basis import digest
from canal.adapters.card import render
from canal.adapters.charges import covers
from canal.adapters.mechanism import Mechanism
from canal.adapters.plan import DISTANCE, AdapterPlan, CalibratedAdapterPlan
from canal.adapters.statement import facts_of, state
from canal.adapters.store import BASIS, TENSOR, AdapterRelease, read_basis
from canal.adapters.update import UpdateSettings
from canal.errors import InvalidValueError, ReleaseError
from canal.privacy.ledger import Ledger
from canal.release.account import price
from canal.release.checks import (
    Check,
    Checks,
    check_derived,
    check_shards,
    derived_again,
    least_energy,
)
from canal.release.conditions import check_cohorts
from canal.release.manifest import Manifest


def verify(path: Path, ledger: Ledger | None = None) -> list[Check]:
    """Check everything of a release of adapters that can be checked.

    Args:
        path: the release folder.
        ledger: that was charged, where the reader has it.
    """
    checks, opened = Checks(path), []

    def manifest() -> str:
        opened.append(AdapterRelease.open(path))
        return f"{len(opened[0])} rounds, digest {opened[0].manifest.digest[:12]}"

    if not checks.look("manifest", manifest):
        return checks.found
    release = opened[0]
    checks.files(release.manifest, [BASIS] if release.plan.directions else [])
    if release.plan.directions:
        checks.look("basis", lambda: _basis(release))
    checks.look("rounds", lambda: _rounds(release))
    checks.look("statement", lambda: _statement(release.manifest))
    checks.look("noise", lambda: _noise(release))
    checks.card(release.manifest, render)
    checks.ledger(release.manifest, ledger)
    return checks.found


def check_contents(release: AdapterRelease) -> None:
    """Check what a reader relies on: every round and the basis by their digests, the statement.

    Raises:
        ReleaseError: a file was changed, or something stated does not follow.
    """
    _rounds(release)
    if release.plan.directions:
        _basis(release)
    check_statement(release.manifest)


def account(release: AdapterRelease, delta: float | None = None) -> dict[str, Any]:
    """Price a release again from its plan, once its statement was checked.

    Args:
        release: an opened one.
        delta: another than the plan's.
    """
    promise = check_statement(release.manifest).guarantee
    return price(release.manifest, promise, release.plan.conversion, tuple(DISTANCE), delta)


def check_statement(manifest: Manifest) -> CalibratedAdapterPlan:
    """Derive everything that a manifest promises from its plan and public numbers.

    Raises:
        ReleaseError: something does not follow, or could not have been released.
    """
    try:
        return _derived(manifest)
    # Whatever a forger put where a number should be.
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ReleaseError(f"the manifest contradicts itself: {error}") from error


def _derived(manifest: Manifest) -> CalibratedAdapterPlan:
    plan = AdapterPlan.from_json(manifest.plan)
    cohorts = [str(name) for name in manifest.participants["cohorts"]]
    check_cohorts(cohorts, plan.sites)
    public = manifest.statistics
    UpdateSettings.from_json(public["update"])
    bounds = np.array(public["bounds"], dtype=np.float64)
    weights = np.array(public["weights"], dtype=np.float64)
    scales = np.array(public["scales"], dtype=np.float64)
    for numbers in (bounds, weights, scales):
        if numbers.ndim != 1 or not (np.isfinite(numbers) & (numbers > 0)).all():
            raise ReleaseError("scales, bounds and weights must be above 0 and finite")
    if not 0 < float(public["length"]) < np.inf or not 1 <= float(public["patients"]) < np.inf:
        raise ReleaseError("the clip and the number of patients must be numbers above 0")
    if not plan.count and public["patients"] != plan.patients:
        raise ReleaseError("sums were divided by another number of patients than was stated")
    calibrated = plan.calibrate(weights)
    facts = facts_of(calibrated, manifest.noise, cohorts)
    check_derived(
        manifest,
        private=facts.private,
        mechanism=Mechanism.numbers(calibrated, bounds),
        statement=state(calibrated, facts),
        is_covered=lambda made: covers(made, calibrated, cohorts),
    )
    return calibrated


def _statement(manifest: Manifest) -> str:
    return derived_again(manifest, check_statement(manifest).plan.relation)


def _rounds(release: AdapterRelease) -> str:
    count = len(release)
    listed = check_shards(
        *(release.path, release.manifest, [1] * count, [release.plan.coordinates], TENSOR, "I32")
    )
    if listed != release.plan.rounds:
        raise ReleaseError(f"{listed} rounds were released, {release.plan.rounds} paid for")
    return f"{count}, every digest holds"


def _basis(release: AdapterRelease) -> str:
    found, plan = read_basis(release.path), release.plan
    if digest(found) != release.manifest.statistics["basis"]:
        raise ReleaseError(f"{BASIS} does not hold the directions that the manifest describes")
    try:
        found.check(plan.directions, plan.parameters)
    except InvalidValueError as error:
        raise ReleaseError(f"{BASIS}: {error}") from error
    return f"{plan.directions} directions of {plan.parameters} parameters"


def _noise(release: AdapterRelease) -> str:
    """See that no round varies less than its noise alone would; signal can only add to it."""
    if release.plan.allocation == "none":
        return "none was added"
    calibrated = release.plan.calibrate(np.array(release.manifest.statistics["weights"]))
    # Where channels have noise of their own, the least of it: whose they are, no manifest says.
    sigma = float(calibrated.sigma.min()) * release.plan.excess / calibrated.lattice.step
    least = least_energy(release.plan.coordinates, len(release))
    for number in range(len(release)):
        if np.square(release.sums(number) / sigma).sum() < least:
            raise ReleaseError(f"round {number} varies less than its noise alone would")
    return "every round varies at least as much as its noise"
