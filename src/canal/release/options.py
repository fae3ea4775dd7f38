"""Options of a release: what cannot change its guarantee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from canal.errors import ReleaseError

Broken = Literal["refuse", "zero"]


@dataclass(frozen=True)
class Options:
    """What cannot change a guarantee.

    Args:
        broken: when a teacher gives NaN or infinity for a query: stop, or let it contribute zero
            (the divisor stays K). The mechanism is the same either way.
        on_broken: told cohort and query where it contributed zero; for the aggregator's eyes.
        progress: called with the number of images that passed through a network.
        paired: in a research run, the same standard-normal draws for every plan with this seed,
            of statistics and of features, so that the arms of an experiment differ in their sigmas
            alone.
    """

    broken: Broken = "refuse"
    on_broken: Callable[[str, str], None] = lambda cohort, query: None
    progress: Callable[[int], None] = lambda count: None
    paired: bool = False

    def check(self, cohort: str, query: str) -> None:
        """A network gave NaN or infinity."""
        if self.broken == "refuse":
            raise ReleaseError(
                f"the teacher of {cohort!r} returns NaN or infinity for query {query!r}; let it "
                "say nothing there with --broken-teacher zero (the divisor stays K, and nothing is "
                "charged again), or make another release with another teacher, charged anew"
            )
        self.on_broken(cohort, query)
