"""The documents say what the results say, in tables and in words, and leave none of them out."""

import numpy as np
import pytest

from canal.attacks.roc import STRONG, allowed_auc
from canal.errors import InvalidValueError
from paper import gradient_tables as tables
from paper.__main__ import main
from paper.attack_tables import (
    BY_FEATURES,
    BY_ROUNDS,
    CLEAR,
    _over,
    image_trials,
    membership_found,
)
from paper.documents import ROOT, filled
from paper.grids import GRIDS

E8, E1 = " eps 8", " eps 1"


def page(*names):
    return " ".join(" ".join((ROOT / name).read_text() for name in names).split())


def test_documents_and_figures_are_up_to_date(capsys, monkeypatch):
    assert main(["tables", "--check"]) == 0
    assert capsys.readouterr().out == ""
    old = {ROOT / "docs" / "results.md": "another text"}
    monkeypatch.setattr("paper.__main__.written", lambda results: old)
    assert main(["tables", "--check"]) == 1
    assert "docs/results.md is outdated" in capsys.readouterr().out
    shown = page(*{grid.document for grid in GRIDS.values()})
    assert all(name in shown for grid in GRIDS.values() for name in grid.figures)


def test_a_table_without_a_place_is_not_forgotten():
    place = "<!-- table: a -->\nold\n<!-- end of table -->\n"
    assert filled(place, {"a": "| new |\n"}, "page") == place.replace("old\n", "\n| new |\n\n")
    with pytest.raises(InvalidValueError, match="page has places for the tables none"):
        filled("no place", {"a": ""}, "page")


def test_every_result_is_of_a_grid(lines):
    """What no table reads is deleted, and each trial is one line of a file."""
    trials = {trial.key: trial for grid in GRIDS.values() for trial in grid.trials(grid.seeds)}
    assert sorted(line["key"] for line in lines) == sorted(trials)
    for line in lines:
        settings = {name: line[name] for name in ("scenario", "arm")}
        assert settings == trials[line["key"]].settings


@pytest.fixture(scope="module")
def data_sets(published):
    return {data.name: data for data in tables.comparisons(published)}


@pytest.mark.parametrize("epsilon", tables.EPSILONS)
def test_what_rounds_close(epsilon, data_sets):
    closed = {
        name: data.closed(f"{tables.ROUNDS} eps {epsilon:g}", tables.LOCAL, tables.CENTRALISED)
        for name, data in data_sets.items()
    }
    told = {name: said.split(" (")[0] for name, said in closed.items()}
    words = "{Kvasir-SEG} on Kvasir-SEG, {BUSI} on BUSI and {ISIC 2018} on ISIC 2018".format(**told)
    assert words in page("docs/adapters.md")
    assert words in page("README.md")
    goal, _ = tables.GOALS[epsilon]
    assert [name for name, said in told.items() if int(said[:-2]) >= goal] == ["ISIC 2018"]


def test_ahead_of_every_rival_at_epsilon_8_and_on_one_data_set_at_1(data_sets):
    gains = {
        (name, epsilon): [
            data.gain(f"{tables.ROUNDS} eps {epsilon:g}", rival) for rival in tables.rivals(epsilon)
        ]
        for name, data in data_sets.items()
        for epsilon in tables.EPSILONS
    }
    at_8 = [gain for (_, epsilon), found in gains.items() if epsilon == 8 for gain in found]
    assert len(at_8) == 24
    assert min(gain.mean for gain in at_8) > 0.5
    not_sure = {name: sum(gain.low <= 0 for gain in gains[name, 8.0]) for name in data_sets}
    assert not_sure == {"Kvasir-SEG": 0, "BUSI": 2, "ISIC 2018": 0}
    ahead = {name for name in data_sets if min(gain.low for gain in gains[name, 1.0]) > 0}
    assert ahead == {"ISIC 2018"}


def test_where_patients_are_few_nobody_beats_self_training(data_sets):
    told = {}
    for name in ("Kvasir-SEG", "BUSI"):
        ours = data_sets[name].gain(tables.ROUNDS + E1, tables.SELF)
        rival = f"{tables.TEACHERS}, all weights, student{E1}"
        theirs = data_sets[name].gain(rival, tables.SELF)
        assert ours.low < 0 < ours.high
        assert theirs.low < 0 < theirs.high
        told[name] = theirs.signed
    words = "{Kvasir-SEG} on Kvasir-SEG and {BUSI} on BUSI over that student".format(**told)
    assert words in page("docs/adapters.md")


def test_students_cost_at_epsilon_8(data_sets):
    for data in data_sets.values():
        for student in (tables.TUNED, tables.DISTILLED):
            assert data.gain(student + E8, tables.ROUNDS + E8).mean < 0
    on_busi = data_sets["BUSI"].gain(tables.DISTILLED + E1, tables.ROUNDS + E1)
    assert on_busi.low < 0 < on_busi.mean


@pytest.mark.parametrize(
    ("changed", "before", "sentence"),
    [
        ("no noise, all else equal", tables.CHOSEN, "without any gain {} at epsilon 8 and {}"),
        ("twice the displacement", tables.CHOSEN, "displacement gains {} at epsilon 8 and {}"),
        ("ellipsoid", tables.MODULES_ONLY, "`ellipsoid` {} at epsilon 8 and {}"),
        ("channels", tables.MODULES_ONLY, "`channels` {} and {}"),
        (
            *(tables.CHOSEN, tables.UNSETTLED),
            "settling gains {} at epsilon 8 and {}",
        ),
        (tables.FINE_TUNED, tables.CHOSEN, "it gains {} at epsilon 8 and {} at"),
        (tables.STUDENT, tables.CHOSEN, "the same images gains {} and {}."),
    ],
)
def test_the_page_says_what_a_choice_is_worth(changed, before, sentence, published):
    told = [
        tables.choice_gain(published, changed, before, epsilon).signed
        for epsilon in tables.EPSILONS
    ]
    assert sentence.format(*told) in page("docs/adapters.md", "docs/adapters-method.md")


@pytest.mark.parametrize("epsilon", tables.EPSILONS)
def test_what_is_held_against_rivals_was_best_on_synthetic_hospitals(epsilon, published):
    """In the mean over all of them."""
    rows = {
        tables.ROUNDS: tables.CHOSEN,
        tables.TUNED: tables.FINE_TUNED,
        tables.DISTILLED: tables.STUDENT,
    }
    mean = {
        ours: np.mean(dice(published, tables.choice(label, epsilon)))
        for ours, label in rows.items()
    }
    _, chosen = tables.GOALS[epsilon]
    assert chosen == max(mean, key=mean.get)


def dice(published, row):
    """At every synthetic hospital."""
    return [row.result(published, each)["dice"] for each in tables.tried_at(tables.CHOSEN)]


def test_choices_that_decide_nothing_are_tried_where_there_is_something_to_gain(published):
    """A hospital is left out only where centralised training does nothing for the start."""
    after, before = (
        dice(published, tables.EVERYBODY[each]) for each in (tables.CENTRALISED, tables.START)
    )
    gains = [one > other for one, other in zip(after, before, strict=True)]
    assert gains == [True, True, False]
    assert len(tables.tried_at(tables.CHOSEN)) == 3
    assert len(tables.tried_at("no momentum")) == 2


@pytest.mark.parametrize("epsilon", tables.EPSILONS)
@pytest.mark.parametrize(("rival", "what"), tables.STEPS)
def test_a_rival_has_the_step_that_was_best(rival, what, epsilon, published):
    """The mean over all synthetic hospitals, and over what one training makes."""
    mean = {}
    for step in tables.STEPS[rival, what]:
        rows = tables.dp_sgd(rival, what, epsilon, step, "")
        mean[step] = np.mean([dice(published, row) for row in rows.values()])
    best = max(mean, key=mean.get)
    assert tables.BEST[rival, what][epsilon] == best
    for label in tables.dp_sgd(rival, what, epsilon, best, f" eps {epsilon:g}"):
        settings = tables.EVERYBODY[label].arm.settings
        assert (settings.step, settings.epsilon) == (best, epsilon)


def test_attacks_have_power_and_none_is_above_what_the_noise_allows(published):
    for arms in (BY_FEATURES, BY_ROUNDS):
        for name, by_data in membership_found(published, arms).items():
            for found in (each for some in by_data.values() for each in some):
                for who in ("canaries", "ordinary"):
                    low, _ = found[who]["auc_interval"]
                    if name == CLEAR:
                        assert found[who]["auc"] >= STRONG
                        assert low > 0.5
                    else:
                        assert low <= allowed_auc(found["mu"])


def test_bottlenecks_vary_as_the_page_says(published):
    of_images = [
        each
        for trial in image_trials()
        if trial.arm.kind == "variation"
        for each in published[trial]["variation"]
    ]
    of_cohorts = [
        each
        for by_data in membership_found(published, BY_FEATURES).values()
        for some in by_data.values()
        for found in some
        for each in found["variation"]
    ]
    text = page("docs/attacks.md")
    for words, found in (("{} to {} % over images. Two", of_images), ("{} to {} %", of_cohorts)):
        ends = [f"{100 * end:.0f}" for end in (min(found), max(found))]
        assert f"vary by {words.format(*ends)}" in text


def test_an_interval_is_over_seeds():
    """By hand: 0.4 and 0.6 have a standard error of 0.1, and Student's t is 12.706 for two."""
    assert _over([0.4, 0.6]) == "0.500 ± 1.271"
    assert _over([1.0, 1.0, 1.0]) == "1.000"
    assert _over([0.1], signed=True) == "+0.100"


def test_the_command_prints(capsys):
    assert main(["tables", "--print", "composition"]) == 0
    assert "| 10,000 | 9486 | × 100 | 40.0 dB |" in capsys.readouterr().out
    assert main(["tables", "--preset", "paper", "--print", "table1"]) == 2
    assert "has no result of kvasir-seg-0 networks" in capsys.readouterr().err


def test_without_data_the_way_out_is_told(capsys, tmp_path):
    assert main(["run", "table1"]) == 2
    assert "give --data" in capsys.readouterr().err
    assert main(["run", "table1", "--data", str(tmp_path), "--results", str(tmp_path)]) == 2
    assert "holds none of the data sets" in capsys.readouterr().err
