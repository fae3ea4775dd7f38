"""Rivals have what their cells on invented hospitals say is best."""

from pathlib import Path

import numpy as np
import pytest

from canal.experiments import adapters
from canal.experiments.cell import Places
from canal.experiments.gains import Gains
from canal.experiments.preset import PRESETS
from canal.experiments.rivals import PrivateTeachersCell
from canal.experiments.tuning import STEPS

ROOT = Path(__file__).parents[2]
CPU = PRESETS["cpu"]
PLACES = Places(ROOT, ROOT, ROOT / "results/cpu")
# Who was tried with several steps, and the arms of the comparison that one training makes.
RIVALS = {
    f"{who}, {what}": [""]
    if who == adapters.UNION
    else [f", {part}" for part in PrivateTeachersCell.parts]
    for who, parts in STEPS.items()
    for what in parts
}


@pytest.mark.parametrize("epsilon", adapters.EPSILONS)
@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_has_the_step_that_was_best(rival, epsilon):
    """The mean over all invented hospitals, and over what one training makes."""
    gains = Gains.of(CPU)
    arms = [gains.tuning.arms(scene) for scene in gains.scenes]
    tried = {}
    for part in RIVALS[rival]:
        for name in arms[0]:
            if name.startswith(f"{rival}{part}, step") and name.endswith(f" {epsilon:g}"):
                assert all(each[name].cell.path(PLACES).is_file() for each in arms)
                dice = np.mean([each[name].result(PLACES)["dice"] for each in arms])
                tried.setdefault(arms[0][name].cell.settings, []).append(dice)
    assert len(tried) >= 3
    assert {len(each) for each in tried.values()} == {len(RIVALS[rival])}
    best = max(tried, key=lambda settings: np.mean(tried[settings]))
    compared = adapters.arms(adapters.course(CPU, "BUSI", 0), [epsilon])
    for part in RIVALS[rival]:
        assert compared[f"{rival}{part} eps {epsilon:g}"].cell.settings == best
