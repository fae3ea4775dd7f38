"""What a site adds to the sums of a release of features: statistics, and blocks of queries."""

from __future__ import annotations

import logging

import numpy as np

from canal.errors import RefusalError
from canal.features.ensemble import Teacher
from canal.features.rows import contribute, share
from canal.features.statistics import Statistics, sum_up
from canal.federation.answers import Answers, Made
from canal.federation.journal import Journal
from canal.federation.questions import Asked

_log = logging.getLogger(__name__)


class Contribution(Answers):
    """Of one site.

    Args:
        asked: what was agreed on.
        journal: of the session, which this process has open.
        teacher: of the site; private.
        claim: what determines its features; private.
    """

    def __init__(self, asked: Asked, journal: Journal, teacher: Teacher, claim: list[str]) -> None:
        super().__init__(asked.terms, journal, teacher.cohort, claim)
        self.asked = asked
        self.teacher = teacher

    def statistics(self, request: bytes) -> bytes:
        """The site's part of private caps and importance."""
        asked, queries = self.asked, self.asked.queries.all()
        names = [name for name, source in asked.flat.plan.sources.items() if source == "private"]

        def make() -> Made:
            networks = [(self.teacher.cohort, self.teacher.tap)]
            found = sum_up(asked.flat, names, queries, networks, check=self._broken)
            noise = self.noise()
            if noise is not None:
                for total in found:
                    stream = noise.of_statistic(total.name)
                    total.total = total.noisy_sum.share(total.total, stream)
            return {total.name: total.total for total in found}

        return self.once("statistics", 0, request, make)

    def features(self, number: int, request: bytes) -> bytes:
        """The site's part of one block of queries."""
        start, stop = self.asked.block(number)
        published = self.journal.published
        if published is None:
            raise RefusalError("features come after the statistics; publish those first")
        statistics = Statistics.from_json(published)
        mechanism, queries = self.asked.mechanism(statistics), self.asked.queries.all()

        def make() -> Made:
            noise = self.noise()
            noise = None if noise is None else noise.after(statistics)
            parts = []
            for batch in queries.batches(start, stop):
                given = contribute(
                    mechanism,
                    self.teacher,
                    batch,
                    broken=lambda cohort, row: self._broken(cohort, queries.ids[row]),
                )
                if noise is not None:
                    given = share(mechanism, given, batch, queries, noise)
                parts.append(given)
            return {"features": np.concatenate(parts)}

        return self.once("features", number, request, make, published)

    def _broken(self, cohort: str, query: str) -> None:
        """A teacher that gives NaN says nothing; only the site itself learns of it.

        Unless all agreed on a plan that gives up then.
        """
        if self.asked.flat.plan.broken == "refuse":
            raise RefusalError(
                "the teacher here returns NaN or infinity, and the plan gives up then "
                '(broken = "refuse"); take broken = "zero"'
            )
        _log.warning("the teacher of %s returns NaN or infinity for query %s; zero", cohort, query)
