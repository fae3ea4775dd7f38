"""Checking a release of adapters without trusting whoever made it: digests, arithmetic, ledger."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from canal.errors import InvalidValueError, MismatchError, ReleaseError
from canal.gradients.basis import BASIS, digest, read_basis
from canal.gradients.card import render
from canal.gradients.mechanism import PatientSum
from canal.gradients.plan import TENSOR, AdapterPlan, CalibratedAdapterPlan
from canal.gradients.store import AdapterRelease
from canal.gradients.update import UpdateSettings
from canal.privacy.ledger import Ledger
from canal.release.charges import check_cohorts, covers
from canal.release.checks import (
    Check,
    Checks,
    check_derived,
    check_digests,
    check_shards,
    check_share_width,
    derived_again,
    not_the_digest,
)
from canal.release.manifest import Manifest
from canal.release.noise_check import (
    ALARM,
    Sums,
    Zeros,
    check_unlike,
    check_widths,
    some,
    without_direction,
)
from canal.release.recompute import PublicInputs
from canal.release.statement import Facts, state

# Values of a round that are looked at together.
_PART = 1024


def verify(
    path: Path, ledger: Ledger | None = None, public: PublicInputs | None = None
) -> list[Check]:
    """Check everything of a release of adapters that can be checked.

    Args:
        path: the release folder.
        ledger: that was charged, where the reader has it.
        public: initialisation and images, where the reader has them.
    """
    checks, opened = Checks(path), []

    def manifest() -> str:
        opened.append(AdapterRelease(path, Manifest.read(path)))
        return f"{len(opened[0])} rounds, digest {opened[0].manifest.digest[:12]}"

    if not checks.look("manifest", manifest):
        return checks.found
    release = opened[0]
    checks.key()
    checks.files(release.manifest, [BASIS] if release.plan.directions else [])
    whole = not release.plan.directions or checks.look("basis", lambda: _basis(release))
    stated = checks.look("statement", lambda: _statement(release.manifest))
    checks.contents(
        "rounds", lambda: _rounds(release), lambda: _noise(release), lambda: _repeats(release)
    )
    if public is not None and stated and whole:
        from canal.gradients.recompute import recompute

        recompute(checks, release, public)
    elif public is not None:
        checks.skip("public inputs", "not recomputed; what the folder says of them does not hold")
    checks.record(release.manifest)
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
    if plan.trust == "secure-sum":
        steps = float(calibrated.sigma.min()) / calibrated.lattice.step
        check_share_width(steps / math.sqrt(plan.shares - plan.colluding))
    facts = Facts.of(plan, manifest.noise, cohorts)
    check_derived(
        manifest,
        private=facts.private,
        mechanism=PatientSum.numbers(calibrated, bounds),
        statement=state(calibrated, facts),
        is_covered=lambda made: covers(made, calibrated, cohorts),
    )
    return calibrated


def _statement(manifest: Manifest) -> str:
    check_statement(manifest)
    return derived_again(manifest)


def _rounds(release: AdapterRelease) -> str:
    count = len(release)
    check_digests(release.path, release.manifest)
    listed = check_shards(
        *(release.path, release.manifest, [1] * count, [release.plan.coordinates], TENSOR, "I32")
    )
    if listed != release.plan.rounds:
        raise ReleaseError(f"{listed} rounds were released, {release.plan.rounds} paid for")
    return f"{count}, every digest holds"


def _basis(release: AdapterRelease) -> str:
    found, plan = read_basis(release.path), release.plan
    stated, held = release.manifest.statistics["basis"], digest(found)
    if held != stated:
        raise MismatchError(
            f"{BASIS} {not_the_digest('a digest of directions', stated, held)}",
            files={BASIS: {"expected": stated, "found": held}},
        )
    try:
        found.check(plan.directions, plan.parameters)
    except InvalidValueError as error:
        raise ReleaseError(f"{BASIS}: {error}") from error
    return f"{plan.directions} directions of {plan.parameters} parameters"


def _noise(release: AdapterRelease, channels: NDArray[np.int64] | None = None) -> str:
    """See that every round, every part of one, and every coordinate has its noise."""
    if release.plan.allocation == "none":
        return "none was added"
    return check_widths(*noise_looks(release, channels), ALARM / 2)


def noise_looks(
    release: AdapterRelease, channels: NDArray[np.int64] | None = None
) -> tuple[list[Sums | Zeros], dict[str, list[Sums]]]:
    """What is to be seen of the noise in a folder: all looks, and those by what they see.

    Args:
        release: whose noise is not none; one round at a time is held in memory.
        channels: of every parameter, if anybody knows. Where channels have noise of their own and
            nobody does, the least of it is held against every value.
    """
    plan, rounds, width = release.plan, len(release), release.plan.coordinates
    step, sigma, known = _spread(release, channels)
    slack, interval = plan.shares * step / (2 * sigma), step / sigma * math.sqrt(plan.shares)
    # A patient is one long at most in every block; how many there are, the plan says.
    patients = max(float(plan.patients), release.patients)
    every = _calibrated(release).sigma * plan.excess
    reach = math.sqrt(np.square(patients / every).sum()) if known else None
    size = min(width, _PART)
    starts = np.unique(np.r_[np.arange(0, width - size + 1, size), width - size])
    earlier, squares = np.zeros((2, width))
    zeros = np.zeros(width, np.int64)
    whole, apart, parts, none = np.zeros(rounds), np.zeros(rounds), [], np.zeros(rounds, np.int64)
    for number in range(rounds):
        values = release.sums(number) * (step / sigma)
        energy, zero = np.square(values), values == 0
        whole[number], none[number] = energy.sum(), zero.sum()
        apart[number] = without_direction(values, earlier)
        parts.append([energy[start : start + size].sum() for start in starts.tolist()])
        earlier, squares, zeros = earlier + values, squares + energy, zeros + zero

    def round_(at: tuple[int, ...]) -> str:
        return f"round {at[0]}"

    def later(at: tuple[int, ...]) -> str:
        return f"round {at[0] + 1}"

    def part(at: tuple[int, ...]) -> str:
        return f"round {at[0]}, in the {size} values from {starts[at[1]]} on,"

    def coordinate(at: tuple[int, ...]) -> str:
        return f"value {at[0]} over all rounds"

    of_a_round = [Sums(round_, whole, width, slack.max(), reach)]
    if rounds > 1 and width > 1:
        # Of the first round nothing is known before; later ones know its noise.
        of_a_round.append(Sums(later, apart[1:], width - 1, slack.max()))
    of_a_part = [Sums(part, np.array(parts), size, slack.max(), reach)]
    far = None if not known else math.sqrt(rounds) * patients / sigma
    of_a_coordinate = [Sums(coordinate, squares, rounds, slack, far)]
    looks: list[Sums | Zeros] = [
        Zeros(round_, none, width, interval.max()),
        Zeros(coordinate, zeros, rounds, interval),
    ]
    stated = {
        "a round": of_a_round,
        f"{size} values of a round": of_a_part,
        "a value of all rounds": of_a_coordinate,
    }
    return [*of_a_round, *of_a_part, *of_a_coordinate, *looks], stated


def _repeats(release: AdapterRelease) -> str:
    """See that no two rounds have the same noise."""
    if release.plan.allocation == "none":
        return "no noise was added"
    step, sigma, _ = _spread(release)
    kept = some(release.plan.coordinates)
    rows = [(release.sums(number) * (step / sigma))[kept] for number in range(len(release))]
    name = "round {}".format
    return f"none: {check_unlike(np.stack(rows), name, ALARM / 2, later_know=True)} of rounds"


def _calibrated(release: AdapterRelease) -> CalibratedAdapterPlan:
    return release.plan.calibrate(np.array(release.manifest.statistics["weights"]))


def _spread(
    release: AdapterRelease, channels: NDArray[np.int64] | None = None
) -> tuple[float, NDArray[np.float64], bool]:
    """The lattice step, sigma of every value, and whether that is known or the least of them."""
    plan, calibrated = release.plan, _calibrated(release)
    sigma, width = calibrated.sigma * plan.excess, plan.coordinates
    if plan.blocks == 1:
        return calibrated.lattice.step, np.full(width, sigma[0]), True
    if plan.directions:
        channels = np.arange(plan.directions)
    if channels is None:
        return calibrated.lattice.step, np.full(width, sigma.min()), False
    return calibrated.lattice.step, sigma[channels], True
