"""Rows: the one way from query images to the integers that are stored for them.

The aggregator goes this way, and so does the audit (`canal.attacks`), with teachers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from canal.privacy.randomness import Secret, Stream
from canal.release.ensemble import Ensemble
from canal.release.mechanism import Mechanism
from canal.release.queries import Queries, QueryBatch
from canal.release.shard import Stored


def add_up(
    mechanism: Mechanism,
    ensemble: Ensemble,
    batch: QueryBatch,
    *,
    broken: Callable[[str, int], None] = lambda cohort, row: None,
    progress: Callable[[int], None] = lambda count: None,
) -> Any:
    """The sum over teachers before any noise, `[B, M, *grid]` integers; private.

    Args:
        mechanism: clips each teacher's features and puts them on the lattice.
        ensemble: the teachers, each of which counts once.
        batch: some queries.
        broken: told the cohort and the row where a teacher gave NaN or infinity.
        progress: called with the number of images that passed through a network.
    """
    total: Any = 0
    for teacher in ensemble.teachers:
        clipped = mechanism.contribution(teacher.tap.features(batch.images))
        for row in np.flatnonzero(clipped.broken).tolist():
            broken(teacher.cohort, batch.start + row)
        total = total + clipped.integers
        progress(len(batch.images))
    return total


def make_rows(
    mechanism: Mechanism,
    ensemble: Ensemble,
    queries: Queries,
    secret: Secret,
    context: tuple[bytes, ...],
    *,
    start: int = 0,
    stop: int | None = None,
    broken: Callable[[str, int], None] = lambda cohort, row: None,
    progress: Callable[[int], None] = lambda count: None,
) -> Iterator[Stored]:
    """The stored integers of some queries: one pass through every teacher, noise once.

    Args:
        mechanism: of the release.
        ensemble: its teachers.
        queries: all of them.
        secret: behind the noise.
        context: what the noise depends on beside the query: the claim, the published statistics.
        start: first row.
        stop: behind the last; all if not given.
        broken: told the cohort and the row where a teacher gave NaN or infinity.
        progress: called with the number of images that passed through a network.
    """
    for batch in queries.batches(start, stop):
        total = add_up(mechanism, ensemble, batch, broken=broken, progress=progress)
        for row, summed in enumerate(total, start=batch.start):
            # With the id: two queries of the same content have noise of their own.
            name = queries.ids[row].encode(errors="surrogatepass")
            content = bytes.fromhex(queries.contents[row])
            key = secret.key(b"features", *context, name, content)
            yield mechanism.perturb(summed, Stream(key))
