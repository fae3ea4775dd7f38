"""Rivals have what their cells on invented hospitals say is best."""

from pathlib import Path

import numpy as np
import pytest

from canal.experiments import adapters
from canal.experiments.cell import Places
from canal.experiments.gains import Gains
from canal.experiments.preset import PRESETS
from canal.experiments.tuning import PARTS, STEPS

ROOT = Path(__file__).parents[2]
CPU = PRESETS["cpu"]
PLACES = Places(ROOT, ROOT, ROOT / "results/cpu")
# Arms of the comparison that rows of the gains tried with several steps.
RIVALS = [
    f"{who}, {what}{part}"
    for who, parts in STEPS.items()
    for what in parts
    for part in ([""] if who == adapters.UNION else [f", {part}" for part in PARTS])
]


@pytest.mark.parametrize("epsilon", adapters.EPSILONS)
@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_has_the_step_that_was_best(rival, epsilon):
    """The mean over all invented hospitals; of those that were tried, which are at least three."""
    gains = Gains.of(CPU)
    arms = [gains.tuning.arms(scene) for scene in gains.scenes]
    found = {}
    for name in arms[0]:
        if name.startswith(f"{rival}, step") and name.endswith(f" {epsilon:g}"):
            assert all(each[name].cell.path(PLACES).is_file() for each in arms)
            dice = np.mean([each[name].result(PLACES)["dice"] for each in arms])
            found[arms[0][name].cell.settings] = dice
    assert len(found) >= 3
    compared = adapters.arms(adapters.course(CPU, "BUSI", 0), [epsilon])
    assert compared[f"{rival} eps {epsilon:g}"].cell.settings == max(found, key=found.get)
