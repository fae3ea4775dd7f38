r"""Arms of gradient releases: DP gradient rounds, and what is measured before the first of them.

*Agreement*: how much of what patients' gradients say they all say. Of gradients u of length one,
the mean has the squared length
$$\lVert \mathbb E\,u \rVert^2 \approx \frac{\lVert \sum u \rVert^2 - N}{N (N - 1)},$$
without what N strangers have in common by chance. It is what noise has to be held against.

*Noise harm*: noise of variance $\sigma_c^2$ on the parameters of channel c raises the loss by about
$\sum_c s_c \sigma_c^2$, with the curvature $s_c$ of the recipient's own loss. Were all gradients
of the energies $v_c$, both allocations over channels would leave, of the harm of flat noise at the
same price,
$$\frac{(\sum_c \sqrt{s_c v_c})^2}{\sum_c s_c \sum_c v_c} \le 1.$$
Clip norms are medians, which are not alike, so the noise that plans draw leaves something else.
Both are research alone: nothing here is private, or paid for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from canal import train_student
from canal.gradients.gradients import Gradients
from canal.gradients.mechanism import PatientSum
from canal.gradients.patients import Patients
from canal.gradients.plan import AdapterPlan, Allocation
from canal.gradients.public import Array, Public
from canal.gradients.release import train as release_rounds
from canal.gradients.start import Shared, Start, count_parameters, share
from canal.gradients.store import AdapterRelease, load_taught
from canal.gradients.target_modules import Adapter
from canal.gradients.update import Advice, UpdateSettings
from canal.learning import checkpoint
from canal.learning.teacher import load_initialisation
from paper.arms import scored
from paper.scenario import Report, Study, alone_in
from paper.trial import Arm, Trial

if TYPE_CHECKING:
    from torch import Tensor, nn

ALL = ("*",)
NORMS_AND_HEAD = ("norms", "head")
ALLOCATIONS: tuple[Allocation, ...] = ("flat", "ellipsoid", "channels")


@dataclass(frozen=True)
class Rounds:
    """Settings of the rounds.

    Args:
        epsilon: of a patient who is added or removed.
        rounds: T.
        target_modules: parameters that are trained.
        rank: of LoRA products beside convolutions.
        subspace_dim: of the public subspace; None for what is advised.
        subspace_factor: of the advised dimension.
        displacement_factor: of the advised distance that the network is moved.
        allocation: of the noise.
        step: of the server; None for what is advised.
        momentum: of the server.
        polyak_fraction: share of the rounds, the last ones, whose iterates are averaged.
        precondition_power: how much directions of large public gradients are scaled down.
        clip_quantile: of gradient norms on the recipient's images: the clip norm.
        augmult: augmentation multiplicity; 0 for images as they are.
        noise: False leaves it away, and nothing else changes.
    """

    epsilon: float = 8.0
    rounds: int = 20
    target_modules: tuple[str, ...] = ALL
    rank: int = 0
    subspace_dim: int | None = None
    subspace_factor: float = 1.0
    displacement_factor: float = 1.0
    allocation: Allocation = "flat"
    step: float | None = None
    momentum: float = 0.9
    polyak_fraction: float = 0.5
    precondition_power: float = 0.5
    clip_quantile: float = 0.5
    augmult: int = 1
    noise: bool = True

    def release(self, study: Study, folder: Path) -> AdapterRelease:
        """Make it with all sites in this process; noise comes from the scenario's seed."""
        sites = [Patients(site, study.part(site), views=self.augmult) for site in study.sites]
        prepared = self.prepare(study, sum(map(len, sites)), len(sites))
        return prepared.release(folder, sites, study.scenario.seed, study.report)

    def prepare(self, study: Study, patients: int, sites: int) -> Prepared:
        """Everything public, before any patient is asked.

        Args:
            study: holds the initialisation and the recipient's images.
            patients: N, as it is stated.
            sites: how many.
        """
        adapter, advice = Adapter(self.target_modules, self.rank), Advice()
        advice = replace(
            advice,
            heard=self.subspace_factor * advice.heard,
            way=self.displacement_factor * advice.way,
            furthest=self.displacement_factor * advice.furthest,
        )
        plan = AdapterPlan(
            self.epsilon,
            patients,
            count_parameters(study.init, adapter),
            sites=sites,
            rounds=self.rounds,
            allocation=self.allocation,
            adapter=adapter,
        )
        update = UpdateSettings(
            step=self.step,
            momentum=self.momentum,
            averaged=self.polyak_fraction,
            power=self.precondition_power,
        )
        dimension = advice.directions(plan) if self.subspace_dim is None else self.subspace_dim
        shared = share(
            *(study.init, study.part("recipient"), adapter, self.allocation),
            update=update,
            directions=dimension,
            quantile=self.clip_quantile,
            views=self.augmult,
        )
        public = shared.start.public
        plan = public.fit(plan)
        mechanism = PatientSum.of(plan.calibrate(public.weights), public)
        start = replace(shared.start, update=advice.settle(update, mechanism))
        return Prepared(shared, start, plan if self.noise else replace(plan, allocation="none"))


@dataclass(frozen=True)
class Prepared:
    """Rounds that can begin: all of it public.

    Args:
        shared: the network.
        start: where it begins.
        plan: what it costs.
    """

    shared: Shared
    start: Start
    plan: AdapterPlan

    def release(
        self, folder: Path, sites: Sequence[Patients], seed: int, report: Report
    ) -> AdapterRelease:
        """Make the release, with noise from a seed."""
        return release_rounds(
            folder,
            sites,
            replace(self.shared, start=self.start),
            self.plan,
            seed=seed,
            paired=True,
            not_private=True,
            report=lambda told: report("rounds", told.number, told.rounds),
        )


@dataclass(frozen=True)
class GradientRelease(Arm):
    """The network that rounds lead to: as it is, fine-tuned, or a student of it.

    Args:
        rounds: their settings.
        fine_tune: steps on the recipient's own images afterwards.
        unlabelled: images beside the recipient's on which a student learns what the network
            predicts; None for no student. They are of the same synthetic hospital, and public.
        rate: of learning, when it is fine-tuned.
    """

    kind: ClassVar[str] = "gradient-release"

    rounds: Rounds = Rounds()
    fine_tune: int = 0
    unlabelled: int | None = None
    rate: float = 1e-4

    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Release, and measure on the test part."""
        place = (
            Trial(study.scenario, GradientRelease(self.rounds)).folder(study.folders) / "release"
        )
        with alone_in(place):  # what comes after the rounds shares them
            made = place.is_dir()
            release = AdapterRelease.open(place) if made else self.rounds.release(study, place)
        plan = release.plan
        return scored([self._network(study, release, folder / "student")], study.part("test")) | {
            "parameters": plan.parameters,
            "coordinates": plan.coordinates,
            "patients": plan.patients,
            "step": release.settings.step,
        }

    def _network(self, study: Study, release: AdapterRelease, folder: Path) -> nn.Module:
        asked = study.part("recipient")
        if self.unlabelled is not None:
            if self.unlabelled:
                asked = asked.beside(study.unlabelled(self.unlabelled))
            train_student(
                *(folder, study.init, asked, study.training),
                release=release,
                mode="predictions",
                report=study.told("student"),
            )
        elif self.fine_tune:
            settings = replace(study.training, steps=self.fine_tune, learning_rate=self.rate)
            train_student(
                *(folder, study.init, asked, settings),
                release=release,
                mode="adapters",
                report=study.told("fine-tuning"),
            )
        else:
            return load_taught(study.init, release)[0]
        return checkpoint.load(folder)[0]


@dataclass(frozen=True)
class Agreement(Arm):
    """How much patients' gradients agree at the shared initialisation, before the first round."""

    kind: ClassVar[str] = "agreement"

    def run(self, study: Study, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        """One pass over all patients, and one over the recipient's images."""
        network, _ = load_initialisation(study.init)
        gradients = Gradients(network, Adapter().install(network).names)
        sites = [Patients(site, study.part(site)) for site in study.sites]
        common, theirs = agreement(rows for site in sites for rows in site.gradients(gradients, 0))
        _, own = agreement(Patients("recipient", study.part("recipient")).gradients(gradients, 0))
        return {"agreement": common, "patients": theirs, "recipient": own}


def agreement(gradients: Iterable[Tensor]) -> tuple[float, float]:
    """Length of the mean of unit gradients, without chance; and the median length of gradients.

    Args:
        gradients: one row a patient, in any number of parts.
    """
    import torch

    total: Any = 0
    lengths = []
    for rows in gradients:
        length = rows.norm(dim=1)
        total = total + (rows / length.clamp(min=1e-30)[:, None]).sum(0).double()
        lengths.append(length)
    every = torch.cat(lengths)
    count = int((every > 0).sum())
    squared = (float(total.square().sum()) - count) / max(1, count * (count - 1))
    return max(0.0, squared) ** 0.5, float(every.median())


@dataclass(frozen=True)
class NoiseHarm(Arm):
    """What allocation over channels leaves of the harm of noise, before any patient is asked.

    Args:
        target_modules: parameters that would be trained.
    """

    kind: ClassVar[str] = "noise-harm"

    target_modules: tuple[str, ...] = ALL

    def run(self, study: Study, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        """Measure on the recipient's images."""
        asked, adapter = study.part("recipient"), Adapter(self.target_modules)
        return harm_left(
            {each: share(study.init, asked, adapter, each).start.public for each in ALLOCATIONS}
        )


def harm_left(public: Mapping[Allocation, Public]) -> dict[str, float]:
    """The harm of noise allocated over channels, over that of flat noise; and what theory says.

    Args:
        public: what the recipient's images say, measured for each allocation.
    """
    channels, ellipsoid = public["channels"], public["ellipsoid"]
    curvature = channels.weights / channels.bounds**2
    energy = curvature / ellipsoid.scales**4  # but for a factor, which theory does not know
    flat = harm(public["flat"], "flat", curvature)
    return {
        "theory": harm_in_theory(curvature, energy),
        "ellipsoid": harm(ellipsoid, "ellipsoid", curvature) / flat,
        "channels": harm(channels, "channels", curvature) / flat,
    }


def harm(public: Public, allocation: Allocation, curvature: Array) -> float:
    """Of one round's noise; only comparable with others of the same parameters.

    Args:
        public: clip norms, scales and weights.
        allocation: of the noise.
        curvature: $s_c$ of every channel.
    """
    # Any epsilon and number of patients: they change the harm of all allocations alike.
    plan = public.fit(AdapterPlan(8.0, 100, len(public.channels), allocation=allocation))
    noise = plan.calibrate(public.weights).sigma * public.bounds / public.scales
    return float((curvature * noise**2).sum())


def harm_in_theory(curvature: Array, energy: Array) -> float:
    """What both allocations leave where every gradient has these energies.

    Args:
        curvature: $s_c$ of every channel.
        energy: $v_c$ of every channel.
    """
    return float(np.sqrt(curvature * energy).sum() ** 2 / (curvature.sum() * energy.sum()))
