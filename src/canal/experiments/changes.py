"""Changes to how patients are asked, one at a time: what the table of gains compares."""

from __future__ import annotations

from dataclasses import dataclass, replace

from canal.experiments.arms import FEW, TUNED
from canal.experiments.course import Course
from canal.experiments.taught import Lesson, PupilCell, TaughtCell

CHOSEN = "as chosen"


@dataclass(frozen=True)
class Change:
    """What is done otherwise.

    Args:
        lesson: fields of the lesson that are set.
        update: fields of its steps that are set.
        way: factor of how far the network goes.
        rounds: factor of T.
        directions: factor of k.
        start: factor of the steps of the initialisation.
        deform: factor of the deformation of its images.
        settle: factor of the steps in which it settles.
        unlabelled: images more that the initialisation labels itself, and learns from.
        tuned: steps on the recipient's own images afterwards.
        queries: unlabelled images on which a student learns what the taught network says, beside
            the recipient's own; None for no student.
        beside: label of the row that this one is held against.
        everywhere: tried at every invented hospital: where something follows from it, or more was
            to be known. Others are tried at the first two: at the third nothing is to be gained
            from patients, since pooled training is no better there than the initialisation.
    """

    lesson: tuple[tuple[str, object], ...] = ()
    update: tuple[tuple[str, object], ...] = ()
    way: float = 1.0
    rounds: float = 1.0
    directions: float = 1.0
    start: float = 1.0
    deform: float = 1.0
    settle: float = 1.0
    unlabelled: int = 0
    tuned: int = 0
    queries: int | None = None
    beside: str = CHOSEN
    everywhere: bool = False

    def scene(self, scene: Course) -> Course:
        """Where rounds start."""
        return replace(
            scene,
            start=round(self.start * scene.start),
            deform=self.deform * scene.deform,
            settle=round(self.settle * scene.settle),
            unlabelled=self.unlabelled,
        )

    def cell(self, scene: Course, lesson: Lesson) -> TaughtCell:
        """A lesson with this change, and no other."""
        before = lesson.advice
        changed = replace(
            lesson,
            rounds=max(1, round(self.rounds * lesson.rounds)),
            update=replace(lesson.update, **dict(self.update)),  # type: ignore[arg-type]
            advice=replace(
                before,
                heard=self.directions * before.heard,
                way=self.way * before.way,
                furthest=self.way * before.furthest,
            ),
        )
        scene = self.scene(scene)
        asked = replace(changed, **dict(self.lesson))  # type: ignore[arg-type]
        if self.queries is not None:
            return PupilCell(scene, asked, queries=self.queries)
        return TaughtCell(scene, asked, self.tuned)


_FEW = (("parts", FEW),)
_EVERY = (("directions", 0),)
FEW_ALONE = "norms and head alone"
FLIPPED = "half of it, images only flipped and turned, not settled"
CHANGES = {
    CHOSEN: Change(everywhere=True),
    "no noise, all else alike": Change((("noise", False),)),
    "half the way": Change(way=0.5, everywhere=True),
    "twice the way": Change(way=2.0),
    "a step of 0.1, whatever the noise": Change(update=(("step", 0.1),)),
    "no momentum": Change(update=(("momentum", 0.0),)),
    "no averaging": Change(update=(("averaged", 0.0),)),
    "half the rounds": Change(rounds=0.5),
    "twice the rounds": Change(rounds=2.0),
    "a third of the directions": Change(directions=1 / 3),
    "three times the directions": Change(directions=3.0),
    "directions as they are, p = 0": Change(update=(("power", 0.0),)),
    "all directions alike, p = 1": Change(update=(("power", 1.0),)),
    "no basis, all weights": Change(_EVERY),
    FEW_ALONE: Change(_FEW, everywhere=True),
    "ellipsoid": Change((*_FEW, ("allocation", "ellipsoid")), beside=FEW_ALONE, everywhere=True),
    "channels": Change((*_FEW, ("allocation", "channels")), beside=FEW_ALONE, everywhere=True),
    "norms, head and products of rank 2": Change((*_FEW, ("rank", 2))),
    "clipped at a tenth of the norms": Change((("quantile", 0.1),)),
    "clipped at nine tenths": Change((("quantile", 0.9),)),
    "two views of every image": Change((("views", 2),)),
    "half of the initialisation's training": Change(start=0.5),
    FLIPPED: Change(start=0.5, deform=0.0, settle=0.0),
    "an initialisation that did not settle": Change(settle=0.0, everywhere=True),
    "half as many steps again, on 400 images that the initialisation labelled itself": Change(
        unlabelled=400
    ),
    "fine-tuned on the recipient's images": Change(tuned=TUNED, everywhere=True),
    "a student of it, on the recipient's images": Change(queries=0, everywhere=True),
    "a student of it, on 400 unlabelled images more": Change(queries=400, everywhere=True),
}
