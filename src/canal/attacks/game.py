r"""The game: which of two neighbouring worlds was released? Played with the release's own code.

Each world goes the way of a real release, up to integers that are written to a shard and read from
it. The score is the likelihood ratio of what was read,
$\Lambda = \sum_j x_j d_j / \sigma_j^2$, with $d$ the distance of the two worlds before noise: by
Neyman and Pearson, no score tells them apart better.

Only coordinates on which the worlds differ are drawn. This is exact, not an approximation: noise is
independent from coordinate to coordinate, so the others have the same distribution in both worlds
and cancel in the likelihood ratio. Draws are laid along an axis of the tensor, so that one call of
the sampler makes many of them.

There is a game for each kind of release: `canal.attacks.feature_game`, `canal.attacks.rounds_game`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from canal.release.shard import TENSOR, shard_name, write_shard

if TYPE_CHECKING:
    from canal.features.plan import Plan
    from canal.gradients.plan import AdapterPlan
    from canal.privacy.randomness import Secret
    from canal.privacy.units import Unit
    from canal.release.mechanism import Noise

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Scores = tuple[Floats, Floats]
Progress = Callable[[int], None]

# Values that are drawn at once; they stay in the cache.
_BLOCK = 1 << 20
# NumPy and OpenSSL work outside of Python's lock.
THREADS = 2


@dataclass(frozen=True)
class Played:
    r"""What was drawn.

    Args:
        parts: scores in both worlds of every part of a release, each by itself.
        spread: of every part, variance of the noise over the stated one, in every place with a
            width of its own.
        freedom: of every part, degrees of freedom of each of those.
        apart: of every part, how far the worlds are apart in each of those places before noise, in
            stated deviations.
        seen: of every part, how many queries or rounds those places are of; one, if not said.
        sample: some stored values of both worlds, `[n, values]`, that have noise of their own.
    """

    parts: dict[str, Scores]
    spread: dict[str, Floats]
    freedom: dict[str, float]
    apart: dict[str, Floats]
    seen: dict[str, int]
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


class Game(ABC):
    """Two neighbours of one unit, and the code that would release either."""

    unit: Unit
    # The part that is published again and again, and what one time of it is called.
    repeated: ClassVar[str]
    times: ClassVar[str]

    @property
    @abstractmethod
    def neighbours(self) -> str:
        """What the two worlds differ by, in words."""

    @property
    @abstractmethod
    def drawn(self) -> int:
        """How many times of the repeated part are drawn."""

    @property
    @abstractmethod
    def among(self) -> int:
        """In how many the unit takes part."""

    @property
    @abstractmethod
    def plan(self) -> Plan | AdapterPlan:
        """Of the release."""

    @property
    def delta(self) -> float:
        """Of the release."""
        return self.plan.delta

    @property
    def noisy(self) -> bool:
        """Whether there is any noise."""
        return self.plan.allocation != "none"

    @property
    @abstractmethod
    def claimed(self) -> dict[str, float]:
        r"""The $\mu$ that the accounting states for each part, exactly as it is drawn."""

    @property
    def claimed_mu(self) -> float:
        """The same of all parts together."""
        return math.hypot(*self.claimed.values())

    @property
    @abstractmethod
    def values(self) -> int:
        """Noise values of one draw in both worlds; for progress."""

    @abstractmethod
    def reaches(self) -> Iterator[Reach]:
        """How far apart the worlds are, part by part and block by block."""

    @abstractmethod
    def not_whole(self, secret: Secret) -> str:
        """What is wrong with noise that should be integers, whatever it is added to; or nothing.

        Args:
            secret: behind the noise.
        """

    @abstractmethod
    def rows(self, noise: Noise) -> Iterator[NDArray[Any]]:
        """Some of what would be published with this noise, each of at least nine bits."""

    @abstractmethod
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


def stored(rows: NDArray[Any], folder: Path, number: int = 0, tensor: str = TENSOR) -> NDArray[Any]:
    """The same after a shard was written and read."""
    shard = write_shard(folder / shard_name(number, tensor), rows, "audit", tensor)
    values = np.array(shard.map(folder, rows.shape[1:], rows.dtype.type))
    (folder / shard.file).unlink()
    return values


def parts_of(draws: int, width: int) -> Iterator[slice]:
    """Draws of so many values each, in parts that stay in the cache."""
    size = max(1, _BLOCK // max(1, width))
    return (slice(start, min(start + size, draws)) for start in range(0, draws, size))


def in_bytes(*numbers: int) -> tuple[bytes, ...]:
    """Numbers as the context of a key."""
    return tuple(number.to_bytes(8, "big") for number in numbers)


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
