"""How DP-SGD was tuned, on invented hospitals: it is to be beaten at its best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from canal.experiments.arms import EPSILONS, RIVALS, TEACHERS, UNION, UNION_STEPS, Arm
from canal.experiments.cell import Places
from canal.experiments.course import Course
from canal.experiments.markdown import row, table
from canal.experiments.rivals import PrivateTeachersCell, UnionCell
from canal.rivals.dpsgd import PrivateSettings

# Steps that are tried: over the union, and by sites on their own, who hear more noise.
STEPS: dict[str, dict[str, tuple[float, ...]]] = {
    UNION: {
        "all weights": (0.001, 0.004, 0.02, 0.1),
        "last layers": (0.004, 0.02, 0.1, 0.5),
    },
    TEACHERS: {
        "all weights": (0.001, 0.004, 0.02),
        "last layers": (0.004, 0.02, 0.1),
    },
}
# What else the union is tried with, at one hospital, of all weights and with the best step: as many
# passes over the patients as adapters make.
VARIED_AT = "endoscopy"
VARIED: dict[str, dict[str, Any]] = {
    "twice the epochs, half of the patients a step": {
        "epochs": 2 * PrivateSettings.epochs,
        "rate": 0.5,
    },
}


@dataclass(frozen=True)
class Tuning:
    """Everything that was tried.

    Args:
        epsilons: of a patient.
        rivals: what DP-SGD trains, by label.
        steps: by who trains, and what.
        varied: other settings, by label.
    """

    epsilons: tuple[float, ...] = EPSILONS
    rivals: dict[str, PrivateSettings] = field(default_factory=lambda: dict(RIVALS))
    steps: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=lambda: dict(STEPS))
    varied: dict[str, dict[str, Any]] = field(default_factory=lambda: dict(VARIED))

    def arms(self, scene: Course) -> dict[str, Arm]:
        """By label, with epsilon behind."""
        found: dict[str, Arm] = {}
        for epsilon in self.epsilons:
            for who, parts in self.steps.items():
                for what, steps in parts.items():
                    for step in steps:
                        settings = replace(self.rivals[what], epsilon=epsilon, step=step)
                        found |= _tried(scene, f"{who}, {what}", settings)
            if scene.data_set == VARIED_AT:
                found |= self._varied(scene, epsilon)
        return found

    def _varied(self, scene: Course, epsilon: float) -> dict[str, Arm]:
        """The best step of all weights, and what else it was tried with."""
        what = "all weights"
        best = replace(self.rivals[what], epsilon=epsilon, step=UNION_STEPS[what][epsilon])
        tried = {"as chosen": best}
        tried |= {label: replace(best, **fields) for label, fields in self.varied.items()}
        return {
            f"{UNION}, {what}, at {VARIED_AT} alone, {label} {epsilon:g}": Arm(
                UnionCell(scene, settings)
            )
            for label, settings in tried.items()
        }

    def table(self, scenes: Sequence[Course], places: Places) -> str:
        """The mean Dice over hospitals of everything that was tried."""
        arms = [self.arms(scene) for scene in scenes]
        endings = [f" {epsilon:g}" for epsilon in self.epsilons]
        labels = dict.fromkeys(
            name.removesuffix(endings[0])
            for each in arms
            for name in each
            if name.endswith(endings[0])
        )

        def dice(label: str) -> str:
            found = [each[label].result(places)["dice"] for each in arms if label in each]
            return f"{100 * mean(found):.1f}"

        return table(
            ["DP-SGD", *(f"eps {epsilon:g}" for epsilon in self.epsilons)],
            [row([label, *(dice(label + ending) for ending in endings)]) for label in labels],
        )


def _tried(scene: Course, label: str, settings: PrivateSettings) -> dict[str, Arm]:
    """One step; of teachers, their ensemble and its student."""
    ending = f"step {settings.step:g} {settings.epsilon:g}"
    if label.startswith(UNION):
        return {f"{label}, {ending}": Arm(UnionCell(scene, settings))}
    both = PrivateTeachersCell(scene, settings)
    return {f"{label}, {part}, {ending}": Arm(both, part) for part in both.parts}
