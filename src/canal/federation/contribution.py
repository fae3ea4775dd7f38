"""What a site adds to the sums of a release of features: statistics, and blocks of queries."""

from __future__ import annotations

from canal.errors import RefusalError
from canal.features.ensemble import Teacher
from canal.federation.answers import Answers, Made
from canal.federation.journal import Journal
from canal.federation.questions import Asked
from canal.release.mechanism import Published, contribution


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
        mechanism = self.asked.mechanism

        def make() -> Made:
            nothing = Published()
            parts = [
                contribution(mechanism, step, self.teacher, nothing, self.noise())
                for step in mechanism.preliminaries()
            ]
            return {name: rows[0] for part in parts for name, rows in part.items()}

        return self.once("statistics", 0, request, make)

    def features(self, number: int, request: bytes) -> bytes:
        """The site's part of one block of queries."""
        step = self.asked.block(number)
        statistics = self.journal.published
        if statistics is None:
            raise RefusalError("features come after the statistics; publish those first")
        mechanism, published = self.asked.mechanism, Published(statistics)

        def make() -> Made:
            return contribution(mechanism, step, self.teacher, published, self.noise())

        return self.once("features", number, request, make, statistics)
