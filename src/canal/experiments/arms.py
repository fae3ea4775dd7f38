"""Who is compared with adapters, and how each of them was set: everybody at one epsilon.

All arms of a course share split, shared initialisation and order of images; adapters and rivals get
the same epsilon of a patient who is added or removed. How patients are asked is chosen on invented
hospitals (`canal.experiments.gains`), and so are the steps of rivals (`canal.experiments.tuning`);
nothing by looking at these data sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from canal.experiments.cell import Cell, Places
from canal.experiments.course import Course, PooledCell, StartCell
from canal.experiments.preset import Preset
from canal.experiments.rivals import EchoCell, PrivateTeachersCell, UnionCell, VotesCell
from canal.experiments.students import Asked, StudentCell
from canal.experiments.taught import Lesson, PupilCell, TaughtCell
from canal.gradients.adapter import HEAD, NORMS
from canal.rivals.dpsgd import PrivateSettings

# The last block of the decoder, and the last layer.
LAST = ("upcat_1.*", "final_conv.*")
FEW = (NORMS, HEAD)
EPSILONS = (8.0, 1.0)
START, ALONE, POOLED = "the initialisation", "alone", "pooled"
LONGER = "pooled, as long as the initialisation"
TAUGHT, UNION, TEACHERS = "adapters", "DP-SGD over the union", "DP-SGD teachers"
FINE, PUPIL = "adapters, fine-tuned", "adapters, a student of them"
ADAPTERS = (TAUGHT, FINE, PUPIL)
ECHO = "a student of the initialisation"
# Of the gap between alone and pooled, in percent, to be closed at each epsilon.
GOALS = {8.0: 75, 1.0: 40}
# Which of them is held against rivals, at each epsilon; and steps on the recipient's images.
OURS = {8.0: FINE, 1.0: TAUGHT}
TUNED = 200
# What DP-SGD trains. Clips are chosen as those of adapters are, on the recipient's images.
RIVALS = {
    "all weights": PrivateSettings(clip=None),
    "last layers": PrivateSettings(clip=None, parts=LAST),
}
# One pass over few parameters is enough to see that it runs.
TINY = replace(RIVALS["last layers"], epochs=1, rate=0.5)
# Steps of DP-SGD, the best of those that `canal.experiments.tuning` tries.
UNION_STEPS = {
    "all weights": {8.0: 0.02, 1.0: 0.004},
    "last layers": {8.0: 0.1, 1.0: 0.02},
}
# The same, of teachers: the best for an ensemble of them and for its student, in the mean of both.
TEACHER_STEPS = {
    "all weights": {8.0: 0.02, 1.0: 0.001},
    "last layers": {8.0: 0.02, 1.0: 0.02},
}


def chosen(epsilon: float) -> Lesson:
    """How patients are asked: as advised."""
    return Lesson(epsilon)


@dataclass(frozen=True)
class Arm:
    """Where the result of an arm is.

    Args:
        cell: that makes it.
        part: of its result; all of it if empty.
    """

    cell: Cell
    part: str = ""

    def result(self, places: Places) -> Mapping[str, Any]:
        """Dice, image by image."""
        found: Mapping[str, Any] = self.cell.result(places)
        return found[self.part] if self.part else found


def course(preset: Preset, data_set: str, seed: int) -> Course:
    """The scene of a data set and a seed."""
    scene = preset.scene
    return Course(
        data_set,
        seed,
        size=scene.size,
        sites=scene.sites,
        recipient=scene.recipient,
        base_channels=scene.base_channels,
        norm=scene.norm,
        training=scene.training,
        test=scene.test,
        start=6 * scene.training.steps,
        deform=1.0,
        settle=scene.training.steps // 2,
    )


def arms(scene: Course, epsilons: Sequence[float], *, smoke: bool = False) -> dict[str, Arm]:
    """Everybody, by label."""
    found = {
        START: Arm(StartCell(scene)),
        ECHO: Arm(EchoCell(scene)),
        ALONE: Arm(StudentCell(scene, "alone")),
        POOLED: Arm(StudentCell(scene, "pooled")),
        LONGER: Arm(PooledCell(scene)),
    }
    for epsilon in epsilons:
        found |= {
            f"{label} eps {epsilon:g}": arm
            for label, arm in _private(scene, epsilon, smoke=smoke).items()
        }
    return found


def _private(scene: Course, epsilon: float, *, smoke: bool) -> dict[str, Arm]:
    """Everybody who pays this epsilon."""
    lesson, rivals, tuned = chosen(epsilon), RIVALS, TUNED
    crowd = replace(scene, people=True)
    if smoke:
        lesson, tuned = Lesson(epsilon, 2, FEW, directions=8), 2
        rivals = {"all weights": TINY}
    found = {
        TAUGHT: Arm(TaughtCell(crowd, lesson)),
        FINE: Arm(TaughtCell(crowd, lesson, tuned)),
        PUPIL: Arm(PupilCell(crowd, lesson, queries=0)),
    }
    for name, rival in rivals.items():
        settings = replace(rival, epsilon=epsilon, step=UNION_STEPS[name][epsilon])
        found[f"{UNION}, {name}"] = Arm(UnionCell(crowd, settings))
    for name, rival in rivals.items():
        settings = replace(rival, epsilon=epsilon, step=TEACHER_STEPS[name][epsilon])
        both = PrivateTeachersCell(crowd, settings)
        found |= {f"{TEACHERS}, {name}, {part}": Arm(both, part) for part in both.parts}
    return found | {
        "CANAL features, honest": Arm(StudentCell(scene, "release", Asked("honest", epsilon))),
        "noisy votes": Arm(VotesCell(scene, epsilon)),
    }
