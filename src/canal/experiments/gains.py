"""What each choice is worth, on invented hospitals: how the settings of adapters were chosen.

One thing is changed at a time. None of it costs privacy, and no real patient was looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from canal.experiments.adapters import EPSILONS, LESSONS, course
from canal.experiments.cell import Cell, Places
from canal.experiments.course import INVENTED, Course, StartCell
from canal.experiments.data_set import DataSet
from canal.experiments.markdown import row, shown, table
from canal.experiments.preset import Preset
from canal.experiments.students import StudentCell
from canal.experiments.taught import Lesson, TaughtCell

CHOSEN = "as chosen"
# Images of each invented hospital.
_IMAGES = 800


@dataclass(frozen=True)
class Change:
    """What is done otherwise.

    Args:
        lesson: fields of the lesson that are set.
        update: fields of its steps that are set.
        step: factor of the step.
        rounds: factor of T.
        directions: factor of k.
        start: factor of the steps of the initialisation.
        tuned: steps on the recipient's own images afterwards.
    """

    lesson: tuple[tuple[str, object], ...] = ()
    update: tuple[tuple[str, object], ...] = ()
    step: float = 1.0
    rounds: float = 1.0
    directions: float = 1.0
    start: float = 1.0
    tuned: int = 0

    def cell(self, scene: Course, lesson: Lesson) -> TaughtCell:
        """A lesson with this change, and no other."""
        update = replace(lesson.update, step=self.step * lesson.update.step)
        changed = replace(
            lesson,
            rounds=max(1, round(self.rounds * lesson.rounds)),
            directions=round(self.directions * lesson.directions),
            update=replace(update, **dict(self.update)),  # type: ignore[arg-type]
        )
        scene = replace(scene, start=round(self.start * scene.start))
        return TaughtCell(scene, replace(changed, **dict(self.lesson)), self.tuned)  # type: ignore[arg-type]


_NORMS = (("parts", ("norms", "head")), ("directions", 0))
_EVERYTHING = (("parts", ("*",)), ("directions", 0))
CHANGES = {
    CHOSEN: Change(),
    "no noise": Change((("epsilon", math.inf),)),
    "no momentum, ten times the step": Change(update=(("momentum", 0.0),), step=10.0),
    "no averaging": Change(update=(("averaged", 0.0),)),
    "step decays to nothing": Change(update=(("decay", "cosine"),)),
    "half the step": Change(step=0.5),
    "twice the step": Change(step=2.0),
    "half the rounds": Change(rounds=0.5),
    "twice the rounds": Change(rounds=2.0),
    "a third of the directions": Change(directions=1 / 3),
    "three times the directions": Change(directions=3.0),
    "directions as they are, p = 0": Change(update=(("power", 0.0),)),
    "all directions alike, p = 1": Change(update=(("power", 1.0),)),
    "no basis, norms and head alone": Change(_NORMS, step=3.0),
    "the same, ellipsoid": Change((*_NORMS, ("allocation", "ellipsoid")), step=3.0),
    "the same, channels": Change((*_NORMS, ("allocation", "channels")), step=3.0),
    "no basis, all weights": Change(_EVERYTHING),
    "the same, all weights, ellipsoid": Change((*_EVERYTHING, ("allocation", "ellipsoid"))),
    "images as they are": Change((("views", 0),)),
    "three views of every image": Change((("views", 3),)),
    "a third of the initialisation's training": Change(start=1 / 3),
    "twice of it": Change(start=2.0),
    "fine-tuned on the recipient's images": Change(tuned=200),
}


@dataclass(frozen=True)
class Gains:
    """The grid of one preset.

    Args:
        scenes: one an invented hospital.
        epsilons: of the lessons.
        changes: by label.
    """

    scenes: tuple[Course, ...]
    epsilons: tuple[float, ...] = EPSILONS
    changes: dict[str, Change] = field(default_factory=lambda: dict(CHANGES))

    @classmethod
    def of(cls, preset: Preset) -> Gains:
        """All of it; a few changes in one hospital are enough to see that everything runs."""
        hospitals = INVENTED[:1] if preset.smoke else INVENTED
        images = 24 if preset.smoke else _IMAGES
        scenes = tuple(replace(course(preset, each, 0), invented=images) for each in hospitals)
        if not preset.smoke:
            return cls(scenes)
        few = {name: CHANGES[name] for name in (CHOSEN, "the same, ellipsoid")}
        return cls(scenes, EPSILONS[:1], few)

    def lesson(self, epsilon: float) -> Lesson:
        """As chosen; a tiny one where the network is."""
        chosen = LESSONS[epsilon]
        return chosen if len(self.scenes) > 1 else replace(chosen, rounds=2, directions=8)


def cells(preset: Preset) -> list[Cell]:
    """Everything that the table is made of."""
    gains = Gains.of(preset)
    found: list[Cell] = []
    for scene in gains.scenes:
        found += [StartCell(scene), StudentCell(scene, "alone"), StudentCell(scene, "pooled")]
        for epsilon in gains.epsilons:
            found += [
                change.cell(scene, gains.lesson(epsilon)) for change in gains.changes.values()
            ]
    return found


def page(preset: Preset, places: Places) -> str:
    """Dice of what was chosen, and what every change does to it."""
    gains = Gains.of(preset)
    starts = [StartCell(scene).result(places) for scene in gains.scenes]
    arms = {
        "the initialisation": starts,
        "alone": [StudentCell(scene, "alone").result(places) for scene in gains.scenes],
        "pooled": [StudentCell(scene, "pooled").result(places) for scene in gains.scenes],
    }
    for epsilon in gains.epsilons:
        for label, change in gains.changes.items():
            arms[f"{label} {epsilon:g}"] = [
                change.cell(scene, gains.lesson(epsilon)).result(places) for scene in gains.scenes
            ]
    data = DataSet("invented hospitals", starts, arms)
    controls = [
        row([name, *[shown(data.dice(name).estimate())] * len(gains.epsilons)])
        for name in ("the initialisation", "alone", "pooled")
    ]
    return table(
        ["", *(f"eps {each:g}" for each in gains.epsilons)], [*controls, *_rows(data, gains)]
    )


def _rows(data: DataSet, gains: Gains) -> Sequence[str]:
    lines = []
    for label in gains.changes:
        cells = [label]
        for epsilon in gains.epsilons:
            arm, chosen = f"{label} {epsilon:g}", f"{CHOSEN} {epsilon:g}"
            if label == CHOSEN:
                cells.append(f"{shown(data.dice(arm).estimate())}; gap closed: {data.closed(arm)}")
            else:
                cells.append(shown(data.gain(arm, chosen), signed=True))
        lines.append(row(cells))
    return lines
