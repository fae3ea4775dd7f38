r"""Neighbours of the worst kind: teachers and images that move a release as far as it can be moved.

A sensitivity is a promise for every input, so it is tried with inputs that reach it. A hostile
teacher puts all of a channel's mass in one place, far beyond any cap; which place depends on the
one pixel of the image. A *turned* teacher answers the other way round. So the two worlds are

- `patient`: one teacher is turned, on all queries (its cohort had, or had not, that patient);
- `image`: the images of one person are of the other kind, and pass through all teachers.

Clipped, two answers are 2 apart in every channel (plus one against minus one), or $\sqrt 2$ where
channels are clamped (one place against another). Vectors of a statistic differ likewise: all of
their length in one channel, or in another, $\sqrt 2\,B$ apart. One teacher can do all of it at
once (a channel of norm 1e30 among others of norm 1e20), so what the parts cost adds up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from canal.data.arrays import Arrays
from canal.errors import InvalidValueError
from canal.features.ensemble import Ensemble, Teacher
from canal.features.mechanism import FEATURES, FeatureMechanism, FeatureSpec
from canal.features.queries import Queries
from canal.learning.networks import Tap
from canal.release.mechanism import (
    Integers,
    LocalFederation,
    Published,
    Step,
    Sums,
    perturbed,
)

if TYPE_CHECKING:
    from torch import Tensor

    from canal.features.mechanism import TeacherSum
    from canal.features.plan import Plan
    from canal.release.mechanism import Noise

# `paper` has no neighbours of its own: its accounting is held against what a patient pays.
Audited = Literal["patient", "image"]
AUDITED: tuple[Audited, ...] = get_args(Audited)
_HUGE = 1e30


class Hostile(Tap):
    """A network that nobody trained: two answers, and the image's first pixel says which.

    Args:
        features: `[2, C, places]`.
        energies: `[2, C]`.
        turned: the other answer.
    """

    def __init__(self, features: Tensor, energies: Tensor, *, turned: bool = False) -> None:
        self.layer = "hostile"
        self._features, self._energies, self._turned = features, energies, turned

    @property
    def places(self) -> int:
        """Positions of its features."""
        return int(self._features.shape[2])

    def features(self, images: Tensor) -> Tensor:
        """The answer to each image, `[B, C, places]`."""
        return self._features[self._which(images)]

    def features_and_energy(self, images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # noqa: ARG002
        """The same with the energies, `[B, C]`; a hostile site makes up its loss, too."""
        which = self._which(images)
        return self._features[which], self._energies[which]

    def turn(self) -> Hostile:
        """The network that answers the other way round."""
        return Hostile(self._features, self._energies, turned=not self._turned)

    def _which(self, images: Tensor) -> Tensor:
        return ((images[:, 0].flatten(1)[:, 0] > 0) ^ self._turned).long()


@dataclass(frozen=True)
class World:
    """One of two neighbours: who speaks, and of what.

    Args:
        ensemble: the teachers.
        queries: the images.
    """

    ensemble: Ensemble
    queries: Queries

    def totals(self, plan: Plan, teacher_sum: TeacherSum) -> Iterator[Integers]:
        """Sums over teachers of all queries, `[M, places]` each; without noise."""
        for _, _, sums in self._sums(plan, teacher_sum):
            yield from sums[FEATURES]

    def rows(self, plan: Plan, teacher_sum: TeacherSum, noise: Noise) -> Iterator[Integers]:
        """The same as they are published, with the noise of an aggregator."""
        for mechanism, step, sums in self._sums(plan, teacher_sum):
            yield from perturbed(mechanism, step, sums, Published(), noise)[FEATURES]

    def statistics(self, plan: Plan) -> dict[str, Integers]:
        """Sums of the statistics that are read from the teachers, `[C]` each; without noise."""
        mechanism = self._mechanism(plan, None)
        found = self._federation(mechanism).sums(mechanism.preliminaries(), Published())
        return {name: rows[0] for sums in found for name, rows in sums.items()}

    def _sums(
        self, plan: Plan, teacher_sum: TeacherSum
    ) -> Iterator[tuple[FeatureMechanism, Step, Sums]]:
        mechanism = self._mechanism(plan, teacher_sum)
        steps = [step for shard in mechanism.shards() for step in shard]
        sums = self._federation(mechanism).sums(steps, Published())
        return ((mechanism, *each) for each in zip(steps, sums, strict=True))

    def _federation(self, mechanism: FeatureMechanism) -> LocalFederation:
        """Whoever makes a release asks this for sums, and so does an audit."""
        federation = LocalFederation(self.ensemble.teachers)
        federation.prepare(mechanism, None)
        return federation

    def _mechanism(self, plan: Plan, teacher_sum: TeacherSum | None) -> FeatureMechanism:
        ensemble, queries = self.ensemble, self.queries
        spec = FeatureSpec(
            *(plan, ensemble.cohorts, ensemble.initialisation, ensemble.layer),
            *(tuple(zip(queries.ids, queries.contents, strict=True)), "seed 0"),
        )
        return FeatureMechanism(spec, queries, fixed=teacher_sum)


def feature_teacher(plan: Plan) -> Hostile:
    """All channels in one place or another, and below zero in the other one.

    Where channels are clamped, what is below zero is nothing; where a clamp is missing, it shows.
    """
    import torch

    places = 2 if plan.nonnegative and plan.positions > 1 else 1
    answers = torch.zeros(2, plan.channels, places, dtype=torch.float64)
    answers[0, :, 0] = _HUGE
    answers[1, :, 0] = -_HUGE
    if places == 2:
        answers[:, :, 1] = -answers[:, :, 0]
    return Hostile(answers, torch.ones(2, plan.channels, dtype=torch.float64))


def statistic_teacher(plan: Plan) -> Hostile:
    """All of a statistic's vector in one channel or another."""
    import torch

    answers = torch.zeros(2, plan.channels, dtype=torch.float64)
    answers[0, 0] = _HUGE
    if plan.channels > 1:
        answers[1, 1] = _HUGE
    # Energies are never below zero either, and a hostile site says what it likes.
    return Hostile(answers[..., None], answers - answers.flip(0))


def worlds(
    unit: Audited, teacher: Hostile, plan: Plan, pixels: list[bool], *, who: int = 0
) -> tuple[World, World]:
    """Two neighbours.

    Args:
        unit: what makes them neighbours.
        teacher: that all sites have; public.
        plan: of the release.
        pixels: the kind of each query image. For the unit `image`, all are one person's that are
            among the first m.
        who: number of the teacher that is turned, for the unit `patient`.
    """
    if unit not in AUDITED:
        raise InvalidValueError(
            f"unit = {unit!r} has no neighbours to try; choose one of {', '.join(AUDITED)}"
        )
    sites = tuple(
        Teacher(f"site-{number}", teacher, f"weights {number}")
        for number in range(plan.participants.teachers)
    )
    before = World(Ensemble(sites, "initialisation"), _queries(pixels))
    if unit == "patient":
        changed = replace(sites[who], tap=teacher.turn(), digest="other weights")
        sites = (*sites[:who], changed, *sites[who + 1 :])
        return before, World(Ensemble(sites, "initialisation"), before.queries)
    most = plan.participants.images_per_person
    other = [pixel ^ (row < most) for row, pixel in enumerate(pixels)]
    return before, World(before.ensemble, _queries(other))


def _queries(pixels: list[bool]) -> Queries:
    images = np.where(pixels, 255, 0).astype(np.uint8).reshape(-1, 1, 1, 1)
    ids = tuple(f"query-{number}" for number in range(len(pixels)))
    return Queries.of(Arrays(ids, images, np.zeros_like(images), "audit"))
