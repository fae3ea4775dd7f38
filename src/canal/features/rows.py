"""Rows: the one way from query images to the integers that are stored for them.

Every release goes this way, in one process or over many. `canal.features.sites` adds up what
teachers contribute; the audit (`canal.attacks`) asks it for sums, with teachers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from canal.features.ensemble import Teacher
from canal.features.mechanism import Mechanism
from canal.features.queries import Queries, QueryBatch
from canal.release.noise import Noise
from canal.release.shard import Stored


def contribute(
    mechanism: Mechanism,
    teacher: Teacher,
    batch: QueryBatch,
    *,
    broken: Callable[[str, int], None] = lambda cohort, row: None,
    progress: Callable[[int], None] = lambda count: None,
) -> Any:
    """What one teacher adds before any noise, `[B, M, *grid]` integers; private.

    Args:
        mechanism: clips the teacher's features and puts them on the lattice.
        teacher: of one site.
        batch: some queries.
        broken: told the cohort and the row where the teacher gave NaN or infinity.
        progress: called with the number of images that passed through the network.
    """
    clipped = mechanism.contribution(teacher.tap.features(batch.images))
    for row in np.flatnonzero(clipped.broken).tolist():
        broken(teacher.cohort, batch.start + row)
    progress(len(batch.images))
    return clipped.integers


def share(mechanism: Mechanism, given: Any, batch: QueryBatch, queries: Queries, own: Noise) -> Any:
    """The same with a site's share of the noise, `[B, M, *grid]`; still private, on its own.

    Args:
        mechanism: says how much noise.
        given: what the site's teacher adds.
        batch: the queries that this is about.
        queries: all of them.
        own: the noise of this site.
    """
    rows = enumerate(given, start=batch.start)
    return np.stack(
        [mechanism.noisy_sum.share(each, own.of_query(queries, row)) for row, each in rows]
    )


def make_rows(
    mechanism: Mechanism,
    summed: Iterable[Any],
    queries: Queries,
    noise: Noise | None,
    *,
    start: int = 0,
) -> Iterator[Stored]:
    """The integers to store for some queries; noise is added once, unless it came in shares.

    Args:
        mechanism: of the release.
        summed: over all teachers, one query after the other.
        queries: all of them.
        noise: of the aggregator; None where the sums hold the shares of all sites.
        start: row of the first.
    """
    noisy_sum = mechanism.noisy_sum
    for row, total in enumerate(summed, start=start):
        if noise is not None:
            total = noisy_sum.perturb(total, noise.of_query(queries, row))
        yield noisy_sum.store(total)
