"""A release as an adversary sees it who holds the teachers: rows with noise, and without.

All in units of the caps, as the noise was added, and flat: one row a query, `[N, M·H·W]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from canal.release.ensemble import Ensemble
from canal.release.mechanism import Mechanism
from canal.release.queries import Queries
from canal.release.rows import add_up
from canal.release.statistics import Statistics
from canal.release.store import Release

if TYPE_CHECKING:
    from canal.data.cache import Arrays

Floats = NDArray[np.float64]


def mechanism_of(release: Release) -> Mechanism:
    """What made a release: all of it follows from what was published."""
    statistics = Statistics.from_json(release.manifest.statistics)
    return Mechanism.of(release.plan.calibrate(statistics.weights(release.plan)), statistics)


def spreads(release: Release) -> Floats:
    """Standard deviation of every stored value, `[M·H·W]`: the noise, and the rounding to 16 bits.

    What rounding adds is uniform, and in the way of an attack that looks for an exact match.
    """
    sigma = np.array(release.manifest.mechanism["sigma"])
    shift = np.array(release.manifest.mechanism["shift"])
    width = np.ldexp(release.manifest.mechanism["step"] / release.plan.participants.teachers, shift)
    return np.repeat(np.sqrt(sigma**2 + width**2 / 12), release.plan.positions)


def released_rows(release: Release) -> Floats:
    """Every released query; dead channels are 0."""
    caps = np.where(release.caps > 0, release.caps, np.inf)
    scale = np.repeat(release.scale / caps, release.plan.positions)
    stored = np.concatenate([shard.reshape(len(shard), -1) for shard in release.shards()])
    return stored * scale


def noiseless_rows(
    release: Release,
    ensemble: Ensemble,
    arrays: Arrays,
    progress: Callable[[int], None] = lambda count: None,
) -> Floats:
    """What these images would have had without noise, from any teachers, as a mean over those."""
    mechanism = mechanism_of(release)
    unit = mechanism.lattice.step / len(ensemble.teachers)
    return np.concatenate(
        [
            add_up(mechanism, ensemble, batch, progress=progress).reshape(len(batch.images), -1)
            * unit
            for batch in Queries.of(arrays).batches()
        ]
    )
