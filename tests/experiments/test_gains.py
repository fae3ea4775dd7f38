"""What was chosen on invented hospitals is what their cells say is best."""

from pathlib import Path

import numpy as np
import pytest

from canal.experiments import adapters
from canal.experiments.cell import Places
from canal.experiments.course import StartCell
from canal.experiments.data_set import DataSet
from canal.experiments.gains import CHOSEN, Gains, harm_table
from canal.experiments.markdown import shown
from canal.experiments.preset import PRESETS

ROOT = Path(__file__).parents[2]
CPU = PRESETS["cpu"]
PAGE = ROOT / "docs/adapters.md"
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


def test_the_page_says_what_allocation_leaves_of_the_harm():
    assert harm_table(Gains.of(CPU), PLACES).strip() in PAGE.read_text()


@pytest.mark.parametrize(
    ("changed", "before", "sentence"),
    [
        ("the same, ellipsoid", "norms and head alone", "`ellipsoid` {} at epsilon 8 and {}"),
        ("the same, channels", "norms and head alone", "`channels` {} and {}"),
        (CHOSEN, "an initialisation that did not settle", "settling gains {} at epsilon 8 and {}"),
    ],
)
def test_the_page_says_what_a_change_is_worth(changed, before, sentence):
    gains = Gains.of(CPU)
    arms = [gains.arms(scene) for scene in gains.scenes]
    starts = [StartCell(scene).result(PLACES) for scene in gains.scenes]
    told = []
    for epsilon in adapters.EPSILONS:
        names = [f"{each} {epsilon:g}" for each in (changed, before)]
        found = {name: [each[name].result(PLACES) for each in arms] for name in names}
        told.append(shown(DataSet("", starts, found).gain(*names), signed=True))
    assert sentence.format(*told) in PAGE.read_text().replace("\n", " ")
