"""What is particular in checking a gradient release (`canal.release.verification`).

The numbers of a manifest are derived again from its plan and its public numbers; the noise is
looked at by round, by part of a round, and by coordinate.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from canal.errors import ReleaseError
from canal.gradients.mechanism import PatientSum
from canal.gradients.plan import AdapterPlan, CalibratedAdapterPlan
from canal.gradients.store import AdapterRelease
from canal.gradients.update import UpdateSettings
from canal.release.manifest import Manifest
from canal.release.noise_check import Alike, Sums, Zeros, some, without_direction
from canal.release.verification import Derived

# Values of a round that are looked at together.
_PART = 1024


def derive(manifest: Manifest) -> Derived:
    """The numbers of a gradient release, from its plan and its public numbers."""
    plan = AdapterPlan.from_json(manifest.plan)
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
    widths = calibrated.sigma / calibrated.lattice.step
    return Derived(calibrated, PatientSum.numbers(calibrated, bounds), widths)


def noise_looks(release: AdapterRelease) -> tuple[list[Sums | Zeros], dict[str, list[Sums]]]:
    """What is to be seen of the noise in a folder: all looks, and those by what they see.

    Args:
        release: whose noise is not none; one round at a time is held in memory. Where channels
            have noise of their own, and which parameters are theirs only the network says, the
            least of it is held against every value.
    """
    plan, rounds, width = release.plan, len(release), release.plan.coordinates
    step, sigma, known = _spread(release)
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


def alike(release: AdapterRelease) -> list[Alike]:
    """What should have noise of its own: rounds, of which later ones know the noise of earlier."""
    step, sigma, _ = _spread(release)
    kept = some(release.plan.coordinates)
    rows = [(release.sums(number) * (step / sigma))[kept] for number in range(len(release))]
    return [Alike("rounds", np.stack(rows), "round {}".format, later_know=True)]


def _calibrated(release: AdapterRelease) -> CalibratedAdapterPlan:
    return release.plan.calibrate(np.array(release.manifest.statistics["weights"]))


def _spread(release: AdapterRelease) -> tuple[float, NDArray[np.float64], bool]:
    """The lattice step, sigma of every value, and whether that is known or the least of them."""
    plan, calibrated = release.plan, _calibrated(release)
    step, sigma = calibrated.lattice.step, calibrated.sigma * plan.excess
    if plan.blocks == 1:
        return step, np.full(plan.coordinates, sigma[0]), True
    if plan.directions:
        return step, sigma[np.arange(plan.directions)], True
    return step, np.full(plan.coordinates, sigma.min()), False
