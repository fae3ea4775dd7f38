"""Networks that patients taught: cells of the adapters' tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from canal.adapters.adapter import Adapter
from canal.adapters.cohorts import LocalCohorts
from canal.adapters.patients import Patients
from canal.adapters.plan import DISTANCE, AdapterPlan, Allocation
from canal.adapters.rounds import Told
from canal.adapters.rounds import train as teach
from canal.adapters.shared import share
from canal.adapters.store import AdapterRelease
from canal.adapters.taught import load_taught
from canal.adapters.update import UpdateSettings
from canal.distill.run import train as train_student
from canal.experiments.cell import Cell, Places, Report
from canal.experiments.course import Course
from canal.experiments.stage import Stage
from canal.experiments.students import scored
from canal.models import checkpoint
from canal.release.calibration import finite_or_none


@dataclass(frozen=True)
class Lesson:
    """How patients are asked.

    Args:
        epsilon: of a patient who is added or removed; infinite for no noise.
        rounds: T.
        parts: of the network that are taught.
        rank: of products beside convolutions.
        directions: of a public basis.
        allocation: of the noise.
        update: from sums to steps.
        views: of an image in a round, each varied another way; 0 for the image as it is.
    """

    epsilon: float = 8.0
    rounds: int = 30
    parts: tuple[str, ...] = Adapter.parts
    rank: int = 0
    directions: int = 0
    allocation: Allocation = "flat"
    update: UpdateSettings = field(default_factory=UpdateSettings)
    views: int = 1

    def release(self, stage: Stage, folder: Path, report: Report) -> AdapterRelease:
        """Make it, with sites in this process; noise comes from the scene's seed, alike for all."""
        adapter = Adapter(self.parts, self.rank)
        private = math.isfinite(self.epsilon)
        allocation: Allocation = self.allocation if private else "none"
        shared = share(
            stage.init,
            stage.part("recipient"),
            adapter,
            allocation,
            update=self.update,
            directions=self.directions,
            views=self.views,
        )
        sites = [Patients(name, stage.part(name), views=self.views) for name in stage.sites]
        plan = AdapterPlan(
            self.epsilon if private else 1.0,
            sum(map(len, sites)),
            len(shared.coordinates),
            directions=self.directions,
            blocks=shared.start.public.blocks,
            sites=len(sites),
            rounds=self.rounds,
            allocation=allocation,
            adapter=adapter,
        )

        def tell(told: Told) -> None:
            report("rounds", told.number, told.rounds)

        return teach(
            folder,
            LocalCohorts(sites, shared.network, shared.coordinates, paired=True),
            shared.start,
            plan,
            seed=stage.scene.seed,
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
    """

    scene: Course
    lesson: Lesson
    tuned: int = 0

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scene.name}-taught-{self.lesson.epsilon:g}"

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Ask the patients, and measure on the test part."""
        stage = self.scene.on(places, report)
        folder = places.runs / self.slug
        release = self.lesson.release(stage, folder / "release", report)
        network, _ = load_taught(stage.init, release)
        if self.tuned:
            settings = replace(stage.training, steps=self.tuned)
            train_student(
                *(folder / "student", stage.init, stage.part("recipient"), settings),
                release=release,
                mode="adapters",
                report=stage.told("fine-tuning"),
            )
            network, _ = checkpoint.load(folder / "student")
        plan = release.plan
        promise = plan.calibrate(release.manifest.statistics["weights"]).guarantee
        return scored([network], stage.part("test")) | {
            "epsilon": {
                unit: finite_or_none(promise.epsilon(plan.delta, unit)) for unit in DISTANCE
            },
            "parameters": plan.parameters,
            "coordinates": plan.coordinates,
            "patients": plan.patients,
        }
