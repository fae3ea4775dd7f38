"""The worst case of a gradient release: a canary that is there or not, or is replaced.

A bound on a patient's part is a promise for every gradient, so it is tried with gradients that
reach it. The canary is one of three:

- *narrow*: far beyond the bound, all of a block in one coordinate, so that truncation takes least;
- *wide*: far beyond the bound, and uneven over all coordinates of a block;
- *edge*: of the very length of the bound.

Beside it are a patient who says nothing and one whose gradient is no number: what they are must
change nothing about the canary's part. It is tried as the first patient of the first site and as
the last of the last, and says the opposite in every second round.

No network is needed. How many parameters a channel has, only the network says; a canary that says
nothing about the others is bounded as if they were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import local
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from canal.gradients.mechanism import (
    COUNT,
    COUNT_STEP,
    GradientMechanism,
    GradientSpec,
    History,
    PatientSum,
)
from canal.gradients.patients import Patients
from canal.gradients.plan import TENSOR, AdapterPlan
from canal.gradients.update import UpdateSettings
from canal.privacy.units import Unit
from canal.release.mechanism import Published, Step
from canal.release.worst_case import Accounted, Neighbours, World, WorstCase

if TYPE_CHECKING:
    from torch import Tensor

    from canal.gradients.clip import Clip
    from canal.gradients.gradients import Gradients
    from canal.gradients.plan import CalibratedAdapterPlan
    from canal.gradients.store import AdapterRelease

_HUGE = 1e30
# Of more sites than these, the others would do nothing but take time.
_MOST_SITES = 4
# Coordinates of every channel: one to fill, one more to spread a gradient over.
_EACH = 2
_DIFFER: dict[Unit, str] = {
    "membership": "One patient added or removed",
    "patient": "One patient replaced by the opposite",
}


class ScriptedPatients(Patients):
    """A site whose patients have the gradients that we give them, opposite in every second round.

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


@dataclass(frozen=True, eq=False)
class ScriptedMechanism(GradientMechanism):
    """The mechanism of a release whose patients have no need of a network."""

    _here: local = field(default_factory=local, repr=False)

    @classmethod
    def of(cls, patient_sum: PatientSum) -> ScriptedMechanism:
        """With what turns gradients into what is published."""
        plan, nothing = patient_sum.calibrated.plan, cast("Tensor", None)
        cohorts = tuple(f"site {number}" for number in range(plan.sites))
        spec = GradientSpec(plan, cohorts, "", {}, UpdateSettings(), 0, "seed 0")
        return cls(spec, patient_sum, nothing, nothing, nothing)  # type: ignore[arg-type]

    def at(self, published: Published) -> Gradients:  # noqa: ARG002
        """No gradients: the patients have theirs already."""
        return cast("Gradients", None)

    def history(self, published: Published) -> History:
        """What was published so far, which leads nowhere; each thread of an audit has its own."""
        known, done, history = getattr(self._here, "history", (None, 0, History()))
        if known is not published:
            done, history = 0, History()
        for stored in published.sums[done:]:
            history.note(stored)
        self._here.history = (published, len(published.sums), history)
        return history


@dataclass(frozen=True, eq=False)
class GradientWorstCase(WorstCase):
    """One canary, of each kind and at either end of the sites.

    Args:
        patient_sum: of the release; perhaps of some of its coordinates.
    """

    patient_sum: PatientSum

    steps: ClassVar[str] = "rounds"
    sentences: ClassVar[Mapping[Unit, Sequence[str]]] = {
        "membership": ("with epsilon {} at delta \\S+ where a patient is added or removed",),
        "patient": (", {} where one is replaced by another",),
    }

    @property
    def calibrated(self) -> CalibratedAdapterPlan:  # type: ignore[override]
        """The plan with every sigma."""
        return self.patient_sum.calibrated

    @property
    def plan(self) -> AdapterPlan:
        """What was asked for."""
        return self.calibrated.plan

    @cached_property
    def mechanism(self) -> ScriptedMechanism:  # type: ignore[override]
        """Without a network."""
        return ScriptedMechanism.of(self.patient_sum)

    @property
    def rows(self) -> int:
        """T; a patient has a part in every round."""
        return self.plan.rounds

    def differ(self, unit: Unit) -> str:
        """See `WorstCase`."""
        return _DIFFER[unit]

    def accounted(self, name: str) -> Accounted:
        """Of a round, block by block, in units of the bounds; of the count, in patients."""
        if name == TENSOR:
            return Accounted(self.patient_sum.clip.blocks, self.calibrated.lattice.step)
        return Accounted(np.zeros(1, np.intp), COUNT_STEP)

    def neighbours(self, unit: Unit) -> Iterator[Neighbours]:
        """Each canary as the first of all patients, and as the last."""
        steps = [step for shard in self.mechanism.shards()[:2] for step in shard]
        if self.plan.count:
            steps.append(Step(COUNT))
        sites = min(_MOST_SITES, self.plan.sites)
        for name, canary in canaries(self.patient_sum.clip).items():
            for last in (True, False):
                before, after = (
                    World(self.mechanism, world)
                    for world in neighbours(unit, canary, sites, last=last)
                )
                what = f"a canary that is {name} and {'last' if last else 'first'}"
                yield Neighbours(what, before, after, tuple(steps))


def worst_case(release: AdapterRelease, calibrated: CalibratedAdapterPlan) -> GradientWorstCase:
    """The worst case of a release."""
    channels = len(release.manifest.statistics["scales"])
    public = release.public(np.repeat(np.arange(channels), _EACH))
    return GradientWorstCase(PatientSum(calibrated, public.bounding))


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


def neighbours(
    unit: Unit, canary: Tensor, sites: int = 1, *, last: bool = False
) -> tuple[list[ScriptedPatients], list[ScriptedPatients]]:
    """All sites without the canary and with it, or with its opposite and with it.

    Args:
        unit: `membership` or `patient`.
        canary: `[d]`.
        sites: how many there are; the canary is at one of them.
        last: whether it is the last patient of the last site, or the first of the first.
    """
    import torch

    others = [torch.zeros_like(canary), torch.full_like(canary, torch.nan)]

    def world(*canaries: Tensor) -> list[ScriptedPatients]:
        those = [*others, *canaries] if last else [*canaries, *others]
        rest = [ScriptedPatients(f"site {row}", torch.stack(others)) for row in range(1, sites)]
        mine = ScriptedPatients("the canary's site", torch.stack(those))
        return [*rest, mine] if last else [mine, *rest]

    return world() if unit == "membership" else world(-canary), world(canary)
