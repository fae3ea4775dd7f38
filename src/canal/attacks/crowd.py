"""The crowd: patients of the worst kind, whose gradients nobody computed.

A bound on a patient's part is a promise for every gradient, so it is tried with gradients that
reach it. The canary is one of three:

- *narrow*: far beyond the bound, all of a block in one coordinate, so that truncation takes least;
- *wide*: far beyond the bound, and uneven over all coordinates of a block;
- *edge*: of the very length of the bound.

Beside it are a patient who says nothing and one whose gradient is no number: what they are must
change nothing about the canary's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from canal.adapters.cohorts import contribute
from canal.adapters.patients import Patients

if TYPE_CHECKING:
    from torch import Tensor

    from canal.adapters.clip import Clip
    from canal.adapters.gradients import Gradients
    from canal.adapters.mechanism import Mechanism
    from canal.privacy.units import Unit

_HUGE = 1e30


class Crowd(Patients):
    """A site whose patients say what they like, and the opposite in every second round.

    Args:
        rows: `[P, d]` gradients.
    """

    def __init__(self, rows: Tensor) -> None:
        self.cohort, self._rows = "crowd", rows

    def __len__(self) -> int:
        return len(self._rows)

    def gradients(
        self,
        gradients: Gradients,  # noqa: ARG002
        number: int,
        progress: Callable[[int], None] = lambda count: None,  # noqa: ARG002
    ) -> Iterator[Tensor]:
        """Every patient's gradient in one round."""
        yield self._rows if number % 2 == 0 else -self._rows


@dataclass(frozen=True)
class Pair:
    """A canary in two rounds, and in two worlds.

    Args:
        sums: over a site's patients, `[2 rounds, 2 worlds, coordinates]`.
        counts: of the same patients, in parts of one, in both worlds.
    """

    sums: NDArray[np.int64]
    counts: tuple[int, int]

    @classmethod
    def of(cls, mechanism: Mechanism, unit: Unit, canary: Tensor) -> Pair:
        """Both worlds of a canary, as far as they get before noise.

        Args:
            mechanism: of the release.
            unit: `membership` or `patient`.
            canary: its gradient, `[d]`.
        """
        worlds = crowds(unit, canary)
        sums = [
            # Nobody looks at a network here.
            [contribute(mechanism, world, cast("Gradients", None), number, None, b"")]
            for number in (0, 1)
            for world in worlds
        ]
        before, after = (mechanism.count(len(world), None) for world in worlds)
        return cls(np.array(sums).reshape(2, 2, -1), (before, after))

    @property
    def apart(self) -> NDArray[np.int64]:
        """How far the worlds are apart, `[2 rounds, coordinates]`."""
        found: NDArray[np.int64] = self.sums[:, 1] - self.sums[:, 0]
        return found


def canaries(clip: Clip) -> dict[str, Tensor]:
    """Gradients that fill every block, `[d]` each.

    Args:
        clip: of the release; perhaps of some of its coordinates.
    """
    import torch

    _, first = np.unique(clip.blocks, return_index=True)
    narrow = np.zeros(len(clip.blocks))
    narrow[first] = 1.0
    wide = np.linspace(1.0, 2.0, len(clip.blocks))
    found = {"narrow": _HUGE * narrow, "wide": _HUGE * wide, "edge": clip.unit * narrow}
    return {name: torch.from_numpy(each) for name, each in found.items()}


def crowds(unit: Unit, canary: Tensor) -> tuple[Crowd, Crowd]:
    """Two neighbours: without the canary and with it, or with it and with its opposite.

    Args:
        unit: `membership` or `patient`.
        canary: `[d]`.
    """
    import torch

    silent, nonsense = torch.zeros_like(canary), torch.full_like(canary, torch.nan)
    after = Crowd(torch.stack([silent, nonsense, canary]))
    if unit == "membership":
        return Crowd(torch.stack([silent, nonsense])), after
    return Crowd(torch.stack([silent, nonsense, -canary])), after
