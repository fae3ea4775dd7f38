"""Adapters against what a user would pick instead, at one epsilon of the same patients.

All arms of a course share split, shared initialisation and order of images; adapters and rivals get
the same epsilon of a patient who is added or removed. How patients are asked is chosen on invented
hospitals (`canal.experiments.gains`), nothing by looking at these data sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from canal.adapters.adapter import HEAD, NORMS
from canal.experiments.cell import Cell, Places
from canal.experiments.course import Course, PooledCell, StartCell
from canal.experiments.data_set import DataSet
from canal.experiments.estimate import holm
from canal.experiments.markdown import row, shown, table
from canal.experiments.preset import Preset
from canal.experiments.rivals import PrivateTeachersCell, UnionCell, VotesCell
from canal.experiments.students import Asked, StudentCell
from canal.experiments.taught import Lesson, TaughtCell
from canal.experiments.whiskers import figure
from canal.rivals.dpsgd import PrivateSettings

# The last block of the decoder, and the last layer.
LAST = ("upcat_1.*", "final_conv.*")
FEW = (NORMS, HEAD)
EPSILONS = (8.0, 1.0)
LONGER = "pooled, as long as the initialisation"
TAUGHT, UNION, TEACHERS = "adapters", "DP-SGD over the union", "DP-SGD teachers"
FINE = "adapters, fine-tuned"
# Which of the two is held against rivals, at each epsilon; and steps on the recipient's images.
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
    "all weights": {8.0: 0.004, 1.0: 0.001},
    "last layers": {8.0: 0.004, 1.0: 0.02},
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
        "the initialisation": Arm(StartCell(scene)),
        "alone": Arm(StudentCell(scene, "alone")),
        "pooled": Arm(StudentCell(scene, "pooled")),
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


def cells(preset: Preset) -> list[Cell]:
    """Everything that the tables are made of."""
    found: dict[str, Cell] = {}
    for name in preset.data_sets:
        for seed in _seeds(preset):
            scene = course(preset, name, seed)
            for arm in arms(scene, _epsilons(preset), smoke=preset.smoke).values():
                found[arm.cell.slug] = arm.cell
    return list(found.values())


def read(preset: Preset, places: Places) -> list[DataSet]:
    """All results; what is not there yet is made."""
    found = []
    for name in preset.data_sets:
        scenes = [course(preset, name, seed) for seed in _seeds(preset)]
        by_seed = [arms(scene, _epsilons(preset), smoke=preset.smoke) for scene in scenes]
        made = {arm: [each[arm].result(places) for each in by_seed] for arm in by_seed[0]}
        found.append(DataSet(name, [StartCell(scene).result(places) for scene in scenes], made))
    return found


def page(preset: Preset, places: Places) -> str:
    """Every arm, and adapters less each rival."""
    data_sets = read(preset, places)
    epsilons = _epsilons(preset)
    return "\n".join(
        (
            _everybody(data_sets),
            _differences(data_sets, epsilons),
            _longer(data_sets, epsilons),
        )
    )


def figures(preset: Preset, places: Places) -> dict[str, str]:
    """Adapters between alone and pooled, beside DP-SGD; one figure for each epsilon."""
    data_sets = read(preset, places)
    found = {}
    for epsilon in _epsilons(preset):
        drawn = {
            "pooled, not private": "pooled",
            "adapters": f"{OURS[epsilon]} eps {epsilon:g}",
            UNION: f"{UNION}, all weights eps {epsilon:g}",
            "alone": "alone",
        }
        lines = {
            name: {data.name: data.dice(arm).estimate() for data in data_sets}
            for name, arm in drawn.items()
        }
        title = f"Dice of everybody at a patient's epsilon of {epsilon:g}"
        found[f"adapters-{epsilon:g}.svg"] = figure(title, "data set", "Dice, %", lines)
    return found


def _seeds(preset: Preset) -> range:
    return range(preset.few if preset.smoke else preset.seeds)


def _epsilons(preset: Preset) -> tuple[float, ...]:
    return EPSILONS[:1] if preset.smoke else EPSILONS


def _everybody(data_sets: Sequence[DataSet]) -> str:
    heads = ["arm"]
    for data in data_sets:
        heads += [f"{data.name}: Dice", "gap closed"]
    lines = []
    for arm in data_sets[0].arms:
        cells = [arm]
        for data in data_sets:
            cells += [shown(data.dice(arm).estimate())]
            cells += ["–" if arm == "alone" else data.closed(arm)]
        lines.append(row(cells))
    return table(heads, lines)


def _longer(data_sets: Sequence[DataSet], epsilons: Sequence[float]) -> str:
    """What adapters close of the gap to the pooled network that was trained longer."""
    lines = []
    for epsilon in epsilons:
        arm = f"{OURS[epsilon]} eps {epsilon:g}"
        lines.append(row([arm, *(data.closed(arm, LONGER) for data in data_sets)]))
    return table(["of the longer gap", *(data.name for data in data_sets)], lines)


def _differences(data_sets: Sequence[DataSet], epsilons: Sequence[float]) -> str:
    """Adapters less every rival at the same epsilon, corrected for how many are looked at."""
    pairs = []
    for epsilon in epsilons:
        ending = f" eps {epsilon:g}"
        paying = [arm for arm in data_sets[0].arms if arm.endswith(ending)]
        rivals = [arm for arm in paying if arm.removesuffix(ending) not in (TAUGHT, FINE)]
        pairs += [
            (epsilon, rival, data.gain(OURS[epsilon] + ending, rival))
            for rival in ("alone", *rivals)
            for data in data_sets
        ]
    corrected = holm([gain.p for *_, gain in pairs])
    heads = ["eps", "adapters less", *(data.name for data in data_sets)]
    lines = []
    for start in range(0, len(pairs), len(data_sets)):
        epsilon, rival, *_ = pairs[start]
        cells = [f"{epsilon:g}", rival.removesuffix(f" eps {epsilon:g}")]
        for (*_, gain), p in list(zip(pairs, corrected, strict=True))[start:][: len(data_sets)]:
            text = shown(gain, signed=True)
            cells.append(f"**{text}**" if p < 0.05 else text)
        lines.append(row(cells))
    return table(heads, lines)
