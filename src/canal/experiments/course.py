"""A course: the scene in which patients teach the shared network, and what it is compared with.

The shared initialisation is trained longer than in the paper's tables, and on images that are bent
another way each time, then for a while on images that are not: it is what everybody starts from, it
costs no privacy, and the recipient alone has it too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canal.data.load import load
from canal.data.patients import joined
from canal.experiments.cell import Cell, Places, Report
from canal.experiments.stage import Scene, Stage, alone
from canal.experiments.students import people_of, scored
from canal.learning import checkpoint
from canal.learning.runs import RunFolder, provenance
from canal.learning.settings import TrainingSettings
from canal.learning.teacher import go_on
from canal.plain import later

if TYPE_CHECKING:
    from canal.data.arrays import Arrays

# Invented hospitals, on which every choice is made.
INVENTED = ("dermoscopy", "endoscopy", "ultrasound")
# Seeds of people who are in no scene begin here.
_OTHERS = 1000
# Of the learning rate, while an initialisation settles.
_SLOWER = 0.25


@dataclass(frozen=True)
class Course(Scene):
    """A scene whose initialisation is trained longer.

    Args:
        start: steps of the initialisation.
        invented: images of an invented hospital, whose name is the data set's; 0 for a real one.
        deform: strength of the deformation of the images that the initialisation is trained on.
        settle: steps after these, slower, on images that are only flipped and turned.
        unlabelled: images more that the initialisation labels itself, to be trained on them again
            for half as long, before it settles; of invented hospitals only.
        people: whether images of a cohort that are nearly the same are one patient's: real data
            sets do not say whom an image shows.
    """

    start: int = 1800
    invented: int = 0
    deform: float = field(default=0.0, metadata=later())
    settle: int = field(default=0, metadata=later())
    unlabelled: int = field(default=0, metadata=later())
    people: bool = field(default=False, metadata=later())

    def on(self, places: Places, report: Report) -> CourseStage:
        """The scene on disk."""
        return CourseStage(self, places, report)


class CourseStage(Stage):
    """A course on disk; invented images are drawn when they are first asked for."""

    scene: Course

    @property
    def source(self) -> Path:
        """Folder of the data set."""
        if not self.scene.invented:
            return super().source
        return self._invented(self.scene.invented, self.scene.seed)

    def _invented(self, count: int, seed: int) -> Path:
        from canal.data.synthetic import write

        size = self.scene.size
        root = self.places.runs / f"invented-{count}-{size}-{seed}"
        with alone(root):
            if not (root / "metadata.csv").is_file():
                # That file is the last. One image a patient, as the real data sets have them.
                write(root, count * len(INVENTED), size=(size, size), most_views=1, seed=seed)
        return root / self.scene.data_set

    def unlabelled(self, count: int) -> Arrays:
        """More images of the same invented hospital, of people of their own; public."""
        folder = self._invented(count, self.scene.seed + _OTHERS)
        return load(folder, size=self.scene.size).without_labels()

    @cached_property
    def init(self) -> Path:
        """Folder of the initialisation, trained on the recipient's images."""
        scene, place = self.scene, self.folder / "init"
        if scene.people:  # patients have no part in it
            return self._init_of(replace(scene, people=False))
        if scene.settle:
            before, told = self._init_of(replace(scene, settle=0)), self.told("settling")
            with alone(place):
                go_on(place, before, self.part("recipient"), self.settling, report=told)
            return place
        if scene.unlabelled:
            before = self._init_of(replace(scene, unlabelled=0))
            with alone(place):
                go_on(
                    place,
                    before,
                    self.part("recipient"),
                    replace(self.beginning, steps=scene.start // 2),
                    unlabelled=self.unlabelled(scene.unlabelled),
                    report=self.told("with labels of its own"),
                )
            return place
        return super().init

    def _init_of(self, scene: Course) -> Path:
        return scene.on(self.places, self.report).init

    def _load(self, name: str) -> Arrays:
        found = super()._load(name)
        if not self.scene.people or name not in self.sites:
            return found
        return replace(found, patients=dict(zip(found.ids, joined(found), strict=True)))

    @property
    def beginning(self) -> TrainingSettings:
        """Of the initialisation."""
        return replace(self.training, steps=self.scene.start, deform=self.scene.deform)

    @property
    def settling(self) -> TrainingSettings:
        """Of the steps after these."""
        slower = _SLOWER * self.training.learning_rate
        return replace(self.training, steps=self.scene.settle, learning_rate=slower)


@dataclass(frozen=True)
class StartCell(Cell):
    """The shared initialisation, measured; and who is tested, taught and asked."""

    scene: Course

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scene.name}-start"

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Train, and measure on the test part."""
        stage = self.scene.on(places, report)
        parts = ("test", "recipient", *stage.sites)
        return scored([checkpoint.load(stage.init)[0]], stage.part("test")) | {
            "split": stage.split.digest,
            "sizes": {name: len(stage.part(name).ids) for name in parts},
            "people": people_of(stage.part("test")),
        }


@dataclass(frozen=True)
class PooledCell(Cell):
    """The initialisation, trained once more as it was, but on everybody's images; not private."""

    scene: Course

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scene.name}-pooled-at-length"

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Train, and measure on the test part."""
        stage = self.scene.on(places, report)
        everybody, (network, start) = stage.part("pooled"), checkpoint.load(stage.init)
        for name, settings in (("bent", stage.beginning), ("settled", stage.settling)):
            run = RunFolder(places.runs / self.slug / name)
            with run.claim({"init": start.initialisation, **provenance(everybody, settings)}):
                run.train(network, everybody, settings, stage.told(f"pooled, {name}"))
        return scored([network.eval()], stage.part("test"))
