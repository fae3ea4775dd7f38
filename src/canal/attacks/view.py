"""A release as an adversary sees it who holds the teachers: rows with noise, and without.

All in units of the caps, as the noise was added, and flat: one row a query, `[N, M·H·W]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import InvalidValueError
from canal.features.ensemble import Ensemble
from canal.features.mechanism import TeacherSum
from canal.features.queries import Queries
from canal.features.statistics import Name, Statistics
from canal.features.store import Release

if TYPE_CHECKING:
    from canal.data.arrays import Arrays
    from canal.features.plan import Plan

Floats = NDArray[np.float64]


def mechanism_of(release: Release) -> TeacherSum:
    """What made a release: all of it follows from what was published."""
    statistics = Statistics.from_json(release.manifest.statistics)
    return TeacherSum.of(release.plan.calibrate(statistics.weights(release.plan)), statistics)


def spreads(release: Release) -> Floats:
    """Standard deviation of every stored value, `[M·H·W]`: the noise, and the rounding to 16 bits.

    What rounding adds is uniform, and in the way of an attack that looks for an exact match.
    """
    sigma = np.array(release.manifest.mechanism["sigma"])
    return np.repeat(np.sqrt(sigma**2 + units(release) ** 2 / 12), release.plan.positions)


def units(release: Release) -> Floats:
    """What one stored unit of each channel is worth, `[M]`."""
    numbers = release.manifest.mechanism
    worth: Floats = np.ldexp(numbers["step"] / release.plan.participants.teachers, numbers["shift"])
    return worth


def released_rows(release: Release) -> Floats:
    """Every released query; of a channel whose cap is 0 too, though its features are all 0."""
    stored = np.concatenate([shard.reshape(len(shard), -1) for shard in release.shards()])
    return stored * np.repeat(units(release), release.plan.positions)


def noiseless_rows(
    release: Release,
    ensemble: Ensemble,
    arrays: Arrays,
    progress: Callable[[int], None] = lambda count: None,
) -> Floats:
    """What these images would have had without noise, from any teachers, as a mean over those.

    By the paper's formula in floating point, and by none of the code that makes a release: a
    mistake there is none here. What each teacher says is cut to the lattice, toward zero.
    """
    mechanism = mechanism_of(release)
    caps, channels = mechanism.caps[:, None], mechanism.channels.tolist()
    step = mechanism.lattice.step
    found = []
    for batch in Queries.of(arrays).batches():
        total: Any = 0.0
        for teacher in ensemble.teachers:
            features = teacher.tap.features(batch.images)[:, channels].double().numpy()
            features = features.reshape(*features.shape[:2], -1)
            said = normalised(features, caps, nonnegative=release.plan.nonnegative)
            total = total + np.trunc(said / step) * step
            progress(len(features))
        found.append((total / len(ensemble.teachers)).reshape(len(batch.images), -1))
    return np.concatenate(found)


def noiseless_statistics(
    release: Release,
    ensemble: Ensemble,
    arrays: Arrays,
    progress: Callable[[int], None] = lambda count: None,
) -> dict[Name, Floats]:
    """The statistics that were read from the teachers, without noise: `[C]` each.

    A mean over teachers and queries, by the paper's formula in floating point, as above.
    """
    plan = release.plan
    names = [name for name, source in plan.sources.items() if source == "private"]
    found: dict[Name, Any] = dict.fromkeys(names, 0.0)
    for teacher in ensemble.teachers if names else ():
        for batch in Queries.of(arrays).batches():
            features, energy = teacher.tap.features_and_energy(batch.images, batch.masks)
            norms = features.double().flatten(2).norm(dim=2).numpy()
            energies = (energy * batch.labelled[:, None]).double().numpy()
            for name, rows, bound in (("caps", norms, plan.bound), ("importance", energies, 0.0)):
                if name in found:
                    unit = normalised(rows[:, None], np.array([[bound]]), nonnegative=True)
                    found[name] = found[name] + unit.sum(axis=(0, 1)) * (bound or 1.0)
            progress(len(batch.images))
    terms = len(ensemble.teachers) * len(arrays.ids)
    return {name: total / terms for name, total in found.items()}


def normalised(values: Floats, bounds: Floats, *, nonnegative: bool) -> Floats:
    """Vectors in units of their bounds, shortened to length one where they are longer.

    Args:
        values: `[n, vectors, entries]`; all vectors of one that has NaN or infinity become zero.
        bounds: `[vectors, 1]`; of a bound of 0, any vector but zero has length one.
        nonnegative: whether entries below zero become zero first.
    """
    values = np.where(np.isfinite(values).all(axis=(1, 2), keepdims=True), values, 0.0)
    if nonnegative:
        values = np.maximum(values, 0.0)
    lengths = np.linalg.norm(values, axis=2, keepdims=True)
    longest = np.maximum(lengths, bounds)
    shorter: Floats = np.divide(values, longest, out=np.zeros_like(values), where=longest > 0)
    return shorter


def passes(plan: Plan) -> int:
    """How many images pass through networks when all that has noise is made again without."""
    people = plan.participants
    times = 2 if "private" in plan.sources.values() else 1
    return times * people.teachers * people.queries


def check_teachers(release: Release, ensemble: Ensemble) -> None:
    """Refuse teachers of other cohorts than the release's; whose weights, it does not say."""
    made = tuple(release.manifest.participants["cohorts"])
    if ensemble.cohorts != made:
        raise InvalidValueError(
            f"{release.path} was made with the teachers of {', '.join(made)}, in this order; give "
            "those"
        )


def check_queries(release: Release, ids: Iterable[str]) -> None:
    """Refuse other queries than the release's, and fewer."""
    asked = set(ids)
    if asked != set(release.ids):
        raise InvalidValueError(
            f"{release.path} answers {len(release)} queries, not these {len(asked)}; give all of "
            "those, and no others"
        )
