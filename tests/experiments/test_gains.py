"""What was chosen on invented hospitals is what their cells say is best."""

from pathlib import Path

import numpy as np
import pytest

from canal.experiments import adapters
from canal.experiments.cell import Places
from canal.experiments.gains import Gains
from canal.experiments.preset import PRESETS

ROOT = Path(__file__).parents[2]
CPU = PRESETS["cpu"]
PLACES = Places(ROOT, ROOT, ROOT / "results/cpu")
# An arm of the comparison, and rows of the gains that differ in their step, and in their start.
RIVALS = {
    "DP-SGD over the union": "DP-SGD over the union, all weights, step {:g}",
    "the same, last layers": "DP-SGD over the union, last layers, step {:g}",
    "DP-SGD teachers, ensemble": "DP-SGD teachers, all weights, step {:g}, ensemble",
    "the same, distilled": "DP-SGD teachers, all weights, step {:g}, student",
}


@pytest.mark.parametrize("epsilon", adapters.EPSILONS)
@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_has_the_step_that_was_best(rival, epsilon):
    """The mean over all invented hospitals; of those that were tried, which are at least three."""
    gains = Gains.of(CPU)
    arms = [gains.steps(scene) for scene in gains.scenes]
    steps = sorted({each.step for each in (*gains.rivals.values(), *gains.teachers.values())})
    found = {}
    for step in steps:
        row = f"{RIVALS[rival].format(step)} {epsilon:g}"
        if row in arms[0]:
            found[step] = np.mean([each[row].result(PLACES)["dice"] for each in arms])
    assert len(found) >= 3
    compared = adapters.arms(adapters.course(CPU, "BUSI", 0), [epsilon])
    assert compared[f"{rival} eps {epsilon:g}"].cell.settings.step == max(found, key=found.get)
