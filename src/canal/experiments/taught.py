"""Networks that patients taught: cells of the adapters' tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canal.experiments.cell import Cell, Places, Report
from canal.experiments.course import Course, CourseStage
from canal.experiments.stage import Stage, alone
from canal.experiments.students import scored
from canal.features.calibration import finite_or_none
from canal.gradients.adapter import Adapter
from canal.gradients.advice import Advice
from canal.gradients.cohorts import LocalCohorts
from canal.gradients.mechanism import Mechanism
from canal.gradients.patients import Patients
from canal.gradients.plan import DISTANCE, AdapterPlan, Allocation
from canal.gradients.rounds import Told
from canal.gradients.rounds import train as teach
from canal.gradients.shared import Shared, count_parameters, share
from canal.gradients.start import Start
from canal.gradients.store import AdapterRelease
from canal.gradients.taught import load_taught
from canal.gradients.update import UpdateSettings
from canal.learning import checkpoint
from canal.student import train as train_student

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Lesson:
    """How patients are asked.

    Args:
        epsilon: of a patient who is added or removed.
        rounds: T.
        parts: of the network that are taught.
        rank: of products beside convolutions.
        directions: of a public basis; None for as many as are advised.
        allocation: of the noise.
        update: from sums to steps; without a step, as is advised.
        quantile: of gradient norms on the recipient's images: the clip.
        views: of an image in a round, each varied another way; 0 for the image as it is.
        noise: False leaves it away, and nothing else changes.
        advice: on directions and step.
    """

    epsilon: float = 8.0
    rounds: int = AdapterPlan.rounds
    parts: tuple[str, ...] = Adapter.parts
    rank: int = 0
    directions: int | None = None
    allocation: Allocation = "flat"
    update: UpdateSettings = field(default_factory=UpdateSettings)
    quantile: float = 0.5
    views: int = 1
    noise: bool = True
    advice: Advice = field(default_factory=Advice)

    def release(self, stage: Stage, folder: Path, report: Report) -> AdapterRelease:
        """Make it, with sites in this process; noise comes from the scene's seed, alike for all."""
        sites = [Patients(name, stage.part(name), views=self.views) for name in stage.sites]
        prepared = self.prepare(stage, sum(map(len, sites)), len(sites))
        return prepared.teach(folder, sites, stage.scene.seed, report)

    def prepare(self, stage: Stage, patients: int, sites: int) -> Prepared:
        """Everything public, before any patient is asked.

        Args:
            stage: holds the initialisation and the recipient's images.
            patients: N, as it is stated.
            sites: how many.
        """
        adapter = Adapter(self.parts, self.rank)
        plan = AdapterPlan(
            self.epsilon,
            patients,
            count_parameters(stage.init, adapter),
            sites=sites,
            rounds=self.rounds,
            allocation=self.allocation,
            adapter=adapter,
        )
        advised = self.advice.directions(plan) if self.directions is None else self.directions
        shared = share(
            *(stage.init, stage.part("recipient"), adapter, self.allocation),
            update=self.update,
            directions=advised,
            quantile=self.quantile,
            views=self.views,
        )
        public = shared.start.public
        plan = public.fit(plan)
        mechanism = Mechanism.of(plan.calibrate(public.weights), public)
        start = replace(shared.start, update=self.advice.settle(self.update, mechanism))
        if not self.noise:
            plan = replace(plan, allocation="none")
        return Prepared(shared, start, plan)


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

    def teach(
        self, folder: Path, sites: Sequence[Patients], seed: int, report: Report
    ) -> AdapterRelease:
        """Make the release, with noise from a seed."""

        def tell(told: Told) -> None:
            report("rounds", told.number, told.rounds)

        return teach(
            folder,
            LocalCohorts(sites, self.shared.network, self.shared.coordinates, paired=True),
            self.start,
            self.plan,
            seed=seed,
            not_private=True,
            report=tell,
        )


@dataclass(frozen=True)
class TaughtCell(Cell):
    """A network that patients taught, as it is or fine-tuned on the recipient's images.

    Args:
        scene: data and initialisation.
        lesson: how patients were asked.
        tuned: steps on the recipient's own images afterwards.
        rate: of learning, in these steps.
    """

    scene: Course
    lesson: Lesson
    tuned: int = 0
    rate: float = 1e-4

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scene.name}-taught-{self.lesson.epsilon:g}"

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Ask the patients, and measure on the test part."""
        stage = self.scene.on(places, report)
        asked = places.runs / TaughtCell(self.scene, self.lesson).slug  # students share a lesson
        with alone(asked):
            release = self.lesson.release(stage, asked / "release", report)
        network = self.student(stage, release, places.runs / self.slug / "student")
        plan = release.plan
        promise = plan.calibrate(release.manifest.statistics["weights"]).guarantee
        return scored([network], stage.part("test")) | {
            "epsilon": {
                unit: finite_or_none(promise.epsilon(plan.delta, unit)) for unit in DISTANCE
            },
            "parameters": plan.parameters,
            "coordinates": plan.coordinates,
            "patients": plan.patients,
            "step": release.settings.step,
        }

    def student(self, stage: CourseStage, release: AdapterRelease, folder: Path) -> nn.Module:
        """The network that is measured."""
        if not self.tuned:
            return load_taught(stage.init, release)[0]
        settings = replace(stage.training, steps=self.tuned, learning_rate=self.rate)
        train_student(
            *(folder, stage.init, stage.part("recipient"), settings),
            release=release,
            mode="adapters",
            report=stage.told("fine-tuning"),
        )
        return checkpoint.load(folder)[0]


@dataclass(frozen=True)
class PupilCell(TaughtCell):
    """A student that learns from what the taught network says of the recipient's images.

    Args:
        queries: images more that nobody labelled; public, of the same invented hospital.
    """

    queries: int = 400

    def student(self, stage: CourseStage, release: AdapterRelease, folder: Path) -> nn.Module:
        """The network that is measured."""
        asked = stage.part("recipient")
        if self.queries:
            asked = asked.beside(stage.unlabelled(self.queries))
        train_student(
            *(folder, stage.init, asked, stage.training),
            release=release,
            mode="predictions",
            report=stage.told("student"),
        )
        return checkpoint.load(folder)[0]
