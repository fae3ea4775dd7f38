r"""The game: which of two neighbouring worlds was released? Played with the release's own code.

Each world goes the way of a real release: features are clipped, put on the lattice and summed over
teachers (`canal.release.rows`), caps and importance are summed over teachers and queries
(`canal.release.statistics`); noise is added by `Mechanism.perturb` and `Sum.perturb` (of shares,
what is left when t of them are known); integers are written to a shard and read from it. The score
is the likelihood ratio of what was read,
$\Lambda = \sum_j x_j d_j / \sigma_j^2$, with $d$ the distance of the two worlds before noise: by
Neyman and Pearson, no score tells them apart better.

Only coordinates on which the worlds differ are drawn. This is exact, not an approximation: noise is
independent from coordinate to coordinate, so the others have the same distribution in both worlds
and cancel in the likelihood ratio. Draws are laid along an axis of the tensor, so that one call of
the sampler makes many of them; the sampler gives every coordinate of a channel the same noise.

That noise of *different queries* is independent is the business of their keys. `play_rows` takes
every row with a key of its own, as the aggregator does, and the teacher answers each second query
the other way round: were noise used twice, it would cancel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.attacks.hostile import Audited, World, feature_teacher, statistic_teacher, worlds
from canal.attacks.moved import Moved
from canal.privacy.randomness import Stream
from canal.release.noise import Noise
from canal.release.rows import make_rows, totals
from canal.release.shard import shard_name, write_shard
from canal.release.statistics import Sum, sum_up

if TYPE_CHECKING:
    from canal.privacy.randomness import Secret
    from canal.release.mechanism import Mechanism
    from canal.release.plan import Plan

Floats = NDArray[np.float64]
Scores = tuple[Floats, Floats]
Progress = Callable[[int], None]

# Values that are drawn at once; they stay in the cache.
_BLOCK = 1 << 20
# Of so many teachers each is tried as the one that changes; of more, as many, evenly spaced.
_MOST_TRIED = 10
_THREADS = 2
FEATURES = "features"


@dataclass(frozen=True)
class Played:
    r"""What was drawn.

    Args:
        parts: scores in both worlds of features, caps and importance, each by itself.
        spread: variance of the noise over the stated one: of each channel, of each statistic.
        freedom: degrees of freedom of each of those.
    """

    parts: dict[str, Scores]
    spread: dict[str, Floats]
    freedom: int

    @property
    def scores(self) -> Scores:
        """Of everything together: log-likelihoods of independent parts add up."""
        before, after = zip(*self.parts.values(), strict=True)
        return np.sum(before, axis=0), np.sum(after, axis=0)


@dataclass(frozen=True)
class Game:
    """Two neighbours of one unit.

    Args:
        mechanism: of the audited release.
        unit: what makes them neighbours.
        queries: on how many of the queries that the unit takes part in they are drawn.
    """

    mechanism: Mechanism
    unit: Audited
    queries: int

    @classmethod
    def within(cls, mechanism: Mechanism, unit: Audited, draws: int, values: float) -> Game:
        """On as many queries as this many noise values pay for, at least one, at most all."""
        plan = mechanism.calibrated.plan
        places = feature_teacher(plan).places
        each = 2 * draws * len(mechanism.channels) * places
        return cls(mechanism, unit, max(1, min(takes_part(plan, unit), int(values // each))))

    @property
    def plan(self) -> Plan:
        """Of the release."""
        return self.mechanism.calibrated.plan

    @property
    def values(self) -> int:
        """Noise values of one draw in both worlds; for progress."""
        statistics = sum(len(moved.where) for moved in self.moved_statistics)
        return 2 * (self.queries * self.moved_features(0)[0].size + statistics)

    @property
    def claimed(self) -> dict[str, float]:
        r"""The $\mu$ that the accounting states for each part, exactly as it is drawn.

        The published channels on `queries` of the queries, and every statistic with noise.
        """
        sensitivity = self.plan.participants.features(self.plan.diameter)[self.unit].sensitivity
        with np.errstate(divide="ignore"):
            once = np.square(np.asarray(sensitivity) / self.mechanism.sigma).sum()
        return {FEATURES: math.sqrt(self.queries * float(once))} | {
            event.name: math.sqrt(2 * event.rho(self.unit))
            for event in self.mechanism.calibrated.guarantee.events
            if self.plan.sources.get(event.name) == "private"  # type: ignore[call-overload]
        }

    @property
    def claimed_mu(self) -> float:
        """The same of all parts together."""
        return math.hypot(*self.claimed.values())

    @cached_property
    def worst(self) -> tuple[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """The teacher that moves features furthest, and the sums, `[2, M, places]`, in both worlds.

        Of two queries, each of one kind: the second is answered the other way round, so that noise
        that was used twice would cancel.
        """
        teacher = feature_teacher(self.plan)
        # A person with one image has one of the two; the other is not drawn.
        kinds = [False, True][: self.plan.participants.queries]
        found = []
        for who in _candidates(self.plan, self.unit):
            pair = worlds(self.unit, teacher, self.plan, kinds, who=who)
            before, after = (_totals(self.mechanism, world) for world in pair)
            reach = float(np.square((after - before) / self._std).sum())
            found.append((reach, who, (before, after)))
        _, who, totals = max(found, key=lambda each: each[0])
        return who, totals

    def moved_features(self, query: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sums over teachers of one query, `[M, places]`, in both worlds."""
        before, after = self.worst[1]
        return before[query % 2], after[query % 2]

    @cached_property
    def moved_statistics(self) -> tuple[Moved, ...]:
        """Sums of the statistics that have noise, where the worlds differ."""
        plan = self.plan
        names = [name for name, source in plan.sources.items() if source == "private"]
        if not names:
            return ()
        teacher = statistic_teacher(plan)
        kinds = [False] * plan.participants.queries
        calibrated = self.mechanism.calibrated
        found: dict[str, Moved] = {}
        before: list[Sum] = []
        for who in _candidates(plan, self.unit):
            first, second = worlds(self.unit, teacher, plan, kinds, who=who)
            before = before or sum_up(calibrated, names, first.queries, first.networks)
            after = sum_up(calibrated, names, second.queries, second.networks)
            for one, other in zip(before, after, strict=True):
                moved = Moved.of(one, other, float(calibrated.sigma(one.name)[0]))
                if one.name not in found or moved.reach > found[one.name].reach:
                    found[one.name] = moved
        return tuple(found.values())

    def play(
        self,
        draws: int,
        secret: Secret,
        folder: Path,
        progress: Progress = lambda count: None,
    ) -> Played:
        """Draw both worlds.

        Args:
            draws: in each world.
            secret: behind the noise.
            folder: for shards; they are removed again.
            progress: called with the number of noise values drawn.
        """
        parts = {name: (np.zeros(draws), np.zeros(draws)) for name in self.claimed}
        squares = {name: np.zeros(1) for name in self.claimed}
        turns = [
            (world, query, part)
            for world in (0, 1)
            for query in range(self.queries)
            for part in _blocks(draws, self.moved_features(query)[world].size)
        ]

        def turn(number: int) -> tuple[Floats, Floats]:
            world, query, part = turns[number]
            context = (self.unit.encode(), *_bytes(world, query, part.start))
            stream = Stream(secret.key(b"audit features", *context))
            total = self.moved_features(query)[world]
            many = np.broadcast_to(total[..., None], (*total.shape, part.stop - part.start))
            noisy = np.moveaxis(self.mechanism.perturb(many, stream), -1, 0)
            rows = _stored(noisy, folder, number)
            scores = rows.reshape(len(rows), -1) @ self.weights(query)
            # One query is enough to see how wide the noise is.
            return scores, self._squares(rows, total) if query == 0 else np.zeros(1)

        # NumPy and OpenSSL work outside of Python's lock; sums are taken in order.
        with ThreadPoolExecutor(_THREADS) as pool:
            for (world, query, part), (scores, found) in zip(
                turns, pool.map(turn, range(len(turns))), strict=True
            ):
                parts[FEATURES][world][part] += scores
                squares[FEATURES] = squares[FEATURES] + found
                progress(len(scores) * self.moved_features(query)[world].size)
        for world, moved in itertools.product((0, 1), self.moved_statistics):
            for part in _blocks(draws, len(moved.where)):
                context = (self.unit.encode(), *_bytes(world, part.start))
                key = secret.key(b"audit statistic", *context, moved.name.encode())
                values = moved.draw(world, part.stop - part.start, Stream(key))
                parts[moved.name][world][part] = values @ moved.weights
                squares[moved.name] += moved.squares(world, values)
                progress(values.size)
        widths = {FEATURES: self.moved_features(0)[0].shape[1]} | {
            moved.name: len(moved.where) for moved in self.moved_statistics
        }
        spread = {name: squares[name] / (2 * draws * widths[name]) for name in squares}
        return Played(parts, spread, 2 * draws)

    def _squares(self, rows: Floats, total: NDArray[np.int64]) -> Floats:
        """Of the noise of each channel over its stated variance, summed."""
        unit = np.ldexp(1.0, self.mechanism.shift)[:, None]
        noise = (rows * unit - total) / self._std
        found: Floats = np.einsum("nmp,nmp->m", noise, noise)
        return found

    @cached_property
    def _std(self) -> Floats:
        """Of the noise, in lattice steps, `[M, 1]`; a unit of storage where there is none."""
        std = self.mechanism.teachers * self.mechanism.sigma / self.mechanism.lattice.step
        return np.where(std > 0, std, np.ldexp(1.0, self.mechanism.shift))[:, None]

    def weights(self, query: int) -> Floats:
        """Of the stored integers of one query in the likelihood ratio, flat."""
        before, after = self.moved_features(query)
        unit = np.ldexp(1.0, self.mechanism.shift)[:, None]
        weights: Floats = ((after - before) / np.square(self._std) * unit).ravel()
        return weights


def play_rows(
    game: Game,
    draws: int,
    secrets: tuple[Secret, Secret],
    folder: Path,
    progress: Progress = lambda count: None,
) -> tuple[Scores, tuple[Floats, Floats]]:
    """The game on pairs of queries, row by row with the keys of the aggregator; features only.

    Args:
        game: for the unit `patient`.
        draws: pairs in each world.
        secrets: one for each world.
        folder: for the shard.
        progress: called with the number of rows made.

    Returns:
        The scores, and the stored rows of both worlds, `[2 · draws, M, places]`.
    """
    teacher = feature_teacher(game.plan)
    kinds = [False, True] * draws
    who = game.worst[0]
    weights = [game.weights(query) for query in (0, 1)]
    scores, stored = [], []
    pair = worlds("patient", teacher, game.plan, kinds, who=who)
    for world, secret in zip(pair, secrets, strict=True):
        made = []
        summed = totals(game.mechanism, world.ensemble, world.queries)
        noise = Noise(secret, (b"audit", b"rows"))
        for row in make_rows(game.mechanism, summed, world.queries, noise):
            made.append(row)
            progress(1)
        rows = _stored(np.stack(made), folder)
        stored.append(rows)
        flat = rows.reshape(draws, 2, -1)
        scores.append(flat[:, 0] @ weights[0] + flat[:, 1] @ weights[1])
    return (scores[0], scores[1]), (stored[0], stored[1])


def takes_part(plan: Plan, unit: Audited) -> int:
    """On how many queries one unit has a say."""
    people = plan.participants
    return people.queries if unit == "patient" else people.images_per_person


def _candidates(plan: Plan, unit: Audited) -> range:
    """Teachers to be tried as the one that changes."""
    teachers = plan.participants.teachers
    if unit == "image":
        return range(1)
    return range(0, teachers, max(1, math.ceil(teachers / _MOST_TRIED)))


def _totals(mechanism: Mechanism, world: World) -> NDArray[np.int64]:
    """Sums over teachers of all queries, `[Q, M, places]`."""
    return np.stack(list(totals(mechanism, world.ensemble, world.queries)))


def _stored(rows: NDArray[Any], folder: Path, number: int = 0) -> Floats:
    """The same after a shard was written and read."""
    shard = write_shard(folder / shard_name(number), rows, "audit")
    values = shard.map(folder, rows.shape[1:]).astype(np.float64)
    (folder / shard.file).unlink()
    return values


def _blocks(draws: int, width: int) -> Iterator[slice]:
    size = max(1, _BLOCK // max(1, width))
    return (slice(start, min(start + size, draws)) for start in range(0, draws, size))


def _bytes(*numbers: int) -> tuple[bytes, ...]:
    return tuple(number.to_bytes(8, "big") for number in numbers)
