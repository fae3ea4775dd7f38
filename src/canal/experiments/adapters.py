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
from canal.experiments.course import Course, StartCell
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
TAUGHT, UNION = "adapters", "DP-SGD over the union"
# Steps of DP-SGD, the best of those that `canal.experiments.gains` tries on invented hospitals,
# where the initialisation saw images that were only flipped and turned. An ensemble of noisy
# teachers wants smaller ones than a student of it, who has labels beside them.
_STEPS, _ENSEMBLE = {8.0: 0.02, 1.0: 0.004}, {8.0: 0.004, 1.0: 0.001}


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
    }
    for epsilon in epsilons:
        found |= {
            f"{label} eps {epsilon:g}": arm
            for label, arm in _private(scene, epsilon, smoke=smoke).items()
        }
    return found


def _private(scene: Course, epsilon: float, *, smoke: bool) -> dict[str, Arm]:
    """Everybody who pays this epsilon."""
    lesson = chosen(epsilon)
    parts: tuple[tuple[str, ...], ...] = (("*",), LAST)
    rival = PrivateSettings(epsilon, step=_STEPS[epsilon])
    if smoke:  # one pass over few parameters is enough to see that it runs
        lesson, parts = Lesson(epsilon, 2, FEW, directions=8), (LAST, LAST)
        rival = replace(rival, epochs=1, rate=0.5)
    full, last = (replace(rival, parts=each) for each in parts)
    quiet = replace(full, step=_ENSEMBLE[epsilon])
    features = StudentCell(scene, "release", Asked("honest", epsilon))
    return {
        TAUGHT: Arm(TaughtCell(scene, lesson)),
        UNION: Arm(UnionCell(scene, full)),
        "the same, last layers": Arm(UnionCell(scene, last)),
        "DP-SGD teachers, ensemble": Arm(
            PrivateTeachersCell(scene, quiet, distilled=False), "ensemble"
        ),
        "the same, distilled": Arm(PrivateTeachersCell(scene, full), "student"),
        "DP-SGD teachers, last layers, ensemble": Arm(PrivateTeachersCell(scene, last), "ensemble"),
        "the same, last layers, distilled": Arm(PrivateTeachersCell(scene, last), "student"),
        "CANAL features, honest": Arm(features),
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
    return "\n".join((_everybody(data_sets), _differences(data_sets, _epsilons(preset))))


def figures(preset: Preset, places: Places) -> dict[str, str]:
    """Adapters between alone and pooled, beside the nearest rival; one figure for each epsilon."""
    data_sets = read(preset, places)
    found = {}
    for epsilon in _epsilons(preset):
        drawn = {
            "pooled, not private": "pooled",
            "adapters": f"{TAUGHT} eps {epsilon:g}",
            UNION: f"{UNION} eps {epsilon:g}",
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


def _differences(data_sets: Sequence[DataSet], epsilons: Sequence[float]) -> str:
    """Adapters less every rival at the same epsilon, corrected for how many are looked at."""
    pairs = []
    for epsilon in epsilons:
        ending = f" eps {epsilon:g}"
        rivals = [arm for arm in data_sets[0].arms if arm.endswith(ending)]
        pairs += [
            (epsilon, rival, data.gain(TAUGHT + ending, rival))
            for rival in ("alone", *rivals[1:])
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
