"""What a site adds to the sums of a release of adapters: a count, and rounds."""

from __future__ import annotations

from canal.errors import RefusalError
from canal.federation.answers import Answers, Made
from canal.federation.journal import Journal
from canal.federation.lessons import Lessons
from canal.gradients.mechanism import COUNT
from canal.gradients.patients import Patients
from canal.gradients.plan import TENSOR
from canal.release.mechanism import Integers, Published, contribution


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

        mechanism = self.lessons.mechanism

        def make() -> Made:
            (step,) = mechanism.preliminaries()
            made = contribution(mechanism, step, self.patients, Published(), self.noise())
            return {"patients": made[COUNT]}

        return self.once("count", 0, request, make)

    def round(self, number: int, latest: Integers | None, request: bytes) -> bytes:
        """The site's part of one round.

        Args:
            number: of the round.
            latest: the sum of the round before it, as it was published.
            request: the question itself.
        """
        published, mechanism = self.lessons.before(number, latest), self.lessons.mechanism
        self.lessons.check_machine()  # what a machine cannot do is not the patients' secret
        (step,) = mechanism.shards()[number]

        def make() -> Made:
            made = contribution(mechanism, step, self.patients, published, self.noise())
            return {"sum": made[TENSOR][0]}

        return self.once("round", number, request, make, mechanism.walk(published).published.hex())
