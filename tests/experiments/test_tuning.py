"""Rivals have what their cells on invented hospitals say is best."""

from pathlib import Path

import numpy as np
import pytest

from canal.experiments import arms as comparison
from canal.experiments.cell import Places
from canal.experiments.gains import Gains
from canal.experiments.preset import PRESETS
from canal.experiments.rivals import PrivateTeachersCell
from canal.experiments.tuning import STEPS

CPU = PRESETS["cpu"]
ROOT = Path(__file__).parents[2]
PLACES = Places(ROOT, ROOT, ROOT / "results/cpu")
# Who was tried with several steps, and the arms of the comparison that one training makes.
RIVALS = {
    f"{who}, {what}": [""]
    if who == comparison.UNION
    else [f", {part}" for part in PrivateTeachersCell.parts]
    for who, parts in STEPS.items()
    for what in parts
}


# Those whose cells are all there.
TRIED = [
    rival
    for rival in RIVALS
    if all(
        arm.cell.path(PLACES).is_file()
        for scene in Gains.of(CPU).scenes
        for name, arm in Gains.of(CPU).tuning.arms(scene).items()
        if name.startswith(f"{rival},") and ", step" in name
    )
]


def test_the_closest_rival_was_tried():
    assert {f"{comparison.UNION}, {what}" for what in comparison.RIVALS} <= set(TRIED)


@pytest.mark.parametrize("epsilon", comparison.EPSILONS)
@pytest.mark.parametrize("rival", TRIED)
def test_a_rival_has_the_step_that_was_best(rival, epsilon, published):
    """The mean over all invented hospitals, and over what one training makes."""
    gains = Gains.of(CPU)
    arms = [gains.tuning.arms(scene) for scene in gains.scenes]
    tried = {}
    for part in RIVALS[rival]:
        for name in arms[0]:
            if name.startswith(f"{rival}{part}, step") and name.endswith(f" {epsilon:g}"):
                dice = np.mean([each[name].result(published)["dice"] for each in arms])
                tried.setdefault(arms[0][name].cell.settings, []).append(dice)
    assert len(tried) >= 3
    assert {len(each) for each in tried.values()} == {len(RIVALS[rival])}
    best = max(tried, key=lambda settings: np.mean(tried[settings]))
    compared = comparison.arms(comparison.course(CPU, "BUSI", 0), [epsilon])
    for part in RIVALS[rival]:
        assert compared[f"{rival}{part} eps {epsilon:g}"].cell.settings == best
