"""What a mechanism provides to be audited: neighbouring worlds as far apart as they can be.

A sensitivity is a promise for every input, so an audit tries inputs that reach it. The folder of a
mechanism has them as a `WorstCase`, under `worst_case` of its `canal.release.registry.ReleaseKind`.
How far apart the worlds are before noise and what tells them apart after it (`canal.attacks.game`)
is found in the same way for every mechanism: its sums are those of its steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from canal.release.mechanism import LocalFederation, Mechanism, Published, Step, Sums

if TYPE_CHECKING:
    from canal.privacy.units import Unit
    from canal.release.checks import Check
    from canal.release.plan import Calibrated


@dataclass(frozen=True, eq=False)
class World:
    """One of two neighbouring worlds.

    Args:
        mechanism: of the audited release.
        sites: whose data it sums; made up.
    """

    mechanism: Mechanism
    sites: Sequence[Any]

    def sums(self, steps: Sequence[Step]) -> Iterator[Sums]:
        """The sums of some steps, as whoever makes a release asks for them; without noise."""
        federation = LocalFederation(self.sites)
        federation.prepare(self.mechanism, None)
        return federation.sums(steps, Published())


@dataclass(frozen=True)
class Neighbours:
    """Two worlds that differ by one unit.

    Args:
        name: what is tried, in words.
        before: one world.
        after: the other.
        steps: whose sums they move. Of steps that are published again and again, two are enough:
            in the second the unit says the opposite, so that noise that is used twice cancels.
    """

    name: str
    before: World
    after: World
    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Accounted:
    """What the accounting says of the values of a sum; it is stated of them, not read from it.

    Args:
        blocks: for each value of a row, flat, the entry of its event's sigmas.
        worth: what one lattice step is in the unit of these sigmas.
    """

    blocks: NDArray[np.intp]
    worth: float


class WorstCase(ABC):
    """The worst case of one release.

    Attributes:
        mechanism: which draws the noise; it needs no data for that.
        calibrated: the plan with every sigma, derived from the manifest.
        steps: what a statement counts, as in its `epsilon_by_…`.
        sentences: whose neighbours are tried, and how a statement words the epsilon of each:
            patterns, with `{}` in its place.
    """

    mechanism: Mechanism
    calibrated: Calibrated
    steps: ClassVar[str]
    sentences: ClassVar[Mapping[Unit, Sequence[str]]]

    @property
    def units(self) -> tuple[Unit, ...]:
        """Those that have neighbours to try."""
        return tuple(self.sentences)

    @abstractmethod
    def differ(self, unit: Unit) -> str:
        """What the two worlds differ by, in words."""

    @abstractmethod
    def neighbours(self, unit: Unit) -> Iterator[Neighbours]:
        """Pairs of worlds, of which the worst is taken for each sum."""

    @abstractmethod
    def accounted(self, name: str) -> Accounted:
        """What the accounting says of the sum of this name, which is that of its event."""

    @property
    def rows(self) -> int:
        """How many rows the files of the release have, by its plan; 0 if it has none."""
        return 0

    def rows_of(self, unit: Unit, rows: int) -> int:  # noqa: ARG002
        """In how many of so many rows one unit takes part."""
        return rows

    @property
    def stated(self) -> dict[str, float]:
        """Epsilon of every unit that the noise is worth, exact."""
        guarantee, delta = self.calibrated.guarantee, self.calibrated.plan.delta
        return {unit: guarantee.epsilon(delta, unit) for unit in self.units}

    def checks(self) -> list[Check]:
        """What else is to be seen in the folder, without drawing anything."""
        return []
