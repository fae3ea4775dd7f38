"""A site's day on the command line, with synthetic images: check, split, train, evaluate."""

import csv
import json
import signal
import time
from pathlib import Path

import pytest

from canal.cli.network import refuse_overlap
from canal.errors import InvalidValueError
from typed import call, call_here, start

SMALL = ["--steps", "12", "--save-every", "4", "--batch-size", "4"]


@pytest.fixture
def home(tmp_path):
    """A folder with synthetic data of three hospitals, and a cache of its own."""
    call_here(tmp_path, "data", "synthetic", "data", "--count", "36", "--size", "32")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_a_sites_day(home):
    checked = json.loads(call_here(home, "data", "check", "data", "--json"))
    assert checked["cases"] == 36
    assert len(checked["sites"]) == 3
    cut = ("--test", "0.25", "--recipient", "6", "--partition", "site", "--out", "split.json")
    call_here(home, "data", "split", "data", *cut)
    split = json.loads((home / "split.json").read_text())
    cohort = sorted(split["cohorts"])[0]
    model = ("--size", "32", "--base-channels", "8")
    call_here(home, "init", "--out", "init", *model)
    chosen = ("--data", "data", "--split", "split.json")
    where = ("--init", "init", "--cohort", cohort, "--out", "teacher", "--size", "32")
    call_here(home, "teacher", "train", *chosen, *where, *SMALL)
    assert {path.name for path in (home / "teacher").iterdir()} >= {
        "checkpoint.json",
        "weights.safetensors",
        "metrics.jsonl",
        "settings.json",
        "log.txt",
    }
    about = json.loads((home / "teacher" / "checkpoint.json").read_text())
    assert (
        about["initialisation"]
        == json.loads((home / "init/checkpoint.json").read_text())["initialisation"]
    )
    evaluate = ("teacher", "evaluate", "--teacher", "teacher", *chosen, "--json")
    summary = json.loads(call_here(home, *evaluate))
    rows = list(csv.DictReader((home / "teacher" / "scores.csv").read_text().splitlines()))
    assert summary["images"] == len(rows) == len(split["test"])
    assert summary["dice"] == pytest.approx(sum(float(row["dice"]) for row in rows) / len(rows))
    assert (home / "teacher" / "grid.png").stat().st_size > 1000


def test_an_initialisation_trained_on_the_recipients_images(home):
    call_here(home, "data", "split", "data", "--recipient", "8", "--out", "split.json")
    told = call_here(
        *(home, "init", "--out", "init", "--data", "data", "--split", "split.json"),
        *("--size", "32", "--base-channels", "8", *SMALL),
    )
    assert "initialisation" in told
    about = json.loads((home / "init" / "checkpoint.json").read_text())
    assert about["notes"]["trained"]
    assert about["data"]
    again = ("--data", "data", "--split", "split.json", "--size", "32", *SMALL)
    told = call_here(home, "init", "--after", "init", "--out", "settled", *again)
    after = json.loads((home / "settled" / "checkpoint.json").read_text())
    assert after["architecture"] == about["architecture"]
    assert after["initialisation"][:12] in told
    assert after["initialisation"] != about["initialisation"]
    call_here(home, "data", "synthetic", "more", "--count", "5", "--size", "32", "--seed", "9")
    more = ("--unlabelled", "more", "--out", "self-taught")
    call_here(home, "init", "--after", "init", *more, *again)
    taught = json.loads((home / "self-taught" / "checkpoint.json").read_text())
    assert taught["data"] != after["data"]
    assert "give it with --after" in call_here(home, "init", *more, *again, code=2)
    asked = ("--after", "init", "--unlabelled", "data/endoscopy", "--out", "leaked")
    assert "they may be a cohort's" in call_here(home, "init", *asked, *again, code=2)
    assert not (home / "leaked").exists()
    again = (*again, "--after", "init", "--out", "wider", "--base-channels", "24")
    told = call_here(home, "init", *again, code=2)
    assert "base_channels = 24, but init has 8; --after keeps the network" in told
    assert not (home / "wider").exists()


@pytest.mark.parametrize("more", ["data", "data/endoscopy", ".", "elsewhere/../data"])
def test_images_of_cohorts_are_not_public_ones(tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValueError, match="they may be a cohort's"):
        refuse_overlap(Path(more), Path("data"), "--unlabelled")
    refuse_overlap(Path("database"), Path("data"), "--unlabelled")


@pytest.mark.slow  # without the command, the quick suite kills one too
def test_a_killed_training_goes_on_to_the_same_weights(home):
    call(home, "init", "--out", "init", "--size", "32", "--base-channels", "8")
    train = ("teacher", "train", "--data", "data", "--init", "init", "--size", "32")
    long = ("--steps", "60", "--save-every", "5", "--batch-size", "4")
    call(home, *train, *long, "--out", "whole")
    process = start(home, *train, *long, "--out", "killed")
    while not (home / "killed" / "state.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (home / "killed" / "checkpoint.json").exists()
    call(home, *train, *long, "--out", "killed")
    weights = [home / name / "weights.safetensors" for name in ("whole", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_settings_from_a_file_and_flags(home):
    (home / "canal.toml").write_text("[data]\nsize = 32\n[model]\nbase_channels = 8\n")
    call_here(home, "init", "--out", "init", "--config", "canal.toml", "--norm", "instance")
    about = json.loads((home / "init" / "checkpoint.json").read_text())
    assert about["size"] == [32, 32]
    assert about["architecture"]["norm"] == "instance"
    (home / "canal.toml").write_text("[training]\nstep = 3\n")
    told = call_here(home, "init", "--out", "x", "--config", "canal.toml", code=2)
    assert "did you mean steps?" in told


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("data check nowhere", "does not exist"),
        ("data check empty", "no data set was recognised"),
        ("teacher train --init nowhere --data data --out t", "holds no checkpoint"),
        ("teacher evaluate --teacher nowhere --data data", "holds no checkpoint"),
        ("data split data --out s.json --cohorts 500", "ask for fewer"),
        ("init --out x --size 33", "multiple of 16"),
        ("init --after init --out x", "give the images to train on: --data"),
        ("init --after init --data data --public-seed 3 --out x", "--after keeps one"),
    ],
)
def test_clear_words(home, arguments, word):
    assert word in " ".join(call_here(home, *arguments.split(), code=2).split())


def test_problems_are_named_and_the_exit_code_is_one(home):
    mask = next((home / "data").glob("*/masks/*.png"))
    mask.unlink()
    told = call_here(home, "data", "check", "data", code=1)
    assert mask.stem in told
    assert "has no mask" in told
