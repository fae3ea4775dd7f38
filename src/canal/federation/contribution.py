"""What a site adds to the sums of one session, made once and kept before it is sent.

Under `secure-sum` it holds the site's share of the noise, and a mask of its own: alone it is
uniform noise, whoever reads it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import RefusalError
from canal.federation.journal import Journal
from canal.federation.masks import mask
from canal.federation.message import Message
from canal.federation.questions import Asked
from canal.privacy.randomness import Secret
from canal.release.agreement import digest
from canal.release.ensemble import Teacher
from canal.release.noise import Noise
from canal.release.rows import contribute, share
from canal.release.statistics import Statistics, sum_up

Made = dict[str, NDArray[Any]]
_log = logging.getLogger(__name__)


class Contribution:
    """Of one site.

    Args:
        asked: what was agreed on.
        journal: of the session, which this process has open.
        teacher: of the site; private.
        claim: what determines its features; private.
    """

    def __init__(self, asked: Asked, journal: Journal, teacher: Teacher, claim: list[str]) -> None:
        self.asked = asked
        self.journal = journal
        self.teacher = teacher
        self.claim = claim

    def statistics(self, request: bytes) -> bytes:
        """The site's part of private caps and importance."""
        asked, queries = self.asked, self.asked.queries.all()
        names = [name for name, source in asked.flat.plan.sources.items() if source == "private"]

        def make() -> Made:
            networks = [(self.teacher.cohort, self.teacher.tap)]
            found = sum_up(asked.flat, names, queries, networks, check=_note_broken)
            noise = self._noise()
            if noise is not None:
                for total in found:
                    total.share(noise.of_statistic(total.name))
            return {total.name: total.total for total in found}

        return self._once("statistics", 0, request, make)

    def features(self, number: int, request: bytes) -> bytes:
        """The site's part of one block of queries."""
        start, stop = self.asked.block(number)
        published = self.journal.published
        if published is None:
            raise RefusalError("features come after the statistics; publish those first")
        statistics = Statistics.from_json(published)
        mechanism, queries = self.asked.mechanism(statistics), self.asked.queries.all()

        def make() -> Made:
            noise = self._noise()
            noise = None if noise is None else noise.after(statistics)
            parts = []
            for batch in queries.batches(start, stop):
                given = contribute(
                    mechanism,
                    self.teacher,
                    batch,
                    broken=lambda cohort, row: _note_broken(cohort, queries.ids[row]),
                )
                if noise is not None:
                    given = share(mechanism, given, batch, queries, noise)
                parts.append(given)
            return {"features": np.concatenate(parts)}

        return self._once("features", number, request, make, published)

    def _once(
        self, kind: str, number: int, request: bytes, make: Callable[[], Made], *about: Any
    ) -> bytes:
        """On disk before it is sent, and the same bytes whenever the same is asked."""
        earlier = self.journal.answer(kind, number, request)
        if earlier is not None:
            return earlier
        try:
            made = make()
        except Exception as error:
            # Its reason may tell of private data.
            _log.exception("%s %d", kind, number)
            raise RefusalError(
                f"{kind} {number} could not be made; this site's log says why"
            ) from error
        if self.asked.secure:
            made = self._masked(made, digest([kind, number, *about]))
        else:
            made = {name: values.astype(np.int32) for name, values in made.items()}
        answer = Message({"ok": True, "kind": kind, "number": number}, made).to_bytes()
        self.journal.keep(kind, number, request, answer)
        return answer

    def _masked(self, made: Made, about: bytes) -> Made:
        terms, keys, hidden = self.asked.terms, self.journal.keys(), {}
        for name, values in made.items():
            context = digest([terms.digest, about.hex(), name])
            # Integers wrap: this is arithmetic modulo 2^32.
            words = values.astype(np.uint32)
            masks = mask(words.size, self.teacher.cohort, keys, terms.public_keys, context)
            words += masks.reshape(words.shape)
            hidden[name] = words
        return hidden

    def _noise(self) -> Noise | None:
        """This site's share of it; None where the aggregator adds it all."""
        if not self.asked.secure:
            return None
        terms, seed = self.asked.terms, self.asked.terms.seed
        secret = (
            self.journal.secret() if seed is None else Secret.seeded(seed).at(self.teacher.cohort)
        )
        return terms.agreement.noise_of_site(secret, self.claim)


def _note_broken(cohort: str, query: str) -> None:
    """A teacher that gives NaN says nothing; only the site itself learns of it."""
    _log.warning("the teacher of %s returns NaN or infinity for query %s; zero", cohort, query)
