r"""The game of rounds: a patient who is there or not, or who is replaced by the opposite.

The canary's gradient goes through `Clip.apply` and `Patients.total` onto the lattice
(`canal.attacks.crowd`), all sites through `canal.release.mechanism.LocalFederation`; noise is added
by `NoisySum.perturb`, or in shares by `NoisySum.share`, of which the K - t that nobody tells are
drawn; `NoisySum.store` gives what is written to a shard. Where patients are counted, the count is
part of the game.

Every round has a stream of its own, keyed by all that was published before it, as the aggregator
keys it (`stream_of_round`). In every second round the canary says the opposite: were noise used
twice, it would cancel.

Clip and mechanism are those of the release, of those coordinates on which the worlds differ, and
perhaps a few beside; sigma, lattice and bounds are the release's own, nothing is calibrated anew.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.attacks.crowd import Pair, canaries
from canal.attacks.game import (
    THREADS,
    Floats,
    Game,
    Integers,
    Played,
    Progress,
    Reach,
    Scores,
    in_bytes,
    not_integers,
    parts_of,
    stored,
)
from canal.gradients.mechanism import COUNT, COUNT_STEP, PatientSum, stream_of_round
from canal.gradients.plan import DISTANCE, DISTANCE_OF_COUNT, AdapterPlan
from canal.gradients.plan import TENSOR as ROUNDS
from canal.privacy.units import Unit
from canal.release.mechanism import Noise
from canal.release.noisy_sum import NoisySum

if TYPE_CHECKING:
    from canal.privacy.randomness import Secret, Stream

_ROWS = 8
# Draws, rounds and coordinates that are kept to see whether their noise is related.
_SAMPLE, _SAMPLE_ROUNDS, _SAMPLE_WIDTH = 5000, 100, 4
_NEIGHBOURS: dict[Unit, str] = {
    "membership": "One patient added or removed",
    "patient": "One patient replaced by the opposite",
}


@dataclass(frozen=True)
class _Turn:
    """Some draws of one world: scores and squares of the noise of every part, and a sample."""

    scores: dict[str, Floats]
    squares: dict[str, Floats]
    sample: Floats


@dataclass(frozen=True)
class RoundsGame(Game):
    """Two neighbours of one unit.

    Args:
        mechanism: of the audited release, of some of its coordinates or all.
        unit: `membership` or `patient`.
        rounds: how many of the T rounds are drawn.
    """

    mechanism: PatientSum
    unit: Unit
    rounds: int

    repeated: ClassVar[str] = ROUNDS
    times: ClassVar[str] = "rounds"

    @classmethod
    def within(cls, mechanism: PatientSum, unit: Unit, draws: int, values: float) -> RoundsGame:
        """On as many rounds as this many noise values pay for; two, if there are two, at least."""
        game, among = cls(mechanism, unit, 1), mechanism.calibrated.plan.rounds
        each = 2 * draws * len(game.where) * game.parties
        return replace(game, rounds=min(among, max(2, int(values // each))))

    @property
    def plan(self) -> AdapterPlan:
        """Of the release."""
        return self.mechanism.calibrated.plan

    @property
    def neighbours(self) -> str:
        """What the two worlds differ by, in words."""
        return _NEIGHBOURS[self.unit]

    @property
    def drawn(self) -> int:
        """Rounds."""
        return self.rounds

    @property
    def among(self) -> int:
        """A patient has a part in every round."""
        return self.plan.rounds

    @property
    def counted(self) -> bool:
        """Whether the number of patients is published, and differs."""
        return bool(self.plan.count) and self.worst.counts[0] != self.worst.counts[1]

    @property
    def parties(self) -> int:
        """How many add noise that nobody tells."""
        return self.plan.shares - self.plan.colluding

    @property
    def values(self) -> int:
        """Noise values of one draw in both worlds; for progress."""
        return 2 * self.parties * (self.rounds * len(self.where) + self.counted)

    @property
    def claimed(self) -> dict[str, float]:
        r"""The $\mu$ that the accounting states for each part, exactly as it is drawn."""
        first, *rest = self.mechanism.calibrated.guarantee.events
        once = math.fsum(ratio * ratio for ratio in first.ratios(self.unit))
        claimed = {ROUNDS: math.sqrt(self.rounds * once)}
        if self.counted:
            claimed[COUNT] = math.sqrt(2 * rest[0].rho(self.unit))
        return claimed

    @cached_property
    def tried(self) -> dict[str, Pair]:
        """Every canary, as far as it gets before noise."""
        return {
            f"{name} and {'last' if last else 'first'}": Pair.of(
                self.mechanism, self.unit, canary, last=last
            )
            for name, canary in canaries(self.mechanism.clip).items()
            for last in (True, False)
        }

    @cached_property
    def worst(self) -> Pair:
        """The canary that moves a round furthest, in units of its noise."""
        std = _or_one(self.mechanism.sigma)
        return max(self.tried.values(), key=lambda pair: np.square(pair.apart / std).sum())

    @cached_property
    def where(self) -> NDArray[np.intp]:
        """Coordinates on which the worlds differ; of a few, others beside them.

        Those say nothing about the canary, but their noise must not be the same.
        """
        differ = self.worst.apart.any(axis=0)
        most = max(_SAMPLE_WIDTH, np.count_nonzero(differ))
        return np.sort(np.argsort(~differ, stable=True)[:most])

    def reaches(self) -> Iterator[Reach]:
        """How far apart the worlds are: every canary in every block, and the count."""
        clip, step = self.mechanism.clip, self.mechanism.calibrated.lattice.step
        for name, pair in self.tried.items():
            for apart in pair.apart:
                squares = np.bincount(clip.blocks, np.square(apart.astype(np.float64)))
                for block, square in enumerate(squares):
                    what = f"block {block} of a round, by a canary that is {name}"
                    yield Reach(what, math.sqrt(square) * step, DISTANCE[self.unit])
        if self.counted:
            before, after = self.worst.counts
            stated = DISTANCE_OF_COUNT[self.unit]
            yield Reach("the number of patients", (after - before) * COUNT_STEP, stated)

    def not_whole(self, secret: Secret) -> str:
        """What is wrong with noise that should be integers, whatever it is added to; or nothing."""
        noise, few = Noise(secret, (b"audit whole numbers",)), self._few

        def add(total: Integers) -> Integers:
            return self._noisy(few, total, noise, 0, b"")

        wrong = not_integers(ROUNDS, add, (64, len(self.where)))
        if wrong or not self.counted:
            return wrong
        return not_integers("the count", lambda parts: self._noisy_count(parts, noise), (64,))

    def rows(self, noise: Noise) -> Iterator[NDArray[Any]]:
        """A few coordinates of eight rounds, whatever T is."""
        few, published = self._fewest, hashlib.sha256()
        for number in range(_ROWS):
            total = self.worst.sums[number % 2, 0, self.where[:_SAMPLE_WIDTH]]
            noisy = self._noisy(few, total, noise, number, published.digest())
            row = few.noisy_sum.store(noisy)
            published.update(hashlib.sha256(row.tobytes()).digest())
            yield row

    def play(
        self,
        draws: int,
        secret: Secret,
        folder: Path,
        progress: Progress = lambda count: None,
    ) -> Played:
        """Draw both worlds."""
        width = len(self.where)
        turns = list(itertools.product((0, 1), parts_of(draws, width)))
        scores: dict[str, Scores] = {
            name: (np.zeros(draws), np.zeros(draws)) for name in self.claimed
        }
        squares = {ROUNDS: np.zeros((self.rounds, width)), COUNT: np.zeros(1)}
        sample: list[Floats] = []

        def turn(number: int) -> _Turn:
            world, part = turns[number]
            context = (b"audit", self.unit.encode(), *in_bytes(world, part.start))
            size = part.stop - part.start
            return self._turn(world, size, Noise(secret, context), folder, number)

        with ThreadPoolExecutor(THREADS) as pool:
            for (world, part), found in zip(turns, pool.map(turn, range(len(turns))), strict=True):
                for name in scores:
                    scores[name][world][part] = found.scores[name]
                    squares[name] += found.squares[name]
                if part.start == 0:
                    sample.append(found.sample)
                progress((part.stop - part.start) * self.values // 2)
        freedom = dict.fromkeys(scores, 2.0 * draws)
        spread = {name: squares[name] / freedom[name] for name in scores}
        return Played(scores, spread, freedom, self._apart, {ROUNDS: self.rounds}, tuple(sample))

    def _turn(self, world: int, size: int, noise: Noise, folder: Path, number: int) -> _Turn:
        """Some draws of one world, all rounds one after the other."""
        few, published, kept = self._few, hashlib.sha256(), []
        std = _or_one(few.sigma / few.calibrated.lattice.step)
        apart = self.worst.apart[:, self.where]
        scores, squares = np.zeros(size), np.zeros((self.rounds, len(self.where)))
        for each in range(self.rounds):
            total = self.worst.sums[each % 2, world, self.where]
            many = np.broadcast_to(total, (size, len(total)))
            noisy = self._noisy(few, many, noise, each, published.digest())
            rows = stored(few.noisy_sum.store(noisy), folder, number, ROUNDS)
            published.update(hashlib.sha256(rows.tobytes()).digest())
            values = rows.astype(np.float64)
            scores += values @ (apart[each % 2] / np.square(std))
            squares[each] = np.square((values - total) / std).sum(axis=0)
            if each < _SAMPLE_ROUNDS:
                kept.append(values[:_SAMPLE, :_SAMPLE_WIDTH])
        made = _Turn({ROUNDS: scores}, {ROUNDS: squares}, np.concatenate(kept, axis=1))
        if self.counted:
            wide = _or_one(self.mechanism.calibrated.count_sigma / COUNT_STEP)
            before, after = self.worst.counts
            clear = self.worst.counts[world]
            numbers = self._noisy_count(np.full(size, clear), noise).astype(np.float64)
            made.scores[COUNT] = numbers * ((after - before) / np.square(wide))
            made.squares[COUNT] = np.square((numbers - clear) / wide).sum(keepdims=True)
        return made

    @property
    def _apart(self) -> dict[str, Floats]:
        """How far the worlds are apart in every place that is drawn, in deviations."""
        few, (before, after) = self._few, self.worst.counts
        std = _or_one(few.sigma / few.calibrated.lattice.step)
        both = self.worst.apart[:, self.where] / std
        found = {ROUNDS: both[np.arange(self.rounds) % 2]}
        if self.counted:
            wide = _or_one(self.mechanism.calibrated.count_sigma / COUNT_STEP)
            found[COUNT] = np.atleast_1d((after - before) / wide)
        return found

    @cached_property
    def _few(self) -> PatientSum:
        return self._of(self.where)

    @cached_property
    def _fewest(self) -> PatientSum:
        return self._of(self.where[:_SAMPLE_WIDTH])

    def _of(self, where: NDArray[np.intp]) -> PatientSum:
        """The mechanism of these coordinates: the same noise, lattice and bounds."""
        clip = self.mechanism.clip
        few = replace(clip, scale=clip.scale[where], blocks=clip.blocks[where])
        return replace(self.mechanism, clip=few)

    def _streams(self, noise: Noise) -> list[Noise]:
        """Of everybody who adds noise that nobody tells; of one where somebody is trusted."""
        if self.plan.trust == "trusted":
            return [noise]
        sites = range(self.parties)
        return [replace(noise, secret=noise.secret.at(f"site {site}")) for site in sites]

    def _noisy(
        self, few: PatientSum, total: Integers, noise: Noise, number: int, published: bytes
    ) -> NDArray[np.signedinteger]:
        """One round's sum with its noise; the canary's site sends it, others send nothing else."""
        streams = [stream_of_round(each, number, published) for each in self._streams(noise)]
        # Noise has the width of a coordinate along the first axis; draws are behind it.
        made = _sent(few.noisy_sum, np.asarray(total).T, streams)
        return made.T

    def _noisy_count(self, parts: Integers, noise: Noise) -> NDArray[np.signedinteger]:
        """The number of patients with its noise, before it is kept at one at least."""
        streams = [each.of_statistic(COUNT) for each in self._streams(noise)]
        return _sent(self.mechanism.noisy_count, parts, streams)


def _sent(
    noisy_sum: NoisySum, total: Integers, streams: Sequence[Stream]
) -> NDArray[np.signedinteger]:
    """What all sites send, added up: the canary's its sum, others nothing, each with its share."""
    first, *others = streams
    if noisy_sum.shares == 1:
        return noisy_sum.perturb(total, first)
    made = noisy_sum.share(total, first)
    for each in others:
        made += noisy_sum.share(np.zeros_like(total), each)
    return made


def _or_one(std: ArrayLike) -> Floats:
    """A deviation; one step where there is no noise, and every score tells."""
    return np.where(np.asarray(std) > 0, std, 1.0)
