"""A statistic in two worlds: how far it is moved, and what is published of it in each."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from canal.features.calibration import CalibratedPlan, statistic_lattice
from canal.features.statistics import Name, Sum
from canal.privacy.randomness import Stream

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moved:
    """A statistic in two worlds.

    Args:
        sums: over teachers and queries, in world 0 and world 1.
        where: channels on which they differ.
        sigma: of the noise that is to be added.
    """

    sums: tuple[Sum, Sum]
    where: NDArray[np.intp]
    sigma: float

    @classmethod
    def of(cls, one: Sum, other: Sum, sigma: float) -> Moved:
        """Of two sums, whether noise is to be added or not."""
        return cls((one, other), np.flatnonzero(one.total != other.total), sigma)

    @property
    def name(self) -> Name:
        """Of the statistic."""
        return self.sums[0].name

    @property
    def apart(self) -> Floats:
        """Of the two means, where they differ."""
        first, second = (
            np.array(total.mean(), dtype=np.float64)[self.where] for total in self.sums
        )
        return second - first

    @property
    def reach(self) -> float:
        """The distance of the two means."""
        return float(np.linalg.norm(self.apart))

    @property
    def reach_in_sigmas(self) -> float:
        """The same in deviations of the noise."""
        return self.reach / (self.sigma or 1.0)

    @property
    def weights(self) -> Floats:
        """Of published values in the likelihood ratio."""
        return self.apart / (self.sigma**2 or 1.0)

    def draw(self, world: int, count: int, stream: Stream) -> Floats:
        """Published values, `[count, channels that differ]`; JSON keeps every double as it is."""
        many = copy.copy(self.sums[world])
        total = np.tile(many.total[self.where], (count, 1))
        many.total = many.noisy_sum.perturb(total, stream)
        published = many.published("private")
        return np.array(published.values, dtype=np.float64).reshape(count, -1)

    def squares(self, world: int, values: Floats) -> float:
        """Of the noise in published values over its stated variance, summed."""
        clear = np.array(self.sums[world].mean(), dtype=np.float64)[self.where]
        return float(np.square((values - clear) / (self.sigma or 1.0)).sum())


def off_lattice(values: Floats, calibrated: CalibratedPlan, name: Name) -> float:
    """The share of a statistic's published values that are no whole number of lattice steps."""
    plan = calibrated.plan
    terms = plan.participants.teachers * plan.participants.queries
    bound = plan.bound if name == "caps" else 1.0
    steps = values / (statistic_lattice(calibrated, name).step * bound / terms)
    # The published double is the nearest to its product; 32 bits of 53 are left for it.
    return float((np.abs(steps - np.rint(steps)) > 1e-5).mean())
