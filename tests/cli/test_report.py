"""A run as one page, on the command line."""

import json
import shutil

import pytest

from typed import call_here


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A student that learned alone, and was measured; made without the command line, for speed."""
    from canal.data.load import load_cases
    from canal.data.readers import read
    from canal.data.split import make_split
    from canal.data.synthetic import write
    from canal.learning import checkpoint, evaluation
    from canal.learning.networks import UNetArchitecture
    from canal.learning.prediction import predict
    from canal.learning.settings import TrainingSettings
    from canal.learning.teacher import initialise
    from canal.student import train

    home = tmp_path_factory.mktemp("report")
    write(home / "data", 24, size=(32, 32))
    cases = read(home / "data").cases
    split = make_split(cases, test=0.25, recipient=6)
    split.write(home / "split.json")
    arrays = load_cases(cases, size=(32, 32), channels=3, folder=home / "cache")
    init, alone = home / "run" / "init", home / "run" / "alone"
    initialise(init, UNetArchitecture(in_channels=3, base_channels=8), seed=0, size=(32, 32))
    training = TrainingSettings(steps=2, batch_size=4)
    train(alone, init, arrays.rows(split.recipient), training, mode="alone")
    test = arrays.rows(split.test)
    network, _ = checkpoint.load(alone)
    found = evaluation.scores(predict(network, test), test)
    evaluation.write_csv(alone / "scores.csv", found)
    return home


def test_a_page_is_written_and_named_last(home):
    said = call_here(home, "report", "run")
    assert said.splitlines()[-1] == "run/report.html"
    assert "<img" not in (home / "run" / "report.html").read_text()


def test_pictures_are_shown_when_asked_for(home):
    chosen = ("--data", "data", "--split", "split.json", "--out", "shown.html")
    assert call_here(home, "report", "run", *chosen).splitlines()[-1] == "shown.html"
    assert (home / "shown.html").read_text().count("<img") == 5 * 3


def test_the_same_for_programs(home):
    found = json.loads(call_here(home, "report", "run", "--json"))
    measured = json.loads((home / "split.json").read_text())["test"]
    assert [(arm["name"], arm["images"]) for arm in found["arms"]] == [("Alone", len(measured))]
    assert found["page"] == "run/report.html"
    assert found["releases"] == []


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda run: [path.unlink() for path in run.rglob("*.json")], "holds no network"),
        (lambda run: (run / "alone" / "scores.csv").write_text("a,b\n1,2\n"), "scores.csv"),
        (lambda run: (run / "x.json").write_text('{"format": "canal-attack/2"}'), "x.json"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(home, tmp_path, break_it, words):
    run = shutil.copytree(home / "run", tmp_path / "run")
    break_it(run)
    said = call_here(home, "report", run, code=2)
    assert said.startswith("canal: ")
    assert len(said.splitlines()) == 1
    assert words in said


def test_pictures_need_a_student_that_was_measured(home, tmp_path):
    run = shutil.copytree(home / "run", tmp_path / "run")
    (run / "alone" / "scores.csv").unlink()
    said = call_here(home, "report", run, "--data", "data", code=2)
    assert "canal student evaluate" in said
    call_here(home, "report", run)


def test_a_folder_for_the_page_that_is_not_there(home):
    said = call_here(home, "report", "run", "--out", "nowhere/page.html", code=2)
    assert "nowhere" in said
