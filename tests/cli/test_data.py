"""Data that `canal data check` would refuse: no command learns from them, and nobody pays."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from canal.privacy import Ledger
from tiny import SITES
from typed import call_here

SMALL = ("--size", "32", "--steps", "2", "--save-every", "2", "--batch-size", "2")
SAID = "masks/c0.png has size (16, 16), its image (32, 32)"


def save(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, np.uint8)).save(path)


@pytest.fixture
def home(tmp_path, arrays, checkpoints):
    """A folder with three images, one mask of which has another size; networks; a budget."""
    (tmp_path / "init").symlink_to(checkpoints.init)
    for site, teacher in zip(SITES, checkpoints.teachers, strict=True):
        (tmp_path / site).symlink_to(teacher)
        for unit in ("patient", "membership"):
            budget = {"epsilon": 1000.0, "delta": 1e-5}
            Ledger(tmp_path / "ledger.sqlite").set_budget(site, unit, **budget)
    for number in range(6):
        folder = tmp_path / ("data" if number < 3 else "good")
        name, image = f"c{number}.png", arrays.images[number, 0]
        save(folder / "images" / name, image)
        mask = arrays.masks[number, 0] * 255
        save(folder / "masks" / name, mask[::2, ::2] if number == 0 else mask)
    return tmp_path


TEACHERS = [word for site in SITES for word in ("--teacher", site)]
ROUNDS = ("--patients", "3", "--rounds", "1", "--part", "head", "--cohort", "north")
ROUNDS += ("--queries", "good", "--out", "made")
ALONE = (*SMALL, "--mode", "alone")


@pytest.mark.parametrize(
    "command",
    [
        ("teacher", "train", "--init", "init", "--data", "data", "--out", "made", *SMALL),
        ("student", "train", "--init", "init", "--data", "data", "--out", "made", *ALONE),
        ("release", "create", *TEACHERS, "--init", "init", "--queries", "data", "--out", "made"),
        ("adapters", "train", "--init", "init", "--data", "data", *ROUNDS),
    ],
    ids=["teacher", "student", "features", "gradients"],
)
def test_data_are_refused_before_anybody_pays_and_taken_when_accepted(home, command):
    said = " ".join(call_here(home, *command, code=2).split())
    assert SAID in said
    assert "--accept mask-size" in said
    assert {row.action for row in Ledger(home / "ledger.sqlite").rows()} == {"budget"}
    assert not (home / "made").exists()
    call_here(home, *command, "--accept", "mask-size")
    assert (home / "made").is_dir()


def test_the_check_says_the_name_and_a_split_asks_for_it(home):
    assert "(--accept mask-size)" in " ".join(
        call_here(home, "data", "check", "data", code=1).split()
    )
    found = json.loads(call_here(home, "data", "check", "data", "--json", code=1))
    assert [problem["name"] for problem in found["problems"]] == ["mask-size"]
    save(home / "data" / "images" / "lonely.png", np.eye(32) * 255)
    cut = ("data", "split", "data", "--recipient", "1", "--cohorts", "1", "--out", "split.json")
    assert "--accept missing-mask" in call_here(home, *cut, code=2)
    call_here(home, *cut, "--accept", "missing-mask")


def test_names_in_a_file_of_settings(home):
    (home / "canal.toml").write_text('[data]\nsize = 32\naccept = ["mask-size"]\n')
    train = ("teacher", "train", "--init", "init", "--data", "data", "--out", "made")
    short = ("--steps", "2", "--save-every", "2", "--batch-size", "2")
    call_here(home, *train, *short, "--config", "canal.toml")
    (home / "canal.toml").write_text('[data]\naccept = ["everything"]\n')
    assert "choose of missing-mask" in call_here(home, *train, "--config", "canal.toml", code=2)


TWICE = "3 images of cohort 'north' are in cohort 'south' too"
OWN = "3 images of the queries are in cohort 'north'"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--data", "copy", "--cohort", "south", "--queries", "others"), TWICE),
        (("--queries", "copy"), OWN),
        ((), "give their folder with --queries"),
    ],
    ids=["two cohorts", "queries", "no queries"],
)
def test_a_copied_folder_is_no_other_folder(home, given, said):
    """Its images have other names; without a split, nobody's images pass for the recipient's."""
    for path in sorted((home / "good").rglob("*.png")):
        copied = home / "copy" / path.parent.name / f"other-{path.name}"
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copied)
    call_here(
        home, "data", "synthetic", "others", "--count", "3", "--size", "32", "--channels", "1"
    )
    asked = ("adapters", "train", "--init", "init", "--data", "good", "--cohort", "north")
    more = ("--patients", "3", "--rounds", "1", "--part", "head", "--out", "made")
    assert said in " ".join(call_here(home, *asked, *given, *more, code=2).split())
    assert {row.action for row in Ledger(home / "ledger.sqlite").rows()} == {"budget"}
    assert not (home / "made").exists()
