r"""The game of features: a teacher that changes, or the query images of one person.

Both worlds are summed by the object that sums a release, `canal.release.mechanism.LocalFederation`:
features are clipped, put on the lattice and added up over teachers, caps and importance over
teachers and queries. Noise is added by `NoisySum.perturb` (of shares, what is left when t of them
are known). The sampler gives every coordinate of a channel the same noise.

That noise of *different queries* is independent is the business of their keys, and looked at row by
row (`canal.attacks.feature_rows`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from canal.attacks.game import (
    THREADS,
    Floats,
    Game,
    Played,
    Progress,
    Reach,
    in_bytes,
    not_integers,
    parts_of,
    stored,
)
from canal.attacks.hostile import (
    Audited,
    World,
    feature_teacher,
    statistic_teacher,
    worlds,
)
from canal.attacks.moved import Moved, off_lattice
from canal.features.statistics import Sum
from canal.privacy.randomness import Stream

if TYPE_CHECKING:
    from canal.features.mechanism import TeacherSum
    from canal.features.plan import Plan
    from canal.privacy.randomness import Secret
    from canal.release.mechanism import Noise

# Of so many teachers each is tried as the one that changes; of more, as many, evenly spaced.
_MOST_TRIED = 10
_ROWS = 8
FEATURES = "features"


@dataclass(frozen=True)
class FeatureGame(Game):
    """Two neighbours of one unit.

    Args:
        mechanism: of the audited release.
        unit: what makes them neighbours.
        queries: on how many of the queries that the unit takes part in they are drawn.
    """

    mechanism: TeacherSum
    unit: Audited
    queries: int

    repeated: ClassVar[str] = FEATURES
    times: ClassVar[str] = "queries"

    @classmethod
    def within(cls, mechanism: TeacherSum, unit: Audited, draws: int, values: float) -> FeatureGame:
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
    def neighbours(self) -> str:
        """What the two worlds differ by, in words."""
        if self.unit == "patient":
            return "A teacher changed by one patient"
        return "The query images of one person changed"

    @property
    def drawn(self) -> int:
        """Queries."""
        return self.queries

    @property
    def among(self) -> int:
        """On how many queries the unit has a say."""
        return takes_part(self.plan, self.unit)

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
            before, after = (
                np.stack(list(world.totals(self.plan, self.mechanism))) for world in pair
            )
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
        if "private" not in plan.sources.values():
            return ()
        teacher = statistic_teacher(plan)
        kinds = [False] * plan.participants.queries
        calibrated = self.mechanism.calibrated
        found: dict[str, Moved] = {}
        before: list[Sum] = []
        for who in _candidates(plan, self.unit):
            first, second = worlds(self.unit, teacher, plan, kinds, who=who)
            before = before or self._summed(first)
            after = self._summed(second)
            for one, other in zip(before, after, strict=True):
                moved = Moved.of(one, other, float(calibrated.sigma(one.name)[0]))
                if one.name not in found or moved.reach > found[one.name].reach:
                    found[one.name] = moved
        return tuple(found.values())

    def _summed(self, world: World) -> list[Sum]:
        """The statistics of one world that have noise, before it is added."""
        found = []
        for name, total in world.statistics(self.plan).items():
            summed = Sum(self.mechanism.calibrated, "caps" if name == "caps" else "importance")
            summed.total = total
            found.append(summed)
        return found

    def reaches(self) -> Iterator[Reach]:
        """How far apart the worlds are: channel by channel, and every statistic."""
        mechanism = self.mechanism
        promise = {event.name: event for event in mechanism.calibrated.guarantee.events}
        stated = promise[FEATURES].exposure(self.unit).sensitivity
        # What is stated of a mean over teachers, here of their sum.
        most = np.broadcast_to(stated, mechanism.channels.shape) * mechanism.teachers
        for query in range(min(2, self.queries)):
            before, after = self.moved_features(query)
            apart = np.sqrt(np.square(after - before).sum(axis=1)) * mechanism.lattice.step
            for channel, found, limit in zip(mechanism.channels, apart, most, strict=True):
                yield Reach(f"channel {channel}", float(found), float(limit))
        for moved in self.moved_statistics:
            limit = float(np.max(promise[moved.name].exposure(self.unit).sensitivity))
            yield Reach(f"the {moved.name}", moved.reach, limit)

    def not_whole(self, secret: Secret) -> str:
        """What is wrong with noise that should be integers, whatever it is added to; or nothing."""
        mechanism = self.mechanism

        def add(total: NDArray[np.int64]) -> NDArray[Any]:
            return mechanism.noisy_sum.perturb(total, Stream(secret.key(b"audit whole numbers")))

        wrong = not_integers(FEATURES, add, (len(mechanism.channels), 64))
        if wrong:
            return wrong
        for moved in self.moved_statistics:
            stream = Stream(secret.key(b"audit whole numbers", moved.name.encode()))
            drawn = moved.draw(0, 1000, stream)
            found = off_lattice(drawn, mechanism.calibrated, moved.name)
            if found:
                return f"{found:.1%} of the noisy {moved.name} are off the lattice"
        return ""

    def rows(self, noise: Noise) -> Iterator[NDArray[Any]]:
        """Eight rows of a few channels, as the aggregator makes them."""
        few, world = self._few
        return world.rows(self.plan, few, noise)

    @cached_property
    def _few(self) -> tuple[TeacherSum, World]:
        """A sum of a few channels, and eight queries."""
        mechanism = self.mechanism
        few = replace(
            mechanism,
            channels=mechanism.channels[:4],
            caps=mechanism.caps[:4],
            sigma=mechanism.sigma[:4],
            shift=mechanism.shift[:4],
        )
        world, _ = worlds("patient", feature_teacher(self.plan), self.plan, [False] * _ROWS)
        return few, world

    def play(
        self,
        draws: int,
        secret: Secret,
        folder: Path,
        progress: Progress = lambda count: None,
    ) -> Played:
        """Draw both worlds."""
        parts = {name: (np.zeros(draws), np.zeros(draws)) for name in self.claimed}
        squares = {name: np.zeros(1) for name in self.claimed}
        turns = [
            (world, query, part)
            for world in (0, 1)
            for query in range(self.queries)
            for part in parts_of(draws, self.moved_features(query)[world].size)
        ]

        def turn(number: int) -> tuple[Floats, Floats]:
            world, query, part = turns[number]
            context = (self.unit.encode(), *in_bytes(world, query, part.start))
            stream = Stream(secret.key(b"audit features", *context))
            total = self.moved_features(query)[world]
            many = np.broadcast_to(total[..., None], (*total.shape, part.stop - part.start))
            noisy_sum = self.mechanism.noisy_sum
            noisy = np.moveaxis(noisy_sum.store(noisy_sum.perturb(many, stream)), -1, 0)
            rows = stored(noisy, folder, number).astype(np.float64)
            scores = rows.reshape(len(rows), -1) @ self.weights(query)
            # One query is enough to see how wide the noise is.
            return scores, self._squares(rows, total) if query == 0 else np.zeros(1)

        # Sums are taken in order.
        with ThreadPoolExecutor(THREADS) as pool:
            for (world, query, part), (scores, found) in zip(
                turns, pool.map(turn, range(len(turns))), strict=True
            ):
                parts[FEATURES][world][part] += scores
                squares[FEATURES] = squares[FEATURES] + found
                progress(len(scores) * self.moved_features(query)[world].size)
        for world, moved in itertools.product((0, 1), self.moved_statistics):
            for part in parts_of(draws, len(moved.where)):
                context = (self.unit.encode(), *in_bytes(world, part.start))
                key = secret.key(b"audit statistic", *context, moved.name.encode())
                values = moved.draw(world, part.stop - part.start, Stream(key))
                parts[moved.name][world][part] = values @ moved.weights
                squares[moved.name] += moved.squares(world, values)
                progress(values.size)
        widths = {FEATURES: self.moved_features(0)[0].shape[1]} | {
            moved.name: len(moved.where) for moved in self.moved_statistics
        }
        freedom = {name: 2.0 * draws * width for name, width in widths.items()}
        spread = {name: squares[name] / freedom[name] for name in squares}
        apart = {moved.name: np.array([moved.reach_in_sigmas]) for moved in self.moved_statistics}
        before, after = self.moved_features(0)
        distance = np.sqrt(np.square((after - before) / self._std).sum(axis=1))
        return Played(parts, spread, freedom, {FEATURES: distance} | apart, {FEATURES: 1})

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
