"""What each choice is worth, on invented hospitals: how the settings of adapters were chosen.

One row, one change, as its name says; differences are to what was chosen, or to the row that is
named. None of it costs privacy, and no real patient was looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from canal.experiments.arms import (
    ALONE,
    EPSILONS,
    FEW,
    POOLED,
    START,
    TINY,
    UNION,
    Arm,
    chosen,
    course,
)
from canal.experiments.cell import Cell, Places
from canal.experiments.changes import CHANGES, CHOSEN, FEW_ALONE, FLIPPED, Change
from canal.experiments.consensus import ConsensusCell
from canal.experiments.course import INVENTED, Course, StartCell
from canal.experiments.data_set import DataSet
from canal.experiments.harm import HarmCell
from canal.experiments.markdown import row, shown, table
from canal.experiments.preset import Preset
from canal.experiments.students import StudentCell
from canal.experiments.taught import Lesson
from canal.experiments.tuning import Tuning
from canal.gradients.adapter import Adapter

# Images of each invented hospital; and how many of these try changes from which nothing follows.
_IMAGES = 800
_SOME = 2
_CONSENSUS = ("initialisation", "patients agree on", "their gradients, over the recipient's")
_HARM = ("harm of noise left", "in theory", "ellipsoid", "channels")
# What is taught where noise could be allocated over channels, by label.
_ALLOCATED = {"norms and head": FEW, "all weights": Adapter.parts}


@dataclass(frozen=True)
class Gains:
    """The grid of one preset.

    Args:
        scenes: one an invented hospital.
        epsilons: of the lessons.
        changes: by label.
        tuning: of rivals.
        allocated: what is taught where noise could be allocated over channels, by label.
        tiny: lessons only show that they run.
    """

    scenes: tuple[Course, ...]
    epsilons: tuple[float, ...] = EPSILONS
    changes: dict[str, Change] = field(default_factory=lambda: dict(CHANGES))
    tuning: Tuning = field(default_factory=Tuning)
    allocated: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(_ALLOCATED))
    tiny: bool = False

    @classmethod
    def of(cls, preset: Preset) -> Gains:
        """All of it; a few changes in one hospital are enough to see that everything runs."""
        hospitals = INVENTED[:1] if preset.smoke else INVENTED
        images = 24 if preset.smoke else _IMAGES
        scenes = tuple(replace(course(preset, each, 0), invented=images) for each in hospitals)
        if not preset.smoke:
            return cls(scenes)
        few = {name: CHANGES[name] for name in (CHOSEN, FEW_ALONE, "ellipsoid")}
        few["a student of it"] = Change(queries=6)
        what = "last layers"
        tried = Tuning(EPSILONS[:1], {what: TINY}, {UNION: {what: (0.02,)}}, {})
        return cls(scenes, EPSILONS[:1], few, tried, {"norms and head": FEW}, tiny=True)

    def lesson(self, epsilon: float) -> Lesson:
        """As chosen, or a tiny one."""
        lesson = chosen(epsilon)
        return replace(lesson, rounds=2, parts=FEW, directions=8) if self.tiny else lesson

    def arms(self, scene: Course) -> dict[str, Arm]:
        """Adapters and controls, by label; those who pay an epsilon with it behind."""
        found = {
            START: Arm(StartCell(scene)),
            ALONE: Arm(StudentCell(scene, "alone")),
            POOLED: Arm(StudentCell(scene, "pooled")),
        }
        for epsilon in self.epsilons:
            lesson = self.lesson(epsilon)
            for label, change in self.changes.items():
                if scene in self.tried(change):
                    found[f"{label} {epsilon:g}"] = Arm(change.cell(scene, lesson))
        return found

    def tried(self, change: Change) -> tuple[Course, ...]:
        """Where a change was tried."""
        return self.scenes if change.everywhere else self.scenes[:_SOME]

    def measured(self, change: Change, labels: Sequence[str], places: Places) -> DataSet:
        """Some arms, wherever a change was tried."""
        scenes = self.tried(change)
        arms = [self.arms(scene) for scene in scenes]
        return DataSet(
            "invented hospitals",
            [StartCell(scene).result(places) for scene in scenes],
            {label: [each[label].result(places) for each in arms] for label in labels},
        )

    def consensus(self) -> list[ConsensusCell]:
        """What patients have in common, to the initialisation of flipped images and to ours."""
        changes = CHANGES[FLIPPED], CHANGES[CHOSEN]
        return [ConsensusCell(change.scene(scene)) for scene in self.scenes for change in changes]

    def harm(self) -> list[HarmCell]:
        """What allocation over channels leaves of the harm of noise."""
        return [
            HarmCell(scene, parts) for parts in self.allocated.values() for scene in self.scenes
        ]


def cells(preset: Preset) -> list[Cell]:
    """Everything that the table is made of."""
    gains = Gains.of(preset)
    arms = [
        arm
        for scene in gains.scenes
        for arm in (gains.arms(scene) | gains.tuning.arms(scene)).values()
    ]
    found = [*(arm.cell for arm in arms), *gains.consensus(), *gains.harm()]
    return list({cell.slug: cell for cell in found}.values())


def page(preset: Preset, places: Places) -> str:
    """Dice of what was chosen, and of every change; steps of rivals; theory beside them."""
    gains = Gains.of(preset)
    data = gains.measured(gains.changes[CHOSEN], (START, ALONE, POOLED), places)
    dice = {name: shown(data.dice(name).estimate()) for name in data.arms}
    many = str(len(gains.scenes))
    lines = [row([name, many, *[text] * len(gains.epsilons)]) for name, text in dice.items()]
    lines += [_row(gains, label, change, places) for label, change in gains.changes.items()]
    heads = ["", "hospitals", *(f"eps {each:g}" for each in gains.epsilons)]
    return "\n".join(
        (
            table(heads, lines),
            gains.tuning.table(gains.scenes, places),
            table(_CONSENSUS, _consensus(gains, places)),
            harm_table(gains, places),
        )
    )


def _row(gains: Gains, label: str, change: Change, places: Places) -> str:
    """One change; of what was chosen, Dice itself."""
    cells = [label if change.beside == CHOSEN else f"{label}, less {change.beside}"]
    cells.append(str(len(gains.tried(change))))
    for epsilon in gains.epsilons:
        arm, other = f"{label} {epsilon:g}", f"{change.beside} {epsilon:g}"
        if label == CHOSEN:
            data = gains.measured(change, (arm, ALONE, POOLED), places)
            cells.append(f"{shown(data.dice(arm).estimate())}; gap closed: {data.closed(arm)}")
        else:
            data = gains.measured(change, (arm, other), places)
            cells.append(shown(data.gain(arm, other), signed=True))
    return row(cells)


def _consensus(gains: Gains, places: Places) -> Sequence[str]:
    """How long what all patients say is, where one of them says one."""
    lines = []
    for cell in gains.consensus():
        found, scene = cell.result(places), cell.scene
        how = "deformed, then settled" if scene.settle else "flipped and turned"
        ratio = found["patients"] / found["recipient"]
        lines.append(
            row(
                [
                    f"{scene.data_set}, {scene.start:,} steps, images {how}",
                    f"{found['consensus']:.3f}",
                    f"{ratio:.1f} ×",
                ]
            )
        )
    return lines


def harm_table(gains: Gains, places: Places) -> str:
    """What is left where noise is allocated over channels, of the harm of flat noise."""
    lines = []
    labels = {parts: label for label, parts in gains.allocated.items()}
    for cell in gains.harm():
        found = cell.result(places)
        shares = [f"{100 * found[name]:.0f} %" for name in ("theory", "ellipsoid", "channels")]
        lines.append(row([f"{cell.scene.data_set}, {labels[cell.parts]}", *shares]))
    return table(_HARM, lines)
