"""A recipient's day on the command line: students learn from a release, masks come out."""

import json

import pytest
from PIL import Image

from typed import call, call_here

SHORT = ("--steps", "6", "--save-every", "3", "--batch-size", "4", "--size", "32")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two hospitals' teachers, and two releases about the recipient's images."""
    home = tmp_path_factory.mktemp("recipient")
    call_here(home, "data", "synthetic", "data", "--count", "36", "--size", "32")
    cut = ("--test", "0.25", "--recipient", "6", "--partition", "site", "--out", "split.json")
    call_here(home, "data", "split", "data", *cut)
    call_here(home, "init", "--out", "init", "--size", "32", "--base-channels", "8")
    sites = ("endoscopy", "ultrasound")
    chosen = ("--data", "data", "--split", "split.json", "--init", "init")
    for site in sites:
        call_here(home, "teacher", "train", *chosen, "--cohort", site, "--out", site, *SHORT)
    teachers = [word for site in sites for word in ("--teacher", site)]
    asked = ("--queries", "data", "--split", "split.json", "--init", "init")
    call_here(home, "release", "create", *teachers, *asked, "--seed", "1", "--out", "release")
    clear = ("--allocation", "none", "--not-private", "--out", "clear")
    call_here(home, "release", "create", *teachers, *asked, *clear)
    return home


@pytest.fixture(scope="module")
def student(home):
    """Trained on what the recipient has, alone."""
    call_here(home, "student", "train", *CHOSEN, "--mode", "alone", "--out", "student")
    return "student"


CHOSEN = ("--init", "init", "--data", "data", "--split", "split.json", *SHORT)


@pytest.mark.parametrize(
    ("mode", "more", "images"),
    [
        ("release", ("--release", "release", "--frequencies", "1"), 6),
        ("noiseless", ("--release", "clear"), 6),
        ("alone", (), 6),
        ("pooled", (), 27),
    ],
)
def test_students_and_their_controls(home, mode, more, images):
    said = call_here(home, "student", "train", *CHOSEN, "--mode", mode, *more, "--out", mode)
    assert f"student of {images} images, {mode}" in said


def test_measured_and_put_to_use(home, student):
    chosen = ("--student", student, "--data", "data", "--split", "split.json")
    found = json.loads(call_here(home, "student", "evaluate", *chosen, "--json"))
    assert found["images"] == len(json.loads((home / "split.json").read_text())["test"])
    assert 0 <= found["dice"] <= 1
    assert (home / "student" / "grid.png").is_file()
    images = home / "data" / "ultrasound" / "images"
    call(home, "student", "predict", "--student", student, "--images", images, "--out", "masks")
    masks = sorted((home / "masks").iterdir())
    assert [path.stem for path in masks] == sorted(path.stem for path in images.iterdir())
    with Image.open(masks[0]) as mask:
        assert mask.size == (32, 32)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--mode", "release"), "needs a release"),
        (("--mode", "noiseless", "--release", "release"), "--allocation none"),
        (("--release", "nowhere"), "holds no release"),
        (("--release", "release", "--frequencies", "9"), "frequencies = 9"),
        (("--release", "release", "--feature-weight", "-1"), "feature_weight"),
    ],
)
def test_errors_are_one_sentence(home, arguments, word):
    said = call_here(home, "student", "train", *CHOSEN, *arguments, "--out", "nothing", code=2)
    assert word in said
    assert len(said.strip().splitlines()) == 1
    assert not (home / "nothing").exists()


def test_an_empty_folder_of_images(home, student):
    (home / "empty").mkdir()
    said = call_here(
        *(home, "student", "predict", "--student", student, "--images", "empty", "--out", "m"),
        code=2,
    )
    assert "no data set was recognised" in said


def test_masks_never_replace_images(home, student, tmp_path):
    """Into the images' own folder: refused before anything is written."""
    images = tmp_path / "images"
    images.mkdir()
    pixels = Image.new("RGB", (32, 32), "red")
    pixels.save(images / "a.png")
    pixels.save(images / "b.jpg")
    before = {path.name: path.read_bytes() for path in images.iterdir()}
    words = ("student", "predict", "--student", student, "--images", images)
    said = call_here(home, *words, "--out", images, code=2)
    assert "a.png is one of the images; give another --out" in said
    assert before == {path.name: path.read_bytes() for path in images.iterdir()}
    call_here(home, *words, "--out", tmp_path / "masks")
    assert sorted(path.name for path in (tmp_path / "masks").iterdir()) == ["a.png", "b.png"]


@pytest.mark.parametrize("part", ["pooled", "endoscopy"])
def test_a_hospitals_images_are_neither_asked_about_nor_public(home, part):
    chosen = ("--split", "split.json", "--part", part, "--out", "refused")
    for words in (
        ("release", "create", "--teacher", "endoscopy", "--queries", "data", "--seed", "1"),
        ("init", "--data", "data", "--size", "32"),
    ):
        said = call_here(home, *words, *chosen, code=2)
        assert "holds images that a hospital trains on" in said
    assert not (home / "refused").exists()
