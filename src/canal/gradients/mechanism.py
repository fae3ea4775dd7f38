r"""The gradient mechanism: clipped per-patient gradients summed as integers, noise once a round.

$$\tilde s_t = \sum_{\text{patients}} \mathrm{clip}(g_p) + \eta_t, \qquad
\eta_{t,b} \sim \mathcal N(0, \sigma_b^2),$$
in units of the bounds, on a lattice. The direction that readers take from it is
$(C_b/C)\,\tilde s_t / (a N)$: scaled back, a step of gradient descent in units of the clip. The
network of a round follows from the sums of all earlier rounds. The number of patients N is public,
or a noisy count that comes before the rounds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError, ReleaseError
from canal.gradients.clip import Clip
from canal.gradients.gradients import Gradients
from canal.gradients.patients import check_views
from canal.gradients.plan import ADAPTERS, TENSOR, AdapterPlan, CalibratedAdapterPlan
from canal.gradients.public import Public
from canal.gradients.subspace import Basis, write_basis
from canal.gradients.update import Trajectory, UpdateSettings
from canal.privacy.lattice import Lattice
from canal.privacy.shares import check_share
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
from canal.release.plan import check_cohorts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.gradients.patients import Patients
    from canal.gradients.start import Measured
    from canal.gradients.target_modules import Coordinates
    from canal.privacy.randomness import Stream

COUNT = "count"
# Patients are counted in small parts of one, so that shares of the noise are many of them wide.
COUNT_STEP = 2.0**-10


@dataclass(frozen=True, eq=False)
class PatientSum:
    """Everything that turns gradients into what is published; all of it public.

    Args:
        calibrated: the plan with its sigmas.
        clip: bounds every patient.
        basis: in which gradients are taken; None for the parameters as they are.
    """

    calibrated: CalibratedAdapterPlan
    clip: Clip
    basis: Basis | None = None

    @classmethod
    def of(cls, calibrated: CalibratedAdapterPlan, public: Public) -> PatientSum:
        """The sum of a calibrated plan and what was measured on public images.

        Raises:
            InvalidValueError: they do not fit, or shares of the noise would be too narrow.
        """
        made = cls(calibrated, public.clip(calibrated.plan), public.basis)
        if calibrated.plan.trust == "secure-sum":
            check_share(made.noisy_sum.share_steps)
            if calibrated.plan.count:
                check_share(made.noisy_count.share_steps)
        return made

    @property
    def sigma(self) -> NDArray[np.float64]:
        """Of every coordinate of a sum, in units of its bound, as it is accounted for."""
        return self.calibrated.sigma[self.clip.blocks]

    @property
    def noise_length(self) -> float:
        """How long the noise is on the mean of all rounds; unanimous patients are one long."""
        plan = self.calibrated.plan
        units = self.sigma * plan.excess * self.clip.direction
        if self.basis is not None:
            units = units * self.basis.scale.double().numpy()
        length = float(np.linalg.norm(units))
        return length / (plan.patients * math.sqrt(plan.rounds))

    def to_json(self) -> dict[str, Any]:
        """The numbers that readers need."""
        return self.numbers(self.calibrated, self.clip.bounds)

    @staticmethod
    def numbers(calibrated: CalibratedAdapterPlan, bounds: NDArray[np.float64]) -> dict[str, Any]:
        """What readers need to know, from the plan and the bounds of its blocks."""
        if len(bounds) != calibrated.plan.blocks:
            raise InvalidValueError(f"give a bound for each of the {calibrated.plan.blocks} blocks")
        excess = calibrated.plan.excess
        return {
            "sigma": (calibrated.sigma * excess).tolist(),
            "bounds": bounds.tolist(),
            "step": calibrated.lattice.step,
            "count_sigma": calibrated.count_sigma * excess,
        }

    @cached_property
    def noisy_sum(self) -> NoisySum:
        """The sum of one round over all sites, `[d]`."""
        plan = self.calibrated.plan
        bound = float(plan.patients * plan.sites)
        return NoisySum(
            *(TENSOR, self.calibrated.lattice, self.sigma, bound),
            *(plan.shares, plan.colluding),
        )

    @cached_property
    def noisy_count(self) -> NoisySum:
        """The number of all patients, in parts of one."""
        plan, std = self.calibrated.plan, np.array(self.calibrated.count_sigma)
        bound = float(plan.patients * plan.sites)
        return NoisySum(COUNT, Lattice(COUNT_STEP), std, bound, plan.shares, plan.colluding)

    def count(self, patients: int) -> int:
        """How many patients a site has, in parts of one; private."""
        return round(patients / COUNT_STEP)

    def bounded(self, total: ArrayLike) -> NDArray[np.int64]:
        """A site's sum as if it had no more patients than the plan says; never further apart."""
        most = round(self.calibrated.plan.patients / self.calibrated.lattice.step)
        return np.clip(np.asarray(total, dtype=np.int64), -most, most)

    def direction(self, stored: ArrayLike, patients: float) -> Tensor:
        """Where a published sum points, `[d]`: of length one at most, if all agree and a = 1.

        Args:
            stored: of a round.
            patients: N, as it is known in public.
        """
        import torch

        unit = self.clip.direction * (self.calibrated.lattice.step / patients)
        found = torch.from_numpy(np.asarray(stored, dtype=np.float64) * unit)
        return found if self.basis is None else self.basis.expand(found)


@dataclass(frozen=True)
class GradientSpec(ReleaseSpec):
    """Everything about a gradient release that is public before it is made.

    Args:
        plan: what is asked for.
        cohorts: of the sites, in the order of the release.
        initialisation: digest of the weights that the rounds start from.
        public: scales and bounds, as measured on the recipient's images.
        update: how the next network follows from a sum.
        views: of an image in a round, each varied another way; 0 for the image as it is.
        noise: `secret`, or the seed of a research run.
    """

    kind: ClassVar[str] = ADAPTERS
    plan: AdapterPlan
    cohorts: tuple[str, ...]
    initialisation: str
    public: dict[str, Any]
    update: UpdateSettings
    views: int
    noise: str

    def check(self) -> None:
        """Refuse other cohorts than the plan is for."""
        check_cohorts(self.cohorts, self.plan.sites)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "plan": self.plan.to_json(),
            "cohorts": list(self.cohorts),
            "initialisation": self.initialisation,
            "public": self.public,
            "update": self.update.to_json(),
            "views": self.views,
            "noise": self.noise,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> GradientSpec:
        """The reverse of `to_json`."""
        check_views(values["views"])
        return cls(
            AdapterPlan.from_json(values["plan"]),
            tuple(str(name) for name in values["cohorts"]),
            str(values["initialisation"]),
            dict(values["public"]),
            UpdateSettings.from_json(values["update"]),
            values["views"],
            str(values["noise"]),
        )


def stream_of_round(noise: Noise, number: int, published: bytes) -> Stream:
    """The stream of one round, known by all that was published before it.

    Args:
        noise: of whoever adds it.
        number: of the round.
        published: digest of the sums of all rounds before.
    """
    return noise.stream(b"round", number.to_bytes(8), b"" if noise.paired else published)


class History:
    """A digest of all that was published so far, to which later noise is bound."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def note(self, stored: Integers) -> None:
        """Add the sum of one more round."""
        self._digest.update(hashlib.sha256(np.ascontiguousarray(stored).tobytes()).digest())

    @property
    def published(self) -> bytes:
        """Digest of the sums of all rounds so far."""
        return self._digest.digest()


class Walk(History):
    """Where the rounds have led so far.

    Args:
        trajectory: at its start.
        patients: N, as it is known in public.
    """

    def __init__(self, trajectory: Trajectory, patients: float) -> None:
        super().__init__()
        self.trajectory, self.patients = trajectory, patients

    def follow(self, patient_sum: PatientSum, stored: Integers) -> None:
        """Take the step of one more round."""
        self.note(stored)
        self.trajectory.move(patient_sum.direction(stored, self.patients))


@dataclass(frozen=True, eq=False)
class GradientMechanism(Mechanism):
    """A noisy count of the patients, if their number is not public, and T rounds of gradients.

    Args:
        spec: of the release.
        patient_sum: how patients are clipped, and the noise.
        network: the shared initialisation with the trained parameters installed; its values are
            those of a round while that is computed.
        coordinates: of these parameters.
        values: of these parameters where the rounds begin, `[d]`.
        measured: what the public numbers were measured with, where that is known.
        contents: content digests of the images that they were measured on.
        progress: called with the number of images that passed through the network.
    """

    spec: GradientSpec
    patient_sum: PatientSum
    network: nn.Module
    coordinates: Coordinates
    values: Tensor
    measured: Measured | None = None
    contents: Sequence[str] = ()
    progress: Callable[[int], None] = lambda count: None
    _walks: list[tuple[Published, int, Walk]] = field(default_factory=list, repr=False)

    kind: ClassVar[str] = ADAPTERS
    tensor: ClassVar[str] = TENSOR
    holders: ClassVar[str] = "patients"
    note: ClassVar[str] = "adapters"
    adaptive: ClassVar[bool] = True
    untold: ClassVar[frozenset[str]] = frozenset({"measured"})

    @property
    def plan(self) -> AdapterPlan:
        """What was asked for."""
        return self.spec.plan

    @cached_property
    def gradients(self) -> Gradients:
        """Per-image gradients of the network, in the basis or as they are."""
        return Gradients(self.network, self.coordinates.names, basis=self.patient_sum.basis)

    def patients(self, published: Published) -> float:
        """N: as it was stated, or counted with noise; at least one."""
        if not self.plan.count:
            return float(self.plan.patients)
        return max(1.0, int(published.statistics["patients"]) * COUNT_STEP)

    def walk(self, published: Published) -> Walk:
        """Where the rounds that were published lead; each step is taken once."""
        known, done, walk = self._walks[0] if self._walks else (None, 0, None)
        if walk is None or known is not published or done > len(published.sums):
            trajectory = Trajectory(self.values, self.spec.update, self.plan.rounds)
            walk, done = Walk(trajectory, self.patients(published)), 0
        for stored in published.sums[done:]:
            walk.follow(self.patient_sum, stored)
        self._walks[:] = [(published, len(published.sums), walk)]
        return walk

    def history(self, published: Published) -> History:
        """What was published in the rounds so far."""
        return self.walk(published)

    def at(self, published: Published) -> Gradients:
        """Per-image gradients of the network that the published rounds lead to."""
        self.coordinates.write(self.walk(published).trajectory.here.float())
        return self.gradients

    @property
    def calibrated(self) -> CalibratedAdapterPlan:
        """The plan with every sigma."""
        return self.patient_sum.calibrated

    @property
    def public_contents(self) -> Sequence[str]:
        """Content digests of the recipient's images."""
        return self.contents

    @property
    def stated(self) -> dict[str, Any]:
        """Every number that the plan fixes."""
        return self.patient_sum.to_json()

    @property
    def inputs(self) -> Sequence[Mapping[str, NDArray[Any]]]:
        """The public basis."""
        basis = self.patient_sum.basis
        return [] if basis is None else [basis.to_arrays()]

    def check_statistics(self, statistics: Any) -> None:
        """Refuse a number of patients that nobody counts, or that is none."""
        if not self.plan.count:
            raise ReleaseError("the number of patients was stated; nobody counts it")
        if not isinstance(statistics, dict) or statistics.keys() != {"patients"}:
            raise ReleaseError("the number of patients is all that is published before the rounds")
        if type(statistics["patients"]) is not int or abs(statistics["patients"]) >= 2**63:
            raise ReleaseError("the number of patients is a whole number of parts")

    def shapes(self, step: Step, published: Published) -> dict[str, tuple[int, ...]]:  # noqa: ARG002
        """One number; or the coordinates of a round."""
        if step.name == COUNT:
            return {COUNT: (1,)}
        return {TENSOR: (1, self.plan.coordinates)}

    def preliminaries(self) -> tuple[Step, ...]:
        """The count of the patients, if their number is not public."""
        return (Step(COUNT),) if self.plan.count else ()

    def settle(self, sums: Mapping[str, Integers]) -> dict[str, Any]:
        """The number of patients, in parts of one.

        Args:
            sums: with their noise.
        """
        return {"patients": int(sums[COUNT][0])} if self.plan.count else {}

    def shards(self) -> list[tuple[Step, ...]]:
        """A file for each round."""
        return [(Step(TENSOR, number, number, number + 1),) for number in range(self.plan.rounds)]

    def noisy_sum(self, step: Step, name: str, published: Published) -> NoisySum:  # noqa: ARG002
        """Of the count, or of a round."""
        summed = self.patient_sum
        return summed.noisy_count if step.name == COUNT else summed.noisy_sum

    def streams(self, noise: Noise, step: Step, name: str, published: Published) -> list[Stream]:
        """Of the count, or of a round, known by all that was published before it."""
        if step.name == COUNT:
            return [noise.of_statistic(name)]
        return [stream_of_round(noise, step.number, self.history(published).published)]

    def contribute(self, step: Step, site: Patients, published: Published) -> Sums:
        """How many patients a site has, or the sum of their clipped gradients."""
        summed = self.patient_sum
        if step.name == COUNT:
            return {COUNT: np.array([summed.count(len(site))])}
        gradients, lattice = self.at(published), summed.calibrated.lattice
        total = site.total(
            *(gradients, summed.clip, lattice, step.number),
            progress=self.progress,
        )
        return {TENSOR: summed.bounded(total.numpy())[None]}

    def statistics(self, published: Published) -> dict[str, Any]:
        """Public scales and bounds, the number of patients, how the next network follows."""
        found = {"patients": self.patients(published), "update": self.spec.update.to_json()}
        measured = {} if self.measured is None else {"measured": self.measured.to_json()}
        return self.spec.public | found | measured

    @property
    def participants(self) -> dict[str, Any]:
        """Cohorts, the initialisation that the rounds start from, and views of an image."""
        return {
            "cohorts": list(self.spec.cohorts),
            "initialisation": self.spec.initialisation,
            "views": self.spec.views,
        }

    @property
    def row_names(self) -> Sequence[str]:
        """Rounds by their number."""
        return [f"round {number}" for number in range(self.plan.rounds)]

    def write_more(self, folder: Path) -> None:
        """Write the basis beside the rounds."""
        if self.patient_sum.basis is not None:
            write_basis(folder, self.patient_sum.basis)
