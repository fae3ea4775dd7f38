r"""The statistics mechanism: votes summed over all patients, with noise added once.

$$\tilde h_s = \sum_{\text{patients}} v_{p,s} + \eta_s, \qquad
\eta_s \sim \mathcal N(0, \sigma_s^2 I),$$
in patients, on a lattice. Bins and sigmas are public (`canal.statistics.plan`). The sums are few
numbers and are published as such, in the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from canal.errors import ReleaseError
from canal.privacy.lattice import STORAGES
from canal.release.mechanism import Integers, Mechanism, Noise, Published, ReleaseSpec, Step, Sums
from canal.release.noisy_sum import NoisySum
from canal.release.plan import check_cohorts
from canal.statistics.plan import (
    MOST_PATIENTS,
    STATISTICS,
    CalibratedStatisticsPlan,
    StatisticsPlan,
)

if TYPE_CHECKING:
    from canal.privacy.randomness import Stream
    from canal.statistics.patients import Patients


@dataclass(frozen=True)
class StatisticsSpec(ReleaseSpec):
    """Everything about a statistics release that is public before it is made.

    Args:
        plan: what is asked for.
        cohorts: of the sites, in the order of the release.
        noise: `secret`, or the seed of a research run.
    """

    plan: StatisticsPlan
    cohorts: tuple[str, ...]
    noise: str

    kind: ClassVar[str] = STATISTICS

    def check(self) -> None:
        """Refuse other cohorts than the plan is for."""
        check_cohorts(self.cohorts, self.plan.sites)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        plan = self.plan.to_json()
        return {"plan": plan, "cohorts": list(self.cohorts), "noise": self.noise}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StatisticsSpec:
        """The reverse of `to_json`."""
        plan = StatisticsPlan.from_json(values["plan"])
        return cls(plan, tuple(map(str, values["cohorts"])), str(values["noise"]))


def check_statistics(plan: StatisticsPlan, statistics: Any) -> None:
    """Refuse what this plan cannot have published.

    Raises:
        ReleaseError: too many or too few numbers, or some that are no integers of 32 bits.
    """
    if not isinstance(statistics, dict) or list(statistics) != list(plan.widths):
        raise ReleaseError("the statistics are not those of the plan")
    for name, width in plan.widths.items():
        values, most = statistics[name], STORAGES["int32"]
        whole = isinstance(values, list) and all(type(each) is int for each in values)
        if not whole or len(values) != width or max(map(abs, values)) > most:
            raise ReleaseError(f"the statistic {name} is not {width} integers of 32 bits")


@dataclass(frozen=True)
class StatisticsMechanism(Mechanism):
    """One pass over all patients, which gives four sums.

    Args:
        spec: of the release.
    """

    spec: StatisticsSpec

    kind: ClassVar[str] = STATISTICS
    holders: ClassVar[str] = "patients"
    note: ClassVar[str] = STATISTICS

    @cached_property
    def calibrated(self) -> CalibratedStatisticsPlan:
        """The plan with every sigma."""
        return self.spec.plan.calibrate()

    @property
    def stated(self) -> dict[str, Any]:
        """Sigmas and the lattice."""
        return self.calibrated.to_json()

    def preliminaries(self) -> tuple[Step, ...]:
        """All there is."""
        return (Step(STATISTICS),)

    def shapes(self, step: Step, published: Published) -> dict[str, tuple[int, ...]]:  # noqa: ARG002
        """A vote for each bin of each statistic."""
        return {name: (1, bins) for name, bins in self.spec.plan.widths.items()}

    def check_statistics(self, statistics: Any) -> None:
        """Refuse other numbers than the plan has."""
        check_statistics(self.spec.plan, statistics)

    def settle(self, sums: Mapping[str, Integers]) -> dict[str, Any]:
        """The noisy sums, as integers on the lattice."""
        return {name: rows[0].tolist() for name, rows in sums.items()}

    def noisy_sum(self, step: Step, name: str, published: Published) -> NoisySum:  # noqa: ARG002
        """The sum of all votes in one statistic."""
        plan, made = self.spec.plan, self.calibrated
        std, bound = np.array(made.sigma[name]), float(MOST_PATIENTS)
        return NoisySum(name, made.lattice, std, bound, plan.shares, plan.colluding)

    def streams(self, noise: Noise, step: Step, name: str, published: Published) -> list[Stream]:  # noqa: ARG002
        """One for each statistic, by its name."""
        return [noise.of_statistic(name)]

    def contribute(self, step: Step, site: Patients, published: Published) -> Sums:  # noqa: ARG002
        """The votes of a site's patients."""
        votes = site.votes(self.spec.plan, self.calibrated.lattice)
        return {name: part[None] for name, part in votes.items()}
