"""Rivals of adapters, at the same patient-level epsilon, data and split: cells of their tables.

Students of rivals have a control: a student of the initialisation, which pays nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from canal.experiments.cell import Cell, Places, Report
from canal.experiments.course import Course
from canal.experiments.stage import Stage
from canal.experiments.students import NetworksCell, scored
from canal.gradients.patients import Patients
from canal.learning import checkpoint
from canal.learning.distillation import mean_prediction
from canal.rivals import dpsgd, pupil, votes
from canal.rivals.dpsgd import PrivateSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.learning.training import Batch

# Between the seeds of sites: no two of them draw the same noise, in whatever scene.
_APART = 1000


@dataclass(frozen=True)
class PrivateCell(Cell):
    """Networks that DP-SGD trained.

    Args:
        scene: data and initialisation.
        settings: of each training.
    """

    kind: ClassVar[str]

    scene: Course
    settings: PrivateSettings

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scene.name}-{self.kind}-{self.settings.epsilon:g}"


@dataclass(frozen=True)
class UnionCell(PrivateCell):
    """One network, trained on the patients of all sites together."""

    kind = "union"

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Train, and measure on the test part."""
        stage = self.scene.on(places, report)
        network = _private(stage, stage.sites, self.settings, self.scene.seed, report)
        return scored([network], stage.part("test"))


@dataclass(frozen=True)
class PrivateTeachersCell(PrivateCell):
    """A network a site, each with noise of its own; their ensemble, and a student of it."""

    version = 2
    kind = "private-teachers"
    parts: ClassVar[tuple[str, ...]] = ("ensemble", "student")

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Train them all, and measure on the test part."""
        stage = self.scene.on(places, report)
        teachers = [
            _private(stage, (site,), self.settings, self.scene.seed + _APART * number, report)
            for number, site in enumerate(stage.sites, start=1)
        ]
        test = stage.part("test")
        student = pupil.train(
            *(places.runs / self.slug / "student", stage.init),
            *(stage.part("recipient"), stage.training),
            mean_prediction(teachers),
            {"teachers": asdict(self.settings)},
            report=stage.told("student"),
        )
        return {
            "teachers": [scored([each], test) for each in teachers],
            "ensemble": scored(teachers, test),
            "student": scored([student], test),
        }


@dataclass(frozen=True)
class VotesCell(Cell):
    """A student of noisy votes of teachers that are not private themselves.

    Args:
        scene: data and teachers.
        epsilon: of a patient.
        delta: of the same.
    """

    scene: Course
    epsilon: float
    delta: float = 1e-5

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scene.name}-votes-{self.epsilon:g}"

    @property
    def after(self) -> tuple[Cell, ...]:
        """The teachers."""
        return (NetworksCell(self.scene),)

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Vote, train, and measure on the test part."""
        stage = self.scene.on(places, report)
        asked = stage.part("recipient")
        teachers = [each.tap.network for each in stage.ensemble.teachers]
        said = votes.majority(teachers, asked, self.epsilon, self.delta, seed=self.scene.seed)
        agree = (said.numpy() == asked.masks).mean()

        def say(batch: Batch) -> Tensor:
            return batch.turn(said[batch.rows])

        student = pupil.train(
            *(places.runs / self.slug / "student", stage.init, asked, stage.training),
            *(say, {"votes": [self.epsilon, self.delta, self.scene.seed]}),
            report=stage.told("student"),
        )
        return scored([student], stage.part("test")) | {
            "agreement": float(agree),
            "sigma": votes.spread(said.numel(), self.epsilon, self.delta),
        }


@dataclass(frozen=True)
class EchoCell(Cell):
    """A student of what the initialisation says: what distillation gives where nobody is asked."""

    scene: Course

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scene.name}-echo"

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Train, and measure on the test part."""
        stage = self.scene.on(places, report)
        said, start = checkpoint.load(stage.init)
        student = pupil.train(
            *(places.runs / self.slug / "student", stage.init),
            *(stage.part("recipient"), stage.training),
            *(mean_prediction([said]), {"networks": [start.initialisation]}),
            report=stage.told("student"),
        )
        return scored([student], stage.part("test"))


def _private(
    stage: Stage, sites: tuple[str, ...], settings: PrivateSettings, seed: int, report: Report
) -> nn.Module:
    """The initialisation, trained with DP-SGD on the patients of some sites."""
    return dpsgd.train(
        checkpoint.load(stage.init)[0],
        [Patients(name, stage.part(name)) for name in sites],
        settings,
        seed=seed,
        public=stage.part("recipient"),
        report=lambda done, total: report(f"DP-SGD at {' and '.join(sites)}", done, total),
    )
