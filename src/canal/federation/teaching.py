"""What a site adds to the sums of a release of adapters: a count, and rounds."""

from __future__ import annotations

import numpy as np

from canal.errors import RefusalError
from canal.federation.answers import Answers, Made
from canal.federation.journal import Journal
from canal.federation.lessons import Lessons
from canal.gradients.cohorts import contribute
from canal.gradients.mechanism import Stored
from canal.gradients.patients import Patients


class Teaching(Answers):
    """Of one site.

    Args:
        lessons: what was agreed on.
        journal: of the session, which this process has open.
        patients: of the site; private.
    """

    def __init__(self, lessons: Lessons, journal: Journal, patients: Patients) -> None:
        super().__init__(lessons.terms, journal, patients.cohort, patients.claim)
        self.lessons = lessons
        self.patients = patients

    def count(self, request: bytes) -> bytes:
        """How many patients this site has; asked and paid for, or not told."""
        if not self.terms.adapters.plan.count:
            raise RefusalError("the number of patients was stated; nobody pays for a count")

        def make() -> Made:
            found = self.lessons.mechanism.count(len(self.patients), self.noise())
            return {"patients": np.array([found])}

        return self.once("count", 0, request, make)

    def round(self, number: int, latest: Stored | None, request: bytes) -> bytes:
        """The site's part of one round.

        Args:
            number: of the round.
            latest: the sum of the round before it, as it was published.
            request: the question itself.
        """
        lessons = self.lessons
        values, published = lessons.before(number, latest)
        lessons.gradients  # noqa: B018  # what a machine cannot do is not the patients' secret

        def make() -> Made:
            lessons.coordinates.write(values)
            total = contribute(
                *(lessons.mechanism, self.patients, lessons.gradients, number, self.noise()),
                published,
            )
            return {"sum": total}

        return self.once("round", number, request, make, published.hex())
