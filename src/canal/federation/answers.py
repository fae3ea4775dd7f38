"""What a site says in one session: made once, kept before it is sent, the same whenever asked.

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
from canal.federation.terms import Terms
from canal.privacy.randomness import Secret
from canal.release.mechanism import Noise, digest

Made = dict[str, NDArray[Any]]
_log = logging.getLogger(__name__)


class Answers:
    """Of one site.

    Args:
        terms: that it agreed to.
        journal: of the session, which this process has open.
        name: of the site.
        claim: what determines what it says; private.
    """

    def __init__(self, terms: Terms, journal: Journal, name: str, claim: list[str]) -> None:
        self.terms, self.journal, self.name, self.claim = terms, journal, name, claim

    @property
    def secure(self) -> bool:
        """Whether noise comes in shares, under masks."""
        return self.terms.agreement.plan.trust == "secure-sum"

    def once(
        self, kind: str, number: int, request: bytes, make: Callable[[], Made], *about: Any
    ) -> bytes:
        """On disk before it is sent, and the same bytes whenever the same is asked.

        Args:
            kind: of the question.
            number: of its kind.
            request: the question itself, word for word.
            make: makes the answer; private until it is masked or noisy.
            about: what else a mask is bound to.
        """
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
        if self.secure:
            made = self._masked(made, digest([kind, number, *about]))
        else:
            made = {name: values.astype(np.int32) for name, values in made.items()}
        answer = Message({"ok": True, "kind": kind, "number": number}, made).to_bytes()
        self.journal.keep(kind, number, request, answer)
        return answer

    def _masked(self, made: Made, about: bytes) -> Made:
        keys, hidden = self.journal.keys(), {}
        for name, values in made.items():
            context = digest([self.terms.digest, about.hex(), name])
            # Integers wrap: this is arithmetic modulo 2^32.
            words = values.astype(np.uint32)
            masks = mask(words.size, self.name, keys, self.terms.public_keys, context)
            words += masks.reshape(words.shape)
            hidden[name] = words
        return hidden

    def noise(self) -> Noise | None:
        """This site's share of it; None where the aggregator adds it all."""
        if not self.secure:
            return None
        seed = self.terms.seed
        secret = self.journal.secret() if seed is None else Secret.seeded(seed).at(self.name)
        return self.terms.agreement.noise_of_site(secret, self.claim)
