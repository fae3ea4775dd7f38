"""The crowd: patients of the worst kind, whose gradients nobody computed.

A bound on a patient's part is a promise for every gradient, so it is tried with gradients that
reach it. The canary is one of three:

- *narrow*: far beyond the bound, all of a block in one coordinate, so that truncation takes least;
- *wide*: far beyond the bound, and uneven over all coordinates of a block;
- *edge*: of the very length of the bound.

Beside it are a patient who says nothing and one whose gradient is no number: what they are must
change nothing about the canary's part. It is tried as the first patient of the first site and
as the last of the last, and all sites are summed by the function that sums a release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from canal.gradients.mechanism import COUNT, GradientMechanism, GradientSpec
from canal.gradients.patients import Patients
from canal.gradients.plan import TENSOR
from canal.gradients.update import UpdateSettings
from canal.release.mechanism import LocalFederation, Published, Step

if TYPE_CHECKING:
    from torch import Tensor

    from canal.gradients.clip import Clip
    from canal.gradients.gradients import Gradients
    from canal.gradients.mechanism import PatientSum
    from canal.privacy.units import Unit

_HUGE = 1e30
# Of more sites than these, the others would do nothing but take time.
_MOST_SITES = 4


class Crowd(Patients):
    """A site whose patients say what they like, and the opposite in every second round.

    Args:
        cohort: name of the site.
        rows: `[P, d]` gradients.
    """

    def __init__(self, cohort: str, rows: Tensor) -> None:
        self.cohort, self._rows = cohort, rows

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


class _Audited(GradientMechanism):
    """The mechanism of an audited release; nobody looks at a network here."""

    @classmethod
    def of(cls, patient_sum: PatientSum) -> _Audited:
        """Of what turns gradients into what is published."""
        plan, nothing = patient_sum.calibrated.plan, cast("Any", None)
        cohorts = tuple(f"site {number}" for number in range(plan.sites))
        spec = GradientSpec(plan, cohorts, "", {}, UpdateSettings(), 0, "seed 0")
        return cls(spec, patient_sum, nothing, nothing, nothing)

    def at(self, published: Published) -> Gradients:  # noqa: ARG002
        """No gradients: the patients have made theirs up."""
        return cast("Gradients", None)


@dataclass(frozen=True)
class Pair:
    """A canary in two rounds, and in two worlds.

    Args:
        sums: over the patients of all sites, `[2 rounds, 2 worlds, coordinates]`.
        counts: of the same patients, in parts of one, in both worlds.
    """

    sums: NDArray[np.int64]
    counts: tuple[int, int]

    @classmethod
    def of(cls, mechanism: PatientSum, unit: Unit, canary: Tensor, *, last: bool = False) -> Pair:
        """Both worlds of a canary, summed as a release sums them, as far as they get before noise.

        Args:
            mechanism: of the release.
            unit: `membership` or `patient`.
            canary: its gradient, `[d]`.
            last: whether it is the last patient of the last site, or the first of the first.
        """
        worlds = crowds(unit, canary, min(_MOST_SITES, mechanism.calibrated.plan.sites), last=last)
        audited = _Audited.of(mechanism)
        found = []
        for world in worlds:
            federation = LocalFederation(world)
            federation.prepare(audited, None)
            steps = [*(step for shard in audited.shards()[:2] for step in shard), Step(COUNT)]
            found.append(list(federation.sums(steps, Published())))
        sums = [world[number][TENSOR][0] for number in (0, -2) for world in found]
        before, after = (int(world[-1][COUNT][0]) for world in found)
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


def crowds(
    unit: Unit, canary: Tensor, sites: int = 1, *, last: bool = False
) -> tuple[list[Crowd], list[Crowd]]:
    """Two neighbours: without the canary and with it, or with it and with its opposite.

    Args:
        unit: `membership` or `patient`.
        canary: `[d]`.
        sites: how many there are; the canary is at one of them.
        last: whether it is the last patient of the last site, or the first of the first.
    """
    import torch

    others = [torch.zeros_like(canary), torch.full_like(canary, torch.nan)]

    def world(*canaries: Tensor) -> list[Crowd]:
        those = [*others, *canaries] if last else [*canaries, *others]
        rest = [Crowd(f"site {number}", torch.stack(others)) for number in range(1, sites)]
        mine = Crowd("the canary's site", torch.stack(those))
        return [*rest, mine] if last else [mine, *rest]

    return world() if unit == "membership" else world(-canary), world(canary)
