r"""The worst case of a feature release: teachers and images that move it as far as it can be moved.

A worst-case teacher puts all of a channel's mass in one place, far beyond any cap; which place
depends on the one pixel of the image. A *turned* teacher answers the other way round. So the two
worlds are

- `patient`: one teacher is turned, on all queries (its cohort had, or had not, that patient);
- `image`: the images of one person are of the other kind, and pass through all teachers.

Clipped, two answers are 2 apart in every channel (plus one against minus one), or $\sqrt 2$ where
channels are clamped (one place against another). Vectors of a statistic differ likewise: all of
their length in one channel, or in another, $\sqrt 2\,B$ apart. One teacher can do all of it at
once (a channel of norm 1e30 among others of norm 1e20), so what the parts cost adds up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from canal.data.arrays import Arrays
from canal.features.ensemble import Teacher
from canal.features.mechanism import FEATURES, STATISTICS, FeatureMechanism, FeatureSpec, TeacherSum
from canal.features.queries import Queries
from canal.features.statistics import NAMES, Statistics, Sum
from canal.learning.networks import Tap
from canal.privacy.units import Unit
from canal.release.checks import Check
from canal.release.mechanism import Step
from canal.release.worst_case import Accounted, Neighbours, World, WorstCase

if TYPE_CHECKING:
    from torch import Tensor

    from canal.features.calibration import CalibratedPlan
    from canal.features.plan import Plan
    from canal.features.store import Release

_HUGE = 1e30
# Of so many teachers each is tried as the one that changes; of more, as many, evenly spaced.
_MOST_TRIED = 10
# Queries that have noise of their own, or do not: as many as are drawn with keys of their own.
QUERIES = 2048
# How often statistics that are right are found fault with.
_RARE = 1e-9


class ScriptedTap(Tap):
    """A network that nobody trained: two answers, and the image's first pixel says which.

    Args:
        features: `[2, C, places]`.
        energies: `[2, C]`.
        turned: the other answer.
    """

    def __init__(self, features: Tensor, energies: Tensor, *, turned: bool = False) -> None:
        self.layer = "scripted"
        self._features, self._energies, self._turned = features, energies, turned

    @property
    def places(self) -> int:
        """Positions of its features."""
        return int(self._features.shape[2])

    def features(self, images: Tensor) -> Tensor:
        """The answer to each image, `[B, C, places]`."""
        return self._features[self._which(images)]

    def features_and_energy(self, images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # noqa: ARG002
        """The answers with the energies, `[B, C]`; such a site makes up its loss, too."""
        which = self._which(images)
        return self._features[which], self._energies[which]

    def turn(self) -> ScriptedTap:
        """The network that answers the other way round."""
        return ScriptedTap(self._features, self._energies, turned=not self._turned)

    def _which(self, images: Tensor) -> Tensor:
        return ((images[:, 0].flatten(1)[:, 0] > 0) ^ self._turned).long()


def feature_tap(plan: Plan) -> ScriptedTap:
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
    return ScriptedTap(answers, torch.ones(2, plan.channels, dtype=torch.float64))


def statistic_tap(plan: Plan) -> ScriptedTap:
    """All of a statistic's vector in one channel or another."""
    import torch

    answers = torch.zeros(2, plan.channels, dtype=torch.float64)
    answers[0, 0] = _HUGE
    if plan.channels > 1:
        answers[1, 1] = _HUGE
    # Energies are never below zero either, and such a site says what it likes.
    return ScriptedTap(answers[..., None], answers - answers.flip(0))


@dataclass(frozen=True, eq=False)
class FeatureWorstCase(WorstCase):
    """Teachers who answer the other way round, and query images of the other kind.

    Args:
        teacher_sum: of the release.
        statistics: as they were published, to be looked at; None for nothing to see.
    """

    teacher_sum: TeacherSum
    statistics: Statistics | None = None

    steps: ClassVar[str] = "queries"
    sentences: ClassVar[Mapping[Unit, Sequence[str]]] = {
        "patient": (
            "very patient of the training cohorts .*?, with epsilon {} at delta",
            "The one to sign, or not to sign, is the patient's: {}",
        ),
        "image": ("Every query image, with all images of one person .*?, with epsilon {};",),
    }

    @property
    def calibrated(self) -> CalibratedPlan:  # type: ignore[override]
        """The plan with every sigma."""
        return self.teacher_sum.calibrated

    @property
    def plan(self) -> Plan:
        """What was asked for."""
        return self.calibrated.plan

    @cached_property
    def mechanism(self) -> FeatureMechanism:  # type: ignore[override]
        """For queries of the two kinds in turns."""
        kinds = [False, True] * (QUERIES // 2)
        return self._mechanism(feature_tap(self.plan), scripted_queries(kinds))

    @property
    def rows(self) -> int:
        """N."""
        return self.plan.participants.queries

    def rows_of(self, unit: Unit, rows: int) -> int:
        """A patient has a say on every query, a person on their own images."""
        most = self.plan.participants.images_per_person
        return rows if unit == "patient" else min(rows, most)

    def differ(self, unit: Unit) -> str:
        """See `WorstCase`."""
        if unit == "patient":
            return "A teacher changed by one patient"
        return "The query images of one person changed"

    @property
    def stated(self) -> dict[str, float]:
        """With what the paper's own accounting makes of it."""
        plan, guarantee = self.plan, self.calibrated.guarantee
        return super().stated | {"paper": guarantee.epsilon(plan.delta, "paper", plan.conversion)}

    def accounted(self, name: str) -> Accounted:
        """Of features, channel by channel, as means over teachers; of a statistic, as it is."""
        summed = self.teacher_sum
        if name == FEATURES:
            published = set(self.calibrated.published)
            kept = [rank for rank, c in enumerate(self.calibrated.ranking) if c in published]
            places = feature_tap(self.plan).places
            return Accounted(np.repeat(kept, places), summed.lattice.step / summed.teachers)
        total = Sum(self.calibrated, "caps" if name == "caps" else "importance")
        worth = total.lattice.step * total.bound / total.terms
        return Accounted(np.zeros(self.plan.channels, np.intp), worth)

    def neighbours(self, unit: Unit) -> Iterator[Neighbours]:
        """One of each kind of teacher at a time, and two queries, or all images of one person."""
        steps = [(feature_tap(self.plan), self.mechanism.queries, Step(FEATURES, 0, 0, 2))]
        if "private" in self.plan.sources.values():
            asked = scripted_queries([False] * self.plan.participants.queries)
            steps.append((statistic_tap(self.plan), asked, Step(STATISTICS)))
        for tap, queries, step in steps:
            teachers = scripted_teachers(tap, self.teacher_sum.teachers)
            before = World(self._mechanism(tap, queries), teachers)
            if unit == "image":
                most = self.plan.participants.images_per_person
                after = World(self._mechanism(tap, _other(queries, most)), teachers)
                yield Neighbours("the images of one person", before, after, (step,))
                continue
            for who in range(0, len(teachers), max(1, math.ceil(len(teachers) / _MOST_TRIED))):
                after = World(before.mechanism, turned(teachers, who))
                yield Neighbours(f"teacher {who}", before, after, (step,))

    def _mechanism(self, tap: ScriptedTap, queries: Queries) -> FeatureMechanism:
        cohorts = tuple(each.cohort for each in scripted_teachers(tap, self.teacher_sum.teachers))
        asked = tuple(zip(queries.ids, queries.contents, strict=True))
        spec = FeatureSpec(self.plan, cohorts, "initialisation", tap.layer, asked, "seed 0")
        return FeatureMechanism(spec, queries, fixed=self.teacher_sum)

    def checks(self) -> list[Check]:
        """See that the published statistics are on the lattice; features are stored as integers."""
        return [] if self.statistics is None else [on_lattice(self.statistics, self.calibrated)]


def worst_case(release: Release, calibrated: CalibratedPlan) -> FeatureWorstCase:
    """The worst case of a release."""
    statistics = Statistics.from_json(release.manifest.statistics)
    return FeatureWorstCase(TeacherSum.of(calibrated, statistics), statistics)


def on_lattice(statistics: Statistics, calibrated: CalibratedPlan) -> Check:
    """Look at statistics as they were published: whole lattice steps, and no less than noise."""
    from scipy.special import gammaincinv  # type: ignore[import-untyped]

    what = "published statistics"
    private = [name for name in NAMES if calibrated.plan.sources[name] == "private"]
    if not private:
        return Check(what, None, "caps and importance are public")
    for name in private:
        made = statistics.caps if name == "caps" else statistics.importance
        values, total = np.array(made.values), Sum(calibrated, name)
        steps = values / (total.lattice.step * total.bound / total.terms)
        # The published double is the nearest to its product; 32 bits of 53 are left for it.
        found = float((np.abs(steps - np.rint(steps)) > 1e-5).mean())
        if found:
            return Check(what, False, f"{found:.1%} of the published {name} are off the lattice")
        # Signal can only add to the sum of squares.
        least = 2 * float(gammaincinv(values.size / 2, _RARE))
        if made.sigma and np.square(values / made.sigma).sum() < least:
            return Check(what, False, f"{name} vary less than their noise alone would")
    return Check(what, True, "on the lattice, and vary as much as their noise")


def scripted_teachers(tap: ScriptedTap, count: int) -> list[Teacher]:
    """A teacher of every site; all of them answer alike."""
    return [Teacher(f"site-{number}", tap, f"weights {number}") for number in range(count)]


def turned(teachers: Sequence[Teacher], who: int) -> list[Teacher]:
    """The same teachers, but for one, who answers the other way round."""
    tap = cast("ScriptedTap", teachers[who].tap).turn()
    changed = replace(teachers[who], tap=tap, digest="other weights")
    return [*teachers[:who], changed, *teachers[who + 1 :]]


def scripted_queries(kinds: Sequence[bool]) -> Queries:
    """Images of one pixel, of either kind."""
    images = np.where(kinds, 255, 0).astype(np.uint8).reshape(-1, 1, 1, 1)
    ids = tuple(f"query-{number}" for number in range(len(kinds)))
    return Queries.of(Arrays(ids, images, np.zeros_like(images), "audit"))


def _other(queries: Queries, most: int) -> Queries:
    """The same queries, but for the first, which show one person and are of the other kind."""
    kinds = queries.arrays.images[:, 0, 0, 0] > 0
    return scripted_queries([bool(kind) ^ (row < most) for row, kind in enumerate(kinds)])
