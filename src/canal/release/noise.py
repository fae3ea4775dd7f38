"""Noise of one party: its secret, and what every draw is bound to.

A stream belongs to one thing that is released, under one claim, after one set of published
statistics. So the same thing gets the same noise, and another thing never does.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from canal.privacy.randomness import Secret, Stream

if TYPE_CHECKING:
    from canal.features.queries import Queries
    from canal.features.statistics import Statistics


@dataclass(frozen=True)
class Noise:
    """Streams of one party.

    Args:
        secret: behind all of them.
        context: what they are bound to beside what they are added to.
        paired: bound to nothing else, so that the arms of an experiment share their draws.
    """

    secret: Secret
    context: tuple[bytes, ...] = ()
    paired: bool = False

    def after(self, statistics: Statistics) -> Noise:
        """The noise of what comes after these were published."""
        published = hashlib.sha256(json.dumps(statistics.to_json()).encode()).digest()
        return replace(self, context=(*self.context, published))

    def of_statistic(self, name: str) -> Stream:
        """The stream of caps or importance."""
        return Stream(self.secret.key(b"statistic", *self._bound, name.encode()))

    def of_query(self, queries: Queries, row: int) -> Stream:
        """The stream of one query, known by its content.

        And by its id: two queries of the same content have noise of their own.
        """
        name = queries.ids[row].encode(errors="surrogatepass")
        content = bytes.fromhex(queries.contents[row])
        return Stream(self.secret.key(b"features", *self._bound, name, content))

    def of_round(self, number: int, published: bytes) -> Stream:
        """The stream of one round of adapters, known by all that was published before it."""
        before = b"" if self.paired else published
        return Stream(self.secret.key(b"round", *self._bound, number.to_bytes(8), before))

    @property
    def _bound(self) -> tuple[bytes, ...]:
        return () if self.paired else self.context
