"""Rivals have what their cells on invented hospitals say is best."""

import numpy as np
import pytest

from canal.experiments import arms as comparison
from canal.experiments.gains import Gains
from canal.experiments.preset import PRESETS
from canal.experiments.rivals import PrivateTeachersCell
from canal.experiments.tuning import STEPS

CPU = PRESETS["cpu"]
# Who was tried with several steps, and the arms of the comparison that one training makes.
RIVALS = {
    f"{who}, {what}": [""]
    if who == comparison.UNION
    else [f", {part}" for part in PrivateTeachersCell.parts]
    for who, parts in STEPS.items()
    for what in parts
}


@pytest.mark.parametrize("epsilon", comparison.EPSILONS)
@pytest.mark.parametrize("rival", RIVALS)
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
