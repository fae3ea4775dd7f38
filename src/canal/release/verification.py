"""Checking a release of features without trusting whoever made it.

The statement is derived again from the plan and the published statistics; what does not depend on
the kind of a release is in `canal.release.checks`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from canal.errors import ReleaseError
from canal.privacy.ledger import Ledger
from canal.release.calibration import CalibratedPlan
from canal.release.card import render
from canal.release.charges import covers
from canal.release.checks import (
    Check,
    Checks,
    check_derived,
    check_shards,
    derived_again,
    least_energy,
)
from canal.release.conditions import check_noise, check_plan
from canal.release.manifest import Manifest
from canal.release.mechanism import Mechanism
from canal.release.plan import Plan
from canal.release.shard import TENSOR
from canal.release.statement import Facts, state
from canal.release.statistics import Statistics
from canal.release.store import Release


def verify(path: Path, ledger: Ledger | None = None) -> list[Check]:
    """Check everything of a release of features that can be checked.

    Args:
        path: the release folder.
        ledger: that was charged, where the reader has it.
    """
    checks, opened = Checks(path), []

    def manifest() -> str:
        opened.append(Release.open(path))
        return f"{len(opened[0])} queries, digest {opened[0].manifest.digest[:12]}"

    if not checks.look("manifest", manifest):
        return checks.found
    release = opened[0]
    checks.files(release.manifest)
    checks.look("shards", lambda: _shards(release))
    checks.look("statement", lambda: _statement(release.manifest))
    checks.look("noise", lambda: _noise(release))
    checks.card(release.manifest, render)
    checks.ledger(release.manifest, ledger)
    return checks.found


def check_contents(release: Release) -> None:
    """Check what a reader relies on: every shard by its SHA-256, and the statement.

    Raises:
        ReleaseError: a shard was changed, or something stated does not follow.
    """
    _shards(release)
    check_statement(release.manifest)


def _shards(release: Release) -> str:
    rows = [len(stored) for stored in release.shards()]
    shape = [len(release.channels), *release.plan.grid]
    listed = check_shards(release.path, release.manifest, rows, shape, TENSOR, "I16")
    if listed != release.plan.participants.queries:
        raise ReleaseError(
            f"{listed} queries were released, {release.plan.participants.queries} paid for"
        )
    return f"{len(rows)}, every digest holds"


def check_statement(manifest: Manifest) -> CalibratedPlan:
    """Derive everything that a manifest promises from its plan and published statistics.

    Raises:
        ReleaseError: something does not follow, or could not have been released.
    """
    try:
        return _derived(manifest)
    # Whatever a forger put where a number should be.
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ReleaseError(f"the manifest contradicts itself: {error}") from error


def _derived(manifest: Manifest) -> CalibratedPlan:
    plan = Plan.from_json(manifest.plan)
    cohorts = tuple(str(name) for name in manifest.participants["cohorts"])
    check_plan(plan, cohorts)
    noise, sampler = str(manifest.noise["source"]), str(manifest.noise["sampler"])
    private = check_noise(plan, noise, sampler)
    statistics = Statistics.from_json(manifest.statistics)
    calibrated = plan.calibrate(statistics.weights(plan))
    statistics.check(calibrated)
    mechanism = Mechanism.of(calibrated, statistics)
    facts = Facts(
        private=private,
        noise=noise,
        sampler=sampler,
        lattice_step=mechanism.lattice.step,
        cohorts=cohorts,
    )
    check_derived(
        manifest,
        private=private,
        mechanism=mechanism.to_json(),
        statement=state(calibrated, facts),
        is_covered=lambda made: covers(made, calibrated, cohorts),
    )
    return calibrated


def _statement(manifest: Manifest) -> str:
    return derived_again(manifest, f"unit {check_statement(manifest).plan.unit}")


def _noise(release: Release) -> str:
    r"""See that no channel varies less than its noise alone would.

    Signal can only add to the sum of squares, so its lower tail is that of a chi-square variable,
    whatever the features are. False-alarm rate: 1e-9 over all channels.
    """
    sigma = np.array(release.manifest.mechanism["sigma"])
    if release.plan.allocation == "none":
        return "none was added"
    squares, count = np.zeros(len(sigma)), 0
    for stored in release.shards():
        values = stored.reshape(*stored.shape[:2], -1).astype(np.float64)
        squares += np.square(values).sum(axis=(0, 2))
        count += values.shape[0] * values.shape[2]
    caps = np.array(release.manifest.mechanism["caps"])
    unit = np.divide(release.scale, caps, out=np.zeros_like(caps), where=caps > 0)
    least = least_energy(count, len(sigma))
    seen = squares * np.square(unit / sigma)
    quiet = (seen < least) & (caps > 0)
    if quiet.any():
        channel = int(release.channels[int(quiet.argmax())])
        raise ReleaseError(f"channel {channel} varies less than its noise alone would")
    return "every channel varies at least as much as its noise"
