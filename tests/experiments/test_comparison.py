"""What the pages say in words of the comparison on real data is what its cells say.

The tables themselves are held to the cells in `test_results.py`.
"""

from pathlib import Path

import pytest

from canal.experiments import arms as comparison
from canal.experiments.adapters import _rivals, read
from canal.experiments.arms import ECHO, EPSILONS, FINE, PUPIL, TAUGHT, TEACHERS
from canal.experiments.markdown import shown
from canal.experiments.preset import PRESETS

ROOT = Path(__file__).parents[2]
CPU = PRESETS["cpu"]
PAGE = " ".join((ROOT / "docs" / "adapters.md").read_text().split())
README = " ".join((ROOT / "README.md").read_text().split())


@pytest.fixture
def data_sets(published):
    return {data.name: data for data in read(CPU, published)}


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_what_adapters_close(epsilon, data_sets):
    closed = {
        name: data.closed(f"{TAUGHT} eps {epsilon:g}").split(" (")[0]
        for name, data in data_sets.items()
    }
    words = "{Kvasir-SEG} on Kvasir-SEG, {BUSI} on BUSI and {ISIC 2018} on ISIC 2018"
    for page in (PAGE, README):
        assert words.format(**closed) in page
    reached = [name for name, said in closed.items() if int(said[:-2]) >= comparison.GOALS[epsilon]]
    assert reached == ["ISIC 2018"]


def test_ahead_of_every_rival_at_epsilon_8_and_on_one_data_set_at_1(data_sets):
    gains = {
        (name, epsilon): [
            data.gain(f"{TAUGHT} eps {epsilon:g}", rival) for rival in _rivals(data, epsilon)
        ]
        for name, data in data_sets.items()
        for epsilon in EPSILONS
    }
    at_8 = [gain for (_, epsilon), found in gains.items() if epsilon == 8 for gain in found]
    assert len(at_8) == 24
    assert min(gain.mean for gain in at_8) > 0.5
    not_sure = {name: sum(gain.low <= 0 for gain in gains[name, 8.0]) for name in data_sets}
    assert not_sure == {"Kvasir-SEG": 0, "BUSI": 2, "ISIC 2018": 0}
    ahead = {name for name in data_sets if min(gain.low for gain in gains[name, 1.0]) > 0}
    assert ahead == {"ISIC 2018"}


def test_where_patients_are_few_nobody_beats_who_asks_none(data_sets):
    told = {}
    for name in ("Kvasir-SEG", "BUSI"):
        ours = data_sets[name].gain(f"{TAUGHT} eps 1", ECHO)
        rival = data_sets[name].gain(f"{TEACHERS}, all weights, student eps 1", ECHO)
        assert ours.low < 0 < ours.high
        assert rival.low < 0 < rival.high
        told[name] = shown(rival, signed=True)
    assert (
        "({Kvasir-SEG} on Kvasir-SEG and {BUSI} on BUSI over that student)".format(**told) in PAGE
    )


def test_students_cost_at_epsilon_8(data_sets):
    for data in data_sets.values():
        for student in (FINE, PUPIL):
            assert data.gain(f"{student} eps 8", f"{TAUGHT} eps 8").mean < 0
    on_busi = data_sets["BUSI"].gain(f"{PUPIL} eps 1", f"{TAUGHT} eps 1")
    assert on_busi.low < 0 < on_busi.mean
