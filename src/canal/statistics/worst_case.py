"""The worst case of a statistics release: a patient who is there or not, or is replaced.

All images of this patient are in one bin of every histogram; those of whoever is in their place are
in another. There is one image or there are several, which must be one vote as well. The patient is
tried at the first site and at the last; at every site there is somebody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from canal.privacy.units import Unit
from canal.release.worst_case import Accounted, Neighbours, World, WorstCase
from canal.statistics.mechanism import StatisticsMechanism, StatisticsSpec
from canal.statistics.patients import Patients, Quantities
from canal.statistics.plan import CalibratedStatisticsPlan
from canal.statistics.release import StatisticsRelease

# Of more sites than these, the others would do nothing but take time.
_MOST_SITES = 4
_IMAGES = (1, 3)
_DIFFER: dict[Unit, str] = {
    "membership": "One patient added or removed",
    "patient": "One patient replaced by one in other bins",
}


@dataclass(frozen=True, eq=False)
class StatisticsWorstCase(WorstCase):
    """One patient, with all votes in one bin.

    Args:
        calibrated: the plan with every sigma.
    """

    calibrated: CalibratedStatisticsPlan

    steps: ClassVar[str] = "releases"
    sentences: ClassVar[Mapping[Unit, Sequence[str]]] = {
        "membership": ("with epsilon {} at delta \\S+ where a patient is added or removed",),
        "patient": (", {} where one is replaced by another",),
    }

    @cached_property
    def mechanism(self) -> StatisticsMechanism:  # type: ignore[override]
        """The mechanism of the release."""
        plan = self.calibrated.plan
        cohorts = tuple(f"site {number}" for number in range(plan.sites))
        return StatisticsMechanism(StatisticsSpec(plan, cohorts, "seed 0"))

    def differ(self, unit: Unit) -> str:
        """See `WorstCase`."""
        return _DIFFER[unit]

    def accounted(self, name: str) -> Accounted:
        """Every value of a statistic has its one sigma, in patients."""
        width = self.calibrated.plan.widths[name]
        return Accounted(np.zeros(width, np.intp), self.calibrated.lattice.step)

    def neighbours(self, unit: Unit) -> Iterator[Neighbours]:
        """Patients with one image and with several, at the first site and at the last."""
        sites = min(_MOST_SITES, self.calibrated.plan.sites)
        for count in _IMAGES:
            low, high = (self._images(far, count) for far in (-np.inf, np.inf))
            for where in dict.fromkeys((0, sites - 1)):
                world = World(self.mechanism, _cohorts(sites, where, low))
                other = World(
                    self.mechanism,
                    _cohorts(sites, where, None if unit == "membership" else high),
                )
                what = f"a patient of {count} images at site {where}"
                yield Neighbours(what, other, world, self.mechanism.preliminaries())

    def _images(self, far: float, count: int) -> list[Quantities]:
        """Images in one of the outer bins of every histogram."""
        return [dict.fromkeys(self.calibrated.plan.histograms, far)] * count


def _cohorts(sites: int, where: int, images: Sequence[Quantities] | None) -> list[Patients]:
    somebody: dict[str, float | str] = dict.fromkeys(("area", "intensity", "size"), 0.0)
    cohorts = []
    for number in range(sites):
        people: dict[str, Sequence[Quantities]] = {"somebody": [somebody]}
        if number == where and images is not None:
            people["the patient"] = images
        cohorts.append(Patients(f"site {number}", people))
    return cohorts


def worst_case(
    release: StatisticsRelease,  # noqa: ARG001
    calibrated: CalibratedStatisticsPlan,
) -> StatisticsWorstCase:
    """The worst case of a release."""
    return StatisticsWorstCase(calibrated)
