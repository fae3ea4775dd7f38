"""What the page says of the comparison, before all of its cells are there, is what they say."""

from pathlib import Path

import pytest

from canal.experiments.arms import (
    ALONE,
    EPSILONS,
    FINE,
    LONGER,
    POOLED,
    TAUGHT,
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
RIVAL = f"{UNION}, all weights"


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


@pytest.mark.parametrize(
    ("label", "data_set", "arm", "above"),
    [
        ("BUSI, about 295 patients", "BUSI", TAUGHT, POOLED),
        ("Kvasir-SEG, 588 patients", "Kvasir-SEG", TAUGHT, POOLED),
        ("the same, of the gap to pooled training at length", "Kvasir-SEG", TAUGHT, LONGER),
        (f"{UNION} on Kvasir-SEG, the closest rival so far", "Kvasir-SEG", RIVAL, POOLED),
    ],
)
def test_shares_of_the_gap(measured, label, data_set, arm, above):
    data = measured(data_set, ALONE, above, *paying(arm))
    assert row([label, *(data.closed(each, above) for each in paying(arm))]).strip() in PAGE


def test_fine_tuning_and_the_closest_rival(measured):
    data = measured("Kvasir-SEG", ALONE, POOLED, *paying(TAUGHT, FINE, RIVAL))
    shares = [data.closed(each).split(" (")[0] for each in paying(FINE)]
    assert "it closes {} and {}.".format(*shares) in PAGE
    gains = [
        shown(data.gain(ours, theirs), signed=True)
        for ours, theirs in zip(paying(TAUGHT), paying(RIVAL), strict=True)
    ]
    assert "is {} at epsilon 8 and {} at epsilon 1.".format(*gains) in PAGE
