"""A statistics release across hosts: what an order asks for, and what each site does for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from canal.data.overlap import compare
from canal.errors import FederationError
from canal.release.mechanism import SitePart, noise_of
from canal.release.registry import Job
from canal.statistics.mechanism import StatisticsMechanism, StatisticsSpec
from canal.statistics.patients import Patients, load
from canal.statistics.plan import StatisticsPlan
from canal.statistics.release import ABSENT_HERE

if TYPE_CHECKING:
    from canal.release.mechanism import SiteCohort


def prepare(order: Any, parties: Any, progress: Callable[[int], None]) -> Job:  # noqa: ARG001
    """The plan that an order asks for, and the sites that take part.

    Args:
        order: what is asked for, a `canal.federation.settings.Order`.
        parties: the sites, as `canal.federation.aggregate.Parties`.
        progress: there is one step, so nothing is counted.
    """
    if "epsilon" not in order.plan:
        raise FederationError("[plan] lacks epsilon; say what the release may cost a patient")
    federation = parties.join()
    plan = StatisticsPlan(**parties.choices(sites=len(federation.cohorts)))
    spec = StatisticsSpec(plan, federation.cohorts, noise_of(parties.seed))
    overlap = compare(None, frozenset(), frozenset()) | ABSENT_HERE
    return Job(StatisticsMechanism(spec), federation, overlap)


def introduce(cohort: SiteCohort, wanted: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """Nothing that all sites must have in common; but each must name its images."""
    _ = cohort.source
    return {}


def claim(cohort: SiteCohort, wanted: Mapping[str, Any]) -> list[str]:  # noqa: ARG001
    """What determines the votes of the site's patients; private."""
    return _patients(cohort).claim


def _patients(cohort: SiteCohort) -> Patients:
    return load(cohort.name, **cohort.source)


class StatisticsSite(SitePart):
    """One release, as a site sees it.

    Args:
        spec: of the release.
        cohort: what the site has; private.
    """

    def __init__(self, spec: StatisticsSpec, cohort: SiteCohort) -> None:
        self.spec, self.cohort = spec, cohort

    @cached_property
    def data(self) -> Patients:
        """The patients; private."""
        return _patients(self.cohort)

    @cached_property
    def mechanism(self) -> StatisticsMechanism:
        """What follows from the spec."""
        return StatisticsMechanism(self.spec)

    def check(self) -> None:
        """Refuse images that cannot be read."""
        _ = self.data
