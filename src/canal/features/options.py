"""Options of a release: what cannot change its guarantee, nor what is published."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from canal.errors import ReleaseError
from canal.features.plan import Plan

_log = logging.getLogger(__name__)


def _say_alike(one: str, other: str) -> None:
    _log.warning("%s and %s have the same weights; see `Ensemble.alike`", one, other)


@dataclass(frozen=True)
class Options:
    """What cannot change a guarantee.

    Args:
        on_broken: told cohort and query where a teacher contributed zero; for the aggregator's
            eyes.
        on_alike: told of teachers that have the same weights; likewise.
        progress: called with the number of images that passed through a network.
        paired: in a research run, the same standard-normal draws for every plan with this seed,
            of statistics and of features, so that the arms of an experiment differ in their sigmas
            alone.
    """

    on_broken: Callable[[str, str], None] = lambda cohort, query: None
    on_alike: Callable[[str, str], None] = _say_alike
    progress: Callable[[int], None] = lambda count: None
    paired: bool = False

    def check(self, plan: Plan, cohort: str, query: str) -> None:
        """A network gave NaN or infinity."""
        if plan.broken == "refuse":
            raise ReleaseError(
                f"the teacher of {cohort!r} returns NaN or infinity for query {query!r}, and this "
                "plan gives the release up then (broken = refuse); make another one, charged anew, "
                "with --broken-teacher zero or with another teacher"
            )
        self.on_broken(cohort, query)
