"""The paper's figure of ensemble sizes: one data set in K cohorts, uniform noise at epsilon 8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from canal.experiments.cell import Cell, Places
from canal.experiments.estimate import Estimate, Sample
from canal.experiments.markdown import row, shown, table
from canal.experiments.preset import Preset
from canal.experiments.stage import Scene
from canal.experiments.students import Asked, NetworksCell, StudentCell, dice
from canal.experiments.whiskers import figure
from canal.student import Mode

# What each student listens to; the first is no student.
ARMS: dict[str, tuple[Mode, Asked] | None] = {
    "the ensemble itself": None,
    "student, no noise": ("noiseless", Asked(allocation="none")),
    "student, uniform eps 8": ("release", Asked(allocation="uniform")),
}
ALONE = "student alone"


def scenes(preset: Preset, size: int) -> list[Scene]:
    """Of one K, all seeds; the data set is the last of the preset, as in the paper."""
    return [replace(s, sites=size) for s in preset.scenes(preset.data_sets[-1], preset.few)]


def cells(preset: Preset) -> Sequence[Cell]:
    """Everything that the figure is made of; a student alone knows of no teacher."""
    listening = [
        StudentCell(scene, *arm)
        for size in preset.sizes
        for scene in scenes(preset, size)
        for arm in ARMS.values()
        if arm is not None
    ]
    return [*listening, *_alone(preset)]


def _alone(preset: Preset) -> list[StudentCell]:
    return [StudentCell(scene, "alone") for scene in scenes(preset, preset.scene.sites)]


def page(preset: Preset, places: Places) -> str:
    """The numbers of the figure."""
    lines = _lines(preset, places)
    rows = [row([arm, *(shown(each) for each in line.values())]) for arm, line in lines.items()]
    return table(["arm", *(f"K = {size}" for size in preset.sizes)], rows)


def figures(preset: Preset, places: Places) -> dict[str, str]:
    """One line for each arm."""
    title = f"Dice against ensemble size on {preset.data_sets[-1]}"
    drawn = figure(title, "K, teachers", "Dice", _lines(preset, places))
    return {"ensemble-size.svg": drawn}


def _lines(preset: Preset, places: Places) -> dict[str, dict[str, Estimate]]:
    found = {
        arm: {str(size): _dice(preset, places, arm, size).estimate() for size in preset.sizes}
        for arm in ARMS
    }
    cells = _alone(preset)
    networks = [NetworksCell(cell.scene).result(places) for cell in cells]
    alone = dice([cell.result(places) for cell in cells], networks).estimate()
    return found | {ALONE: {str(size): alone for size in preset.sizes}}


def _dice(preset: Preset, places: Places, name: str, size: int) -> Sample:
    chosen, arm = scenes(preset, size), ARMS[name]
    networks = [NetworksCell(scene).result(places) for scene in chosen]
    if arm is None:
        return dice([each["networks"]["ensemble"] for each in networks], networks)
    return dice([StudentCell(scene, *arm).result(places) for scene in chosen], networks)
