"""What the page says of the comparison, before all of its cells are there, is what they say."""

from pathlib import Path

import pytest

from canal.experiments.arms import (
    ALONE,
    EPSILONS,
    FINE,
    LONGER,
    OURS,
    POOLED,
    TAUGHT,
    TEACHERS,
    UNION,
    arms,
    course,
)
from canal.experiments.course import StartCell
from canal.experiments.data_set import DataSet
from canal.experiments.markdown import row, shown
from canal.experiments.preset import PRESETS

CPU = PRESETS["cpu"]
PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()
RIVALS = [
    f"{UNION}, all weights",
    f"{TEACHERS}, all weights, ensemble",
    f"{TEACHERS}, all weights, student",
]


@pytest.fixture
def measured(published):
    """Some arms of a data set, all seeds."""

    def read(name, *labels):
        scenes = [course(CPU, name, seed) for seed in range(CPU.seeds)]
        made = [arms(scene, EPSILONS) for scene in scenes]
        found = {label: [each[label].result(published) for each in made] for label in labels}
        return DataSet(name, [StartCell(scene).result(published) for scene in scenes], found)

    return read


def paying(*labels):
    return [f"{label} eps {epsilon:g}" for label in labels for epsilon in EPSILONS]


@pytest.mark.parametrize("name", ["BUSI", "Kvasir-SEG"])
def test_shares_of_the_gap(measured, name):
    data = measured(name, ALONE, POOLED, LONGER, *paying(TAUGHT, FINE, *RIVALS))
    for arm in (TAUGHT, FINE, *RIVALS):
        line = [f"{name}: {arm}", *(data.closed(each) for each in paying(arm))]
        assert row(line).strip() in PAGE
    line = [f"{name}: {TAUGHT}, of the gap to pooled training at length"]
    line += [data.closed(each, LONGER) for each in paying(TAUGHT)]
    assert row(line).strip() in PAGE


@pytest.mark.parametrize("name", ["BUSI", "Kvasir-SEG"])
def test_less_the_closest_rivals(measured, name):
    data = measured(name, ALONE, POOLED, *paying(TAUGHT, FINE, *RIVALS))
    ours = [f"{OURS[epsilon]} eps {epsilon:g}" for epsilon in EPSILONS]
    for rival in RIVALS:
        pairs = zip(ours, paying(rival), strict=True)
        gains = [shown(data.gain(mine, theirs), signed=True) for mine, theirs in pairs]
        assert row([f"{name}: less {rival}", *gains]).strip() in PAGE
