r"""The game: which of two neighbouring worlds was released? Played with the release's own code.

One game for every mechanism. Each of its sums in two worst-case worlds (`canal.release.worst_case`)
goes the way of a real release: from `LocalFederation` through `perturbed`, up to integers that are
written to a shard and read from it. The score is the likelihood ratio of what was read,
$\Lambda = \sum_j x_j d_j / \sigma_j^2$, with $d$ the distance of the two worlds before noise: by
Neyman and Pearson, no score tells them apart better. $\sigma$ is that of the accounting.

Only values on which the worlds differ are drawn. This is exact, not an approximation: noise is
independent from value to value, so the others have the same distribution in both worlds and cancel
in the likelihood ratio. Draws are laid along an axis of the tensor, so that one call of the sampler
makes many of them.

A sum that is published once is a part of the game by itself. Of one that is published again and
again (a row for every query, or every round), as many rows are drawn as there is time for; each
has the stream that the mechanism gives it, keyed by all that was published before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from canal.release.mechanism import Mechanism, Noise, Published, Step, perturbed
from canal.release.shard import shard_name, write_shard

if TYPE_CHECKING:
    from canal.privacy.events import GaussianEvent
    from canal.privacy.randomness import Secret, Stream
    from canal.privacy.units import Unit
    from canal.release.noisy_sum import NoisySum
    from canal.release.worst_case import World, WorstCase

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Scores = tuple[Floats, Floats]
Progress = Callable[[int], None]

# Values that are drawn at once; they stay in the cache.
_BLOCK = 1 << 20
# NumPy and OpenSSL work outside of Python's lock.
THREADS = 2
# Places of a sum whose noise is looked at, one by one.
_PLACES = 400
# Draws that are kept to see whether their noise is related; rows; values of the first two of them,
# and of the others.
_SAMPLE, _SAMPLE_ROWS, _SAMPLE_WIDE, _SAMPLE_FEW = 5000, 100, 128, 4
# Rows that show whether a secret explains them; values that show whether two rows have one noise.
_TOLD, _SILENT = 8, 32


@dataclass(frozen=True)
class Played:
    r"""What was drawn.

    Args:
        parts: scores in both worlds of every part of a release, each by itself.
        freedom: draws in both worlds.
        spread: of every part, variance of the noise over the stated one, in every place of the rows
            that were looked at, `[rows, values]`.
        apart: of every part, how far the worlds are apart in each of those places before noise, in
            stated deviations.
        sample: some stored values of both worlds, `[n, values]`, that have noise of their own.
    """

    parts: dict[str, Scores]
    freedom: float
    spread: dict[str, Floats]
    apart: dict[str, Floats]
    sample: tuple[Floats, ...] = ()

    @property
    def scores(self) -> Scores:
        """Of everything together: log-likelihoods of independent parts add up."""
        before, after = zip(*self.parts.values(), strict=True)
        return np.sum(before, axis=0), np.sum(after, axis=0)


@dataclass(frozen=True)
class Reach:
    """How far apart two worlds are before noise, in one place.

    Args:
        what: is moved.
        found: its distance.
        stated: the most that the accounting says.
    """

    what: str
    found: float
    stated: float


@dataclass(frozen=True, eq=False)
class Moved:
    r"""One sum in both worlds, of the neighbours that move it furthest.

    Args:
        event: what the accounting says of it.
        step: that publishes it; or the first row, of one that is published again and again.
        shape: of a row.
        sums: before noise, `[2 worlds, rows, values]` on the lattice. Further rows are these again.
        where: values that are drawn: where the worlds differ, and of a few, others beside them,
            which say nothing about the unit, but whose noise must not be the same.
        blocks: of each of those, the entry of the event's sigmas.
        std: $\sigma$ that is stated of each, in lattice steps; 0 for none.
        unit: what a stored integer is worth, in lattice steps.
    """

    event: GaussianEvent
    step: Step
    shape: tuple[int, ...]
    sums: Integers
    where: NDArray[np.intp]
    blocks: NDArray[np.intp]
    std: Floats
    unit: Floats

    @property
    def name(self) -> str:
        """Name of the sum."""
        return self.event.name

    @property
    def apart(self) -> Floats:
        """How far apart the worlds are, `[rows, values]`, in stated deviations."""
        return np.asarray((self.sums[1] - self.sums[0]) / self._deviation)

    @property
    def _deviation(self) -> Floats:
        """One unit of storage where there is no noise, and every score tells."""
        return np.where(self.std > 0, self.std, self.unit)

    def at(self, row: int) -> Step:
        """The step that publishes one row."""
        return replace(self.step, number=row, start=row, stop=row + 1)

    def total(self, world: int, row: int) -> Integers:
        """What is published of one row, before noise."""
        found: Integers = self.sums[world, row % self.sums.shape[1]]
        return found

    def score(self, row: int, values: Floats) -> Floats:
        """The part of the likelihood ratio that is in stored values, `[n, values]`, of one row."""
        weights = self.apart[row % self.sums.shape[1]] / self._deviation * self.unit
        found: Floats = values @ weights
        return found

    def squares(self, world: int, row: int, values: Floats) -> Floats:
        """The noise in stored values over its stated variance, summed over draws."""
        noise = (values * self.unit - self.total(world, row)) / self._deviation
        found: Floats = np.square(noise).sum(axis=0)
        return found


@dataclass(frozen=True, eq=False)
class _Narrow:
    """A mechanism that publishes some values of each row; many draws of them, behind each other.

    Noise, lattice and bounds are the mechanism's own.
    """

    mechanism: Mechanism
    moved: Moved

    def noisy_sum(self, step: Step, name: str, published: Published) -> NoisySum:
        """How the values get their noise."""
        whole = self.mechanism.noisy_sum(step, name, published)
        std, shift = (
            along(values, self.moved.shape)[self.moved.where] for values in (whole.std, whole.shift)
        )
        return replace(whole, std=std, shift=shift)

    def streams(self, noise: Noise, step: Step, name: str, published: Published) -> list[Stream]:
        """The mechanism's own."""
        return self.mechanism.streams(noise, step, name, published)


@dataclass(eq=False)
class Game:
    """Two neighbours of one unit, and the code that would release either.

    Args:
        worst: case of the mechanism that is audited.
        unit: what makes them neighbours.
        drawn: how many rows are drawn, of those that the unit takes part in.
    """

    worst: WorstCase
    unit: Unit
    drawn: int = 0

    @classmethod
    def within(cls, worst: WorstCase, unit: Unit, draws: int, values: float) -> Game:
        """On as many rows as this many noise values pay for; on two, if there are two, at least."""
        game = cls(worst, unit, 1)
        if not game.repeated:
            return cls(worst, unit)
        each = 2 * draws * len(game.moved[game.repeated].where) * game.shares
        game.drawn = min(game.among, max(2, int(values // each)))
        return game

    @property
    def among(self) -> int:
        """In how many rows the unit takes part."""
        return self.worst.rows_of(self.unit, self.worst.rows)

    @property
    def steps(self) -> str:
        """What the rows are called."""
        return self.worst.steps

    @property
    def neighbours(self) -> str:
        """What the two worlds differ by, in words."""
        return self.worst.differ(self.unit)

    @property
    def delta(self) -> float:
        """Of the release."""
        return self.worst.calibrated.plan.delta

    @property
    def noisy(self) -> bool:
        """Whether there is any noise."""
        return self.worst.calibrated.plan.allocation != "none"

    @property
    def shares(self) -> int:
        """In how many parts the noise is drawn that nobody tells."""
        plan = self.worst.calibrated.plan
        return plan.shares - plan.colluding

    @cached_property
    def repeated(self) -> str:
        """Name of the sum that is published again and again; none where all are published once."""
        found = (name for name, each in self.moved.items() if each.step.name in self._in_files)
        return next(found, "")

    @cached_property
    def _in_files(self) -> set[str]:
        """Names of steps that are published again and again, in the files of a release."""
        return {step.name for shard in self.worst.mechanism.shards() for step in shard}

    @property
    def claimed(self) -> dict[str, float]:
        r"""The $\mu$ that the accounting states for each part, exactly as it is drawn."""
        found = {}
        for name, moved in self.moved.items():
            once = math.fsum(ratio * ratio for ratio in moved.event.ratios(self.unit))
            times = self.drawn if name == self.repeated else moved.event.exposure(self.unit).count
            found[name] = math.sqrt(times * once)
        return found

    @property
    def claimed_mu(self) -> float:
        r"""The $\mu$ that it states for all parts together."""
        return math.hypot(*self.claimed.values())

    @property
    def values(self) -> int:
        """Noise values of one draw in both worlds; for progress."""
        rows = {name: self.drawn if name == self.repeated else 1 for name in self.moved}
        drawn = sum(rows[name] * len(moved.where) for name, moved in self.moved.items())
        return 2 * self.shares * drawn

    @cached_property
    def _tried(self) -> list[tuple[str, dict[str, tuple[Step, Integers]]]]:
        """What every pair of worlds moves: by sum its first step, and `[2 worlds, rows, …]`."""
        known: dict[World, dict[str, tuple[Step, Integers]]] = {}
        found = []
        for pair in self.worst.neighbours(self.unit):
            for world in (pair.before, pair.after):
                known[world] = known.get(world) or _summed(world, pair.steps)
            before, after = known[pair.before], known[pair.after]
            both = {
                name: (step, np.stack([rows, after[name][1]]))
                for name, (step, rows) in before.items()
            }
            found.append((pair.name, both))
        return found

    @cached_property
    def moved(self) -> dict[str, Moved]:
        """By name, the sums that are moved, each as far as any neighbours move it."""
        events = {event.name: event for event in self.worst.calibrated.guarantee.events}
        found: dict[str, Moved] = {}
        for _, sums in self._tried:
            for name, (step, both) in sums.items():
                moved = self._moved(events[name], step, both)
                so_far = found.get(name)
                if so_far is None or np.square(moved.apart).sum() > np.square(so_far.apart).sum():
                    found[name] = moved
        # What is published once and never moved tells nothing.
        return {
            name: each
            for name, each in found.items()
            if each.apart.any() or each.step.name in self._in_files
        }

    def _moved(self, event: GaussianEvent, step: Step, both: Integers) -> Moved:
        mechanism, shape = self.worst.mechanism, both.shape[2:]
        sums = both.reshape(*both.shape[:2], -1)
        differ = (sums[0] != sums[1]).any(axis=0)
        most = max(_SAMPLE_FEW, np.count_nonzero(differ))
        where = np.sort(np.argsort(~differ, stable=True)[:most])
        accounted = self.worst.accounted(event.name)
        blocks = accounted.blocks[where]
        shift = along(mechanism.noisy_sum(step, event.name, Published()).shift, shape)
        return Moved(
            *(event, step, shape, sums[..., where], where, blocks),
            np.asarray(event.sigma)[blocks] / accounted.worth,
            np.ldexp(1.0, shift[where]),
        )

    def reaches(self) -> Iterator[Reach]:
        """How far apart the worlds are: what every pair moves, row by row and block by block."""
        events = {event.name: event for event in self.worst.calibrated.guarantee.events}
        for pair, sums in self._tried:
            for name, (_, both) in sums.items():
                accounted, event = self.worst.accounted(name), events[name]
                apart = (both[1] - both[0]).reshape(both.shape[1], -1).astype(np.float64)
                stated = np.broadcast_to(event.exposure(self.unit).sensitivity, len(event.sigma))
                for row in apart:
                    squares = np.bincount(accounted.blocks, np.square(row), len(stated))
                    for block in np.unique(accounted.blocks).tolist():
                        found = math.sqrt(squares[block]) * accounted.worth
                        part = f", block {block}," if len(stated) > 1 else ""
                        yield Reach(f"{name}{part} by {pair}", found, float(stated[block]))

    def publish(
        self,
        moved: Moved,
        row: int,
        total: Integers,
        noise: Noise,
        published: Published,
    ) -> NDArray[np.signedinteger]:
        """One row with its noise, `[values, ...]`, as it is stored.

        Args:
            moved: whose row.
            row: its number.
            total: before noise; `[values]`, or many draws behind each other.
            noise: of whoever adds it.
            published: before this row.
        """
        step, sums = self._step(moved, row), {moved.name: total[None]}
        found = perturbed(self._narrow(moved), step, sums, published, noise)[moved.name]
        return np.asarray(found[0])

    def _step(self, moved: Moved, row: int) -> Step:
        return moved.at(row) if moved.name == self.repeated else moved.step

    def _narrow(self, moved: Moved) -> Mechanism:
        return cast("Mechanism", _Narrow(self.worst.mechanism, moved))

    def not_whole(self, secret: Secret) -> str:
        """What is wrong with noise that should be integers, whatever it is added to; or nothing.

        Args:
            secret: behind the noise.
        """
        noise = Noise(secret, (b"audit whole numbers",))
        found = (self._not_whole(moved, noise) for moved in self.moved.values())
        return next(filter(None, found), "")

    def _not_whole(self, moved: Moved, noise: Noise) -> str:
        narrow, published, step = self._narrow(moved), Published(), self._step(moved, 0)
        noisy_sum = narrow.noisy_sum(step, moved.name, published)

        def add(total: Integers) -> NDArray[Any]:
            (stream,) = narrow.streams(noise, step, moved.name, published)
            return noisy_sum.perturb(total, stream)

        return not_integers(moved.name, add, (len(moved.where), 64))

    def told(self, noise: Noise) -> Iterator[NDArray[np.signedinteger]]:
        """A few rows as they would be published with this noise, one after the other."""
        published = Published()
        for name, whole in self.moved.items():
            few = narrowed(whole, slice(_SAMPLE_FEW if name == self.repeated else None))
            for row in range(_TOLD if name == self.repeated else 1):
                stored = self.publish(few, row, few.total(0, row), noise, published)
                if name == self.repeated:
                    published.sums.append(stored)
                yield stored

    def silent(self, noise: Noise) -> Iterator[NDArray[np.signedinteger]]:
        """Every row of a release in which nobody says anything, some values of each."""
        published, moved = Published(), narrowed(self.moved[self.repeated], slice(_SILENT))
        narrow = self._narrow(moved)
        for shard in self.worst.mechanism.shards():
            for step in shard:
                nothing = np.zeros((step.stop - step.start, len(moved.where)), np.int64)
                found = perturbed(narrow, step, {moved.name: nothing}, published, noise)
                published.sums.append(found[moved.name])
                yield from found[moved.name]

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
        width = max(len(moved.where) for moved in self.moved.values())
        size = max(1, _BLOCK // width)
        parts = [slice(start, min(start + size, draws)) for start in range(0, draws, size)]
        turns = list(itertools.product((0, 1), parts))
        scores: dict[str, Scores] = {
            name: (np.zeros(draws), np.zeros(draws)) for name in self.moved
        }
        squares = {name: np.zeros(self._looked_at(name)) for name in self.moved}
        sample: list[Floats] = []

        def turn(number: int) -> _Turn:
            world, part = turns[number]
            context = (b"audit", self.unit.encode(), world.to_bytes(8), part.start.to_bytes(8))
            noise = Noise(secret, context)
            return self._turn(world, part.stop - part.start, noise, folder, number)

        with ThreadPoolExecutor(THREADS) as pool:
            for (world, part), found in zip(turns, pool.map(turn, range(len(turns))), strict=True):
                for name in scores:
                    scores[name][world][part] = found.scores[name]
                    squares[name] += found.squares[name]
                if part.start == 0:
                    sample.append(found.sample)
                progress((part.stop - part.start) * self.values // 2)
        freedom = 2.0 * draws
        spread = {name: found / freedom for name, found in squares.items()}
        apart = {
            name: moved.apart[np.arange(len(spread[name])) % len(moved.apart)]
            for name, moved in self.moved.items()
        }
        return Played(scores, freedom, spread, apart, tuple(sample))

    def _looked_at(self, name: str) -> tuple[int, int]:
        """Rows, and values of each, whose noise is looked at place by place."""
        width = len(self.moved[name].where)
        rows = min(self.drawn, max(1, _PLACES // width)) if name == self.repeated else 1
        return rows, width

    def _turn(self, world: int, size: int, noise: Noise, folder: Path, number: int) -> _Turn:
        """Some draws of one world, all rows one after the other."""
        made, published, kept = _Turn(), Published(), []
        for name, moved in self.moved.items():
            repeated, looked_at = name == self.repeated, self._looked_at(name)
            made.scores[name], made.squares[name] = np.zeros(size), np.zeros(looked_at)
            for row in range(self.drawn if repeated else 1):
                total = np.broadcast_to(moved.total(world, row)[:, None], (len(moved.where), size))
                drawn = np.moveaxis(self.publish(moved, row, total, noise, published), -1, 0)
                if repeated:
                    drawn = stored(drawn, folder, number, self.worst.mechanism.tensor)
                    published.sums.append(drawn)
                values = drawn.astype(np.float64)
                made.scores[name] += moved.score(row, values)
                if row < len(made.squares[name]):
                    made.squares[name][row] = moved.squares(world, row, values)
                if row < _SAMPLE_ROWS:
                    few = _SAMPLE_WIDE if row < 2 else _SAMPLE_FEW
                    kept.append(values[:_SAMPLE, :few])
        made.sample = np.concatenate(kept, axis=1)
        return made


@dataclass
class _Turn:
    """Some draws of one world: scores and squares of the noise of every part, and a sample."""

    scores: dict[str, Floats] = field(default_factory=dict)
    squares: dict[str, Floats] = field(default_factory=dict)
    sample: Floats = field(default_factory=lambda: np.zeros((0, 0)))


def _summed(world: World, steps: tuple[Step, ...]) -> dict[str, tuple[Step, Integers]]:
    """By name, the first step that gives a sum, and its rows in all steps."""
    found: dict[str, tuple[Step, list[Any]]] = {}
    for step, sums in zip(steps, world.sums(steps), strict=True):
        for name, rows in sums.items():
            found.setdefault(name, (step, []))[1].append(rows)
    return {name: (step, np.concatenate(rows)) for name, (step, rows) in found.items()}


def narrowed(moved: Moved, part: slice) -> Moved:
    """Some of the values that are drawn."""
    few: Mapping[str, Any] = {
        name: getattr(moved, name)[part] for name in ("where", "blocks", "std", "unit")
    }
    return replace(moved, sums=moved.sums[..., part], **few)


def along(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """One value for each entry of the first axis of a row, for every value of it, flat."""
    wide = values.reshape(values.shape + (1,) * (len(shape) - values.ndim))
    return np.broadcast_to(wide, shape).ravel()


def stored(rows: NDArray[Any], folder: Path, number: int, tensor: str) -> NDArray[Any]:
    """The rows of a shard that was written and read."""
    shard = write_shard(folder / shard_name(number, tensor), rows, "audit", tensor)
    values = np.array(shard.map(folder, rows.shape[1:], rows.dtype.type))
    (folder / shard.file).unlink()
    return values


def not_integers(what: str, add: Callable[[Integers], NDArray[Any]], shape: tuple[int, ...]) -> str:
    """What is wrong with noise on integers of a shape, added twice with the same stream.

    A float sum of data and noise has low-order bits that depend on the data (Mironov 2012).

    Args:
        what: it is added to.
        add: adds it, with a stream of the same key each time.
        shape: of the integers.
    """
    # Small, so that nothing on the way has a reason to bound them.
    total = np.arange(math.prod(shape)).reshape(shape) % 1000
    drawn = [add(total * factor) for factor in (0, 1)]
    if not all(np.issubdtype(values.dtype, np.signedinteger) for values in drawn):
        return f"noise on {what} is {drawn[0].dtype}, not integers"
    if not np.array_equal(drawn[1] - total, drawn[0]):
        return f"noise on {what} depends on what it is added to"
    return ""
