r"""The feature mechanism: the mean of K clipped bottlenecks, noise added once (Alg. precompute).

$$\tilde z_i = \hat c \odot \tfrac1K\bigl(\textstyle\sum_k
    \mathrm{norm}(\phi_k(x_i)) + \eta_i\bigr), \qquad \eta_{i,c} \sim
    \mathcal N(0, (K\sigma_c)^2)$$
All of it in integers: what each teacher gives is on the lattice, the sum and the noise too. Only
published channels are touched: those of the top M whose noise is finite. Caps and importance that
are read from the teachers are preliminaries; every sigma of the features follows from them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from canal.data import overlap
from canal.errors import LedgerError, ReleaseError
from canal.features.calibration import CalibratedPlan, feature_lattice
from canal.features.clipping import Clipped, clip
from canal.features.plan import Plan, check_plan
from canal.features.queries import BATCH
from canal.features.statistics import NAMES, Name, Statistics, Sum, refuse_broken, sum_up
from canal.privacy.lattice import TAIL_SIGMAS, Lattice, fitting_shift
from canal.release.charges import QUERIES
from canal.release.mechanism import (
    Integers,
    Mechanism,
    Noise,
    Published,
    ReleaseSpec,
    Step,
    Sums,
)
from canal.release.noisy_sum import NoisySum
from canal.release.shard import ROWS

if TYPE_CHECKING:
    from torch import Tensor

    from canal.features.ensemble import Teacher
    from canal.features.queries import Queries
    from canal.learning.networks import Tap
    from canal.privacy.ledger import Ledger
    from canal.privacy.randomness import Stream

FEATURES = "features"
STATISTICS = "statistics"
# Queries a step, and a message where sites are apart: some batches, and a part of a shard.
BLOCK = 4 * BATCH


@dataclass(frozen=True, eq=False)
class TeacherSum:
    """Everything that turns teachers' features into what is published; all of it public.

    Args:
        calibrated: the plan with its sigmas.
        channels: indices of the published channels.
        caps: of those.
        sigma: of their mean over teachers, as it is accounted for.
        lattice: of every contribution and of the noise.
        shift: halvings that make each channel fit 16 bits, once it is noisy.
    """

    calibrated: CalibratedPlan
    channels: NDArray[np.int64]
    caps: NDArray[np.float64]
    sigma: NDArray[np.float64]
    lattice: Lattice
    shift: NDArray[np.int64]

    @classmethod
    def of(cls, calibrated: CalibratedPlan, statistics: Statistics) -> TeacherSum:
        """The sum of a calibrated plan and its caps."""
        channels = np.array(calibrated.published, dtype=np.int64)
        teachers = calibrated.plan.participants.teachers
        sigma = calibrated.published_sigma
        lattice = feature_lattice(calibrated.plan)
        largest = teachers * (1 + TAIL_SIGMAS * sigma * calibrated.plan.excess) / lattice.step
        return cls(
            calibrated,
            channels,
            statistics.caps.estimate()[channels],
            sigma,
            lattice,
            fitting_shift(largest),
        )

    @property
    def teachers(self) -> int:
        """K, whatever became of a teacher: the divisor stays."""
        return self.calibrated.plan.participants.teachers

    @property
    def noise(self) -> NDArray[np.float64]:
        """The sigma that readers find in a release: with the shares of those who may tell."""
        return self.sigma * self.calibrated.plan.excess

    @property
    def scale(self) -> NDArray[np.float64]:
        """What one stored unit of each channel is worth as a feature."""
        return np.ldexp(self.lattice.step * self.caps / self.teachers, self.shift)

    def to_json(self) -> dict[str, Any]:
        """The numbers that readers need."""
        kept = dict(zip(self.calibrated.ranking, self.calibrated.scores, strict=True))
        return {
            "channels": self.channels.tolist(),
            "weights": [kept[channel] for channel in self.channels.tolist()],
            "caps": self.caps.tolist(),
            "sigma": self.noise.tolist(),
            "step": self.lattice.step,
            "shift": self.shift.tolist(),
            "scale": self.scale.tolist(),
        }

    def contribution(self, features: Tensor) -> Clipped:
        """What one teacher adds, `[B, M, *grid]`; this is computed at the site.

        Args:
            features: `[B, C, *grid]` at the tap; private.
        """
        chosen = features[:, self.channels.tolist()].double().cpu().numpy()
        nonnegative = self.calibrated.plan.nonnegative
        return clip(chosen, self.caps, self.lattice, nonnegative=nonnegative)

    @cached_property
    def noisy_sum(self) -> NoisySum:
        """The sum over teachers of one query, `[M, *grid]`."""
        plan = self.calibrated.plan
        return NoisySum(
            FEATURES,
            self.lattice,
            self.teachers * self.sigma,
            float(self.teachers),
            plan.shares,
            plan.colluding,
            self.shift,
            "int16",
        )


@dataclass(frozen=True)
class FeatureSpec(ReleaseSpec):
    """Everything about a feature release that is public before it is made.

    Args:
        plan: what is asked for.
        cohorts: of the sites, in the order of the release.
        initialisation: digest of the weights that all teachers started from.
        layer: that is tapped.
        queries: ids and contents (SHA-256) of all queries, in order.
        noise: `secret`, or the seed of a research run.
    """

    kind: ClassVar[str] = FEATURES
    plan: Plan
    cohorts: tuple[str, ...]
    initialisation: str
    layer: str
    queries: tuple[tuple[str, str], ...]
    noise: str

    def check(self) -> None:
        """Refuse a plan that a site answers to nobody."""
        check_plan(self.plan, self.cohorts)
        if self.plan.unit == "image":
            raise ReleaseError(
                "sites answer for their patients; take a plan of the unit patient, or the paper's"
            )
        if len(self.queries) != self.plan.participants.queries:
            raise ReleaseError(
                f"{len(self.queries)} queries are named, {self.plan.participants.queries} paid for"
            )

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "plan": self.plan.to_json(),
            "cohorts": list(self.cohorts),
            "initialisation": self.initialisation,
            "layer": self.layer,
            "queries": dict(self.queries),
            "noise": self.noise,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FeatureSpec:
        """The reverse of `to_json`."""
        return cls(
            Plan.from_json(values["plan"]),
            tuple(str(name) for name in values["cohorts"]),
            str(values["initialisation"]),
            str(values["layer"]),
            tuple((str(name), str(content)) for name, content in values["queries"].items()),
            str(values["noise"]),
        )


def _ignore(*_: Any) -> None:
    """Tell nobody."""


@dataclass(frozen=True, eq=False)
class FeatureMechanism(Mechanism):
    """Features of the teachers for all queries, and before them caps and importance.

    Args:
        spec: of the release.
        queries: the recipient's images.
        shared: the initialisation, where public statistics are to be read from it.
        on_broken: told cohort and query where a teacher gives NaN or infinity and adds zero; for
            the site's own eyes.
        progress: called with the number of images that passed through a network.
        fixed: the sum to take, whatever was published: what an audit looks at.
    """

    spec: FeatureSpec
    queries: Queries
    shared: Tap | None = None
    on_broken: Callable[[str, str], None] = _ignore
    progress: Callable[[int], None] = _ignore
    fixed: TeacherSum | None = None
    _found: list[tuple[dict[str, Any], TeacherSum]] = field(default_factory=list, repr=False)

    kind: ClassVar[str] = FEATURES
    tensor: ClassVar[str] = FEATURES
    holders: ClassVar[str] = "teachers"
    note: ClassVar[str] = "release"

    @property
    def plan(self) -> Plan:
        """What was asked for."""
        return self.spec.plan

    @cached_property
    def calibrated(self) -> CalibratedPlan:
        """The plan with all that is fixed before the statistics are known."""
        return self.plan.calibrate()

    def settled(self, published: Published) -> CalibratedPlan:
        """The plan with the noise that follows from the statistics."""
        return self.teacher_sum(published).calibrated

    @property
    def private_statistics(self) -> list[Name]:
        """Those that are read from the teachers."""
        return [name for name in NAMES if self.plan.sources[name] == "private"]

    def teacher_sum(self, published: Published) -> TeacherSum:
        """What follows from the plan and the published statistics."""
        if self.fixed is not None:
            return self.fixed
        if not self._found or self._found[0][0] != published.statistics:
            statistics = Statistics.from_json(published.statistics)
            calibrated = self.plan.calibrate(statistics.weights(self.plan))
            self._found[:] = [(published.statistics, TeacherSum.of(calibrated, statistics))]
        return self._found[0][1]

    def check_ledger(self, ledger: Ledger) -> None:
        """Refuse a plan that gives the query images up, where they have a budget."""
        have = {(row.cohort, row.unit) for row in ledger.rows() if row.action == "budget"}
        if (QUERIES, "image") in have and math.isinf(self.calibrated.guarantee.rho("image")):
            raise LedgerError(
                f"cohort {QUERIES!r} has a budget of unit image, but this plan publishes what is "
                "read from the query images in the clear; take private caps and importance, and an "
                "initialisation that was not trained on the queries"
            )

    @property
    def public_contents(self) -> Sequence[str]:
        """Content digests of the queries."""
        return overlap.digests(self.queries.arrays)

    @property
    def stated(self) -> dict[str, Any]:
        """Every number that the plan fixes."""
        return self.calibrated.to_json()

    @property
    def inputs(self) -> Sequence[Mapping[str, NDArray[Any]]]:
        """The queries."""
        from canal.features.site import inputs

        return inputs(self.queries)

    @property
    def announces(self) -> bool:
        """Features come after caps and importance, wherever those come from."""
        return True

    def check_statistics(self, statistics: Any) -> None:
        """Refuse caps and importance that the plan could not have published."""
        try:
            found = Statistics.from_json(statistics)
            found.check(self.calibrated)
        except (LookupError, TypeError, ValueError) as error:
            raise ReleaseError(f"these are no statistics: {error!r}") from error
        if found.to_json() != statistics:
            raise ReleaseError("there is more beside caps and importance")

    def shapes(self, step: Step, published: Published) -> dict[str, tuple[int, ...]]:
        """Vectors over channels; or the published channels of every query."""
        if step.name == STATISTICS:
            return dict.fromkeys(self.private_statistics, (1, self.plan.channels))
        channels = len(self.teacher_sum(published).channels)
        return {FEATURES: (step.stop - step.start, channels, *self.plan.grid)}

    def preliminaries(self) -> tuple[Step, ...]:
        """One pass over all queries, if a statistic is read from the teachers."""
        return (Step(STATISTICS),) if self.private_statistics else ()

    def settle(self, sums: Mapping[str, Integers]) -> dict[str, Any]:
        """Caps and importance as they are published; public ones are read from the initialisation.

        Args:
            sums: of those that are private, with their noise.
        """
        made = {}
        for name in self.private_statistics:
            total = Sum(self.calibrated, name)
            total.total = sums[name][0]
            made[name] = total.published("private")
        public = [name for name in NAMES if name not in made]
        if public:
            if self.shared is None:
                raise ReleaseError(
                    "public caps and importance are read from the shared initialisation; give it "
                    "with --init, or take them from private data"
                )
            networks = [("initialisation", self.shared)]
            how: dict[str, Any] = {"check": refuse_broken, "progress": self.progress}
            for total in sum_up(self.calibrated, public, self.queries, networks, **how):
                made[total.name] = total.published("public")
        return Statistics(made["caps"], made["importance"]).to_json()

    def shards(self) -> list[tuple[Step, ...]]:
        """Blocks of queries, in files of so many rows."""
        count, size = len(self.queries.ids), min(BLOCK, ROWS)
        blocks = [
            Step(FEATURES, number, start, min(start + size, count))
            for number, start in enumerate(range(0, count, size))
        ]
        each = ROWS // size
        return [tuple(blocks[first : first + each]) for first in range(0, len(blocks), each)]

    def noisy_sum(self, step: Step, name: str, published: Published) -> NoisySum:
        """Of a statistic, `[C]`, or of the features of one query, `[M, *grid]`."""
        if step.name == STATISTICS:
            return Sum(self.calibrated, _statistic(name)).noisy_sum
        return self.teacher_sum(published).noisy_sum

    def streams(self, noise: Noise, step: Step, name: str, published: Published) -> list[Stream]:
        """Of a statistic, or of every query, known by its id and its content.

        By both: two queries of the same content have noise of their own.
        """
        if step.name == STATISTICS:
            return [noise.of_statistic(name)]
        noise = noise.after(hashlib.sha256(json.dumps(published.statistics).encode()).digest())
        return [
            noise.stream(
                b"features",
                self.queries.ids[row].encode(errors="surrogatepass"),
                bytes.fromhex(self.queries.contents[row]),
            )
            for row in range(step.start, step.stop)
        ]

    def passed(self, step: Step) -> None:
        """Count its queries as passed through all networks."""
        count = len(self.queries.ids) if step.name == STATISTICS else step.stop - step.start
        self.progress(count * len(self.spec.cohorts))

    def contribute(self, step: Step, site: Teacher, published: Published) -> Sums:
        """What one teacher adds: its part of the statistics, or its features of some queries."""
        if step.name == STATISTICS:
            found = sum_up(
                *(self.calibrated, self.private_statistics, self.queries),
                [(site.cohort, site.tap)],
                check=self._broken,
                progress=self.progress,
            )
            return {each.name: each.total[None] for each in found}
        teacher_sum, parts = self.teacher_sum(published), []
        for batch in self.queries.batches(step.start, step.stop):
            clipped = teacher_sum.contribution(site.tap.features(batch.images))
            for row in np.flatnonzero(clipped.broken).tolist():
                self._broken(site.cohort, self.queries.ids[batch.start + row])
            parts.append(clipped.integers)
            self.progress(len(batch.images))
        return {FEATURES: np.concatenate(parts)}

    def _broken(self, cohort: str, query: str) -> None:
        """A network gave NaN or infinity; what it adds is zero, unless all agreed to give up."""
        if self.plan.broken == "refuse":
            raise ReleaseError(
                f"the teacher of {cohort!r} returns NaN or infinity for query {query!r}, and this "
                "plan gives the release up then (broken = refuse); make another one, charged anew, "
                "with --broken-teacher zero or with another teacher"
            )
        self.on_broken(cohort, query)

    def numbers(self, published: Published) -> dict[str, Any]:
        """Channels, caps, sigmas and scales."""
        return self.teacher_sum(published).to_json()

    @property
    def participants(self) -> dict[str, Any]:
        """Cohorts, the initialisation of their teachers, and the layer that is tapped."""
        return {
            "cohorts": list(self.spec.cohorts),
            "initialisation": self.spec.initialisation,
            "tap": self.spec.layer,
        }

    @property
    def row_names(self) -> Sequence[str]:
        """Ids of the queries."""
        return self.queries.ids


def _statistic(name: str) -> Name:
    for known in NAMES:
        if name == known:
            return known
    raise ReleaseError(f"{name!r} is no statistic of a feature release")
