"""What is particular in checking a feature release (`canal.release.verification`).

The numbers of a manifest are derived again from its plan and the published statistics; the noise is
looked at by query, by channel, and by channel of a query.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from canal.features.mechanism import TeacherSum
from canal.features.plan import Plan, check_plan
from canal.features.statistics import Statistics, Sum
from canal.features.store import Release
from canal.release.manifest import Manifest
from canal.release.noise_check import (
    COMPARED,
    Alike,
    Floats,
    Sums,
    Zeros,
    some,
    without_direction,
)
from canal.release.verification import Derived, check_statement

# Queries that are in memory at once.
_ROWS = 32


def derive(manifest: Manifest) -> Derived:
    """The numbers of a feature release, from its plan and its published statistics."""
    plan = Plan.from_json(manifest.plan)
    check_plan(plan, tuple(str(name) for name in manifest.participants["cohorts"]))
    statistics = Statistics.from_json(manifest.statistics)
    calibrated = plan.calibrate(statistics.weights(plan))
    statistics.check(calibrated)
    mechanism = TeacherSum.of(calibrated, statistics)
    widths = mechanism.teachers * mechanism.sigma / mechanism.lattice.step
    return Derived(calibrated, mechanism.to_json(), widths)


def noise_looks(release: Release) -> tuple[list[Sums | Zeros], dict[str, list[Sums]]]:
    """What is to be seen of the noise in a folder: all looks, and those by what they see.

    Args:
        release: whose noise is not none; one shard at a time is held in memory.
    """
    plan, ids, channels = release.plan, release.ids, release.channels.tolist()
    order = _order(release)
    worth, sigma, slack = _worth(release)
    places, count = plan.positions, len(ids)
    shape = (count, len(channels))
    total, squares = np.zeros((2, len(channels), places))
    for values in _standard(release):
        total += values.sum(axis=0)
        squares += np.square(values).sum(axis=0)
    energy, apart = np.zeros((2, *shape))
    zeros, start = np.zeros(shape, np.int64), 0
    for values in _standard(release):
        rows = slice(start, start + len(values))
        energy[rows] = np.square(values).sum(axis=2)
        apart[rows] = without_direction(values, total - values)
        zeros[rows] = (values == 0).sum(axis=2)
        start += len(values)
    # Noise that comes in shares is rounded once for each; the narrowest density is one share's.
    interval = (worth + _step(release)) / sigma * math.sqrt(plan.shares)

    def query(at: tuple[int, ...]) -> str:
        return f"query {order[at[0]]!r}"

    def channel(at: tuple[int, ...]) -> str:
        return f"channel {channels[at[0]]}"

    def both(at: tuple[int, ...]) -> str:
        return f"channel {channels[at[1]]} of query {order[at[0]]!r}"

    def place(at: tuple[int, ...]) -> str:
        return f"value {at[1]} of channel {channels[at[0]]} over all queries"

    # A mean of clipped channels has length one at most, in units of its cap.
    far, size = 1 / sigma, len(channels) * places
    queries = [Sums(query, energy.sum(axis=1), size, slack.max(), math.sqrt(np.square(far).sum()))]
    of_both = [Sums(both, energy, places, slack, far)]
    over_all = [
        Sums(channel, squares.sum(axis=1), count * places, slack, math.sqrt(count) * far),
    ]
    looks: list[Sums | Zeros] = [
        Sums(place, squares, count, slack[:, None], math.sqrt(count) * far[:, None]),
        Zeros(query, zeros.sum(axis=1), size, interval.max()),
        Zeros(both, zeros, places, interval),
    ]
    if count > 1:
        rest = squares - np.square(total) / count
        over_all.append(Sums(channel, rest.sum(axis=1), (count - 1) * places, slack))
        looks.append(Sums(place, rest, count - 1, slack[:, None]))
    if count > 1 and places > 1:
        queries.append(Sums(query, apart.sum(axis=1), len(channels) * (places - 1), slack.max()))
        of_both.append(Sums(both, apart, places - 1, slack))
    stated = {"a query": queries, "a channel": over_all, "a channel of a query": of_both}
    return [*queries, *over_all, *of_both, *looks, *_statistic_looks(release)], stated


def _statistic_looks(release: Release) -> list[Sums | Zeros]:
    """What is to be seen of the noise on caps and importance, where they have any."""
    calibrated = check_statement(release.manifest)
    made, plan = Statistics.from_json(release.manifest.statistics), release.plan
    looks: list[Sums | Zeros] = []
    for name, statistic in (("caps", made.caps), ("importance", made.importance)):
        if not statistic.sigma:
            continue
        values = np.array(statistic.values) / statistic.sigma
        total = Sum(calibrated, "caps" if name == "caps" else "importance")
        unit = total.lattice.step * total.bound / total.terms / statistic.sigma
        every = np.square(values).sum(keepdims=True)
        reach = total.bound / statistic.sigma

        def named(_: tuple[int, ...], name: str = name) -> str:
            return f"the statistic {name}"

        looks.append(Sums(named, every, len(values), plan.shares * unit / 2, reach))
        zeros = np.array([(values == 0).sum()])
        looks.append(Zeros(named, zeros, len(values), unit * math.sqrt(plan.shares)))
    return looks


def alike(release: Release) -> list[Alike]:
    """What should have noise of its own: queries, and channels."""
    order, channels = _order(release), release.channels.tolist()
    every = max(1, len(order) * release.plan.positions // COMPARED)
    rows, across = [], []
    for values in _standard(release):
        flat = values.reshape(len(values), -1)
        rows.append(flat[:, some(flat.shape[1])])
        across.append(np.moveaxis(values, 1, 0).reshape(len(channels), -1)[:, ::every])
    return [
        Alike("queries", np.concatenate(rows), lambda row: f"query {order[row]!r}"),
        Alike("channels", np.concatenate(across, axis=1), lambda row: f"channel {channels[row]}"),
    ]


def _order(release: Release) -> list[str]:
    """Ids in the order of the rows in the shards."""
    where = release.manifest.rows
    return sorted(release.ids, key=lambda name: (where[name][0], where[name][1]))


def _step(release: Release) -> float:
    """One step of the lattice, as a part of the mean over teachers."""
    return float(release.manifest.mechanism["step"]) / release.plan.participants.teachers


def _worth(release: Release) -> tuple[Floats, Floats, Floats]:
    """Of every channel: a stored unit, sigma, and what rounding moves a value by, over sigma."""
    numbers = release.manifest.mechanism
    worth = np.ldexp(_step(release), np.array(numbers["shift"]))
    sigma = np.array(numbers["sigma"], dtype=np.float64)
    # To storage once, to the lattice for every share.
    return worth, sigma, (worth + release.plan.shares * _step(release)) / (2 * sigma)


def _standard(release: Release) -> Iterator[Floats]:
    """Published values over their deviation, `[rows, M, H·W]`, in the order of the shards."""
    worth, sigma, _ = _worth(release)
    for stored in release.shards():
        for start in range(0, len(stored), _ROWS):
            rows = stored[start : start + _ROWS]
            yield rows.reshape(*rows.shape[:2], -1) * (worth / sigma)[:, None]
