"""Checking a data set: cases are counted; problems are named with a remedy, or accepted by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from canal.data.case import ACCEPTABLE, Case, DataSet
from canal.data.check import check
from canal.data.load import load
from canal.data.readers import read
from canal.errors import DataError, InvalidValueError


@pytest.fixture
def data():
    cases = tuple(Case(name, (Path(name),), (), patient=name) for name in "abc")
    return DataSet("images/ and masks/", Path("somewhere"), cases)


def test_cases_come_in_the_order_of_their_ids(data):
    assert [case.id for case in data.select(["c", "a"])] == ["c", "a"]


def test_an_unknown_id_is_an_error_with_a_way_out(data):
    with pytest.raises(DataError, match="z is not among the 3 cases of somewhere; give the folder"):
        data.select(["a", "z"])


def _said(found):
    return {problem.file: (problem.what, problem.remedy) for problem in found.problems}


def test_a_tidy_folder_is_described(folder):
    for name in "abc":
        folder.pair(f"images/{name}.png", f"masks/{name}.png")
    folder.image("images/d.png", size=(30, 40), colour=False)
    folder.mask("masks/d.png", size=(30, 40), box=(0, 0, 0, 0))
    rows = [("a", 1), ("b", 1), ("c", 2), ("d", 3)]
    folder.csv("metadata.csv", ("image", "patient"), *rows)
    steps = []
    found = check(read(folder.root), progress=steps.append)
    assert (found.layout, found.cases, found.groups) == ("images/ and masks/", 4, 3)
    assert found.sizes == {"24 x 20": 3, "30 x 40": 1}
    assert list(found.sizes) == ["24 x 20", "30 x 40"]  # the most frequent first
    assert found.channels == {"colour": 3, "grey": 1}
    assert found.empty_masks == ("d",)
    assert (found.sites, found.near_duplicates, found.problems) == ({}, (), ())
    assert steps == [1] * 4


def test_hospitals_are_counted(folder):
    for place in ("oslo/images/1", "oslo/images/2", "paris/images/1"):
        folder.pair(f"{place}.png", f"{place.replace('images', 'masks')}.png")
    assert check(read(folder.root)).sites == {"oslo": 2, "paris": 1}


def test_volumes_are_described(folder):
    folder.json("dataset.json", {"labels": {"background": 0, "lesion": 1}})
    for name in "ab":
        folder.scan(f"imagesTr/{name}.nii.gz")
        folder.volume(f"labelsTr/{name}.nii.gz", np.full((8, 9, 10), name == "a", np.uint8))
    found = check(read(folder.root))
    assert (found.sizes, found.channels) == ({"8 x 9 x 10": 2}, {"grey": 2})
    assert found.empty_masks == ("b",)
    assert found.problems == ()


def test_near_duplicates_are_listed_and_are_no_problem(folder):
    for name in "abc":
        folder.pair(f"images/{name}.png", f"masks/{name}.png")
    (folder.root / "images/b.png").write_bytes((folder.root / "images/a.png").read_bytes())
    found = check(read(folder.root))
    assert found.near_duplicates == (("a", "b"),)
    assert found.problems == ()


def test_every_problem_names_its_file_and_a_remedy(folder):
    for name in ("good", "cut", "text", "badmask", "othersize", "flat"):
        folder.pair(f"images/{name}.png", f"masks/{name}.png")
    folder.cut("images/cut.png")
    (folder.root / "images/text.png").write_text("<html>not found</html>")
    folder.cut("masks/badmask.png")
    folder.mask("masks/othersize.png", size=(48, 40))
    folder.pixels("images/flat.png", np.full((24, 20, 3), 7))
    folder.image("images/lonely.png")
    folder.mask("masks/stray.png")
    folder.image("images/good.jpg")
    found = check(read(folder.root))
    said = _said(found)
    assert said.keys() == {
        "images/cut.png",
        "images/text.png",
        "masks/badmask.png",
        "masks/othersize.png",
        "images/flat.png",
        "images/lonely.png",
        "masks/stray.png",
        "images/good.png",
    }
    for broken in ("images/cut.png", "images/text.png", "masks/badmask.png"):
        what, remedy = said[broken]
        assert what.startswith("cannot be decoded (")
        assert remedy == "replace the file or take it out"
    assert said["masks/othersize.png"] == (
        "has size (48, 40), its image (24, 20)",
        "export the mask at the size of its image",
    )
    assert said["images/flat.png"][0] == "is an image of one colour"
    assert said["images/lonely.png"][0] == "has no mask"
    assert said["masks/stray.png"][0] == "is a mask without an image"
    assert said["images/good.png"][0] == (
        "has the same id as images/good.jpg, and would take its place"
    )
    assert all(remedy for _, remedy in said.values())
    assert found.cases == 6


def test_several_masks_of_unlike_size_are_named(folder):
    folder.image("benign/benign (1).png")
    folder.mask("benign/benign (1)_mask.png")
    folder.mask("benign/benign (1)_mask_1.png", size=(30, 30))
    (folder.root / "malignant").mkdir()
    said = _said(check(read(folder.root)))
    assert said.keys() == {"benign/benign (1)_mask_1.png"}
    assert "bring all masks" in said["benign/benign (1)_mask_1.png"][1]


def test_a_broken_volume_is_named(folder):
    folder.json("dataset.json", {"labels": {"background": 0, "lesion": 1}})
    folder.scan("imagesTr/a.nii.gz")
    folder.volume("labelsTr/a.nii.gz", np.ones((8, 9, 10), np.uint8))
    folder.cut("imagesTr/a.nii.gz")
    assert _said(check(read(folder.root))).keys() == {"imagesTr/a.nii.gz"}


def test_masks_of_zeros_and_ones_are_what_they_are(folder):
    """A JPEG has grey where there is nothing, and no value of its own."""
    for name in ("zeros", "ones", "jpeg"):
        folder.image(f"images/{name}.png")
    folder.pixels("masks/zeros.png", np.zeros((24, 20)))
    folder.pixels("masks/ones.png", np.eye(24, 20))
    folder.pixels("masks/jpeg.jpg", 3 * np.eye(24, 20))
    found = check(read(folder.root))
    assert found.empty_masks == ("jpeg", "zeros")
    assert found.problems == ()
    (folder.root / "masks/ones.png").unlink()
    folder.pixels("masks/ones.png", np.zeros((24, 20)))
    (problem,) = check(read(folder.root)).problems
    assert (problem.name, problem.what) == (
        "empty-masks",
        "holds 3 masks, and none has any foreground",
    )


def test_a_dark_mask_among_white_ones_and_one_of_several_greys_are_named(folder):
    for name in ("white", "ones", "greys"):
        folder.pair(f"images/{name}.png", f"masks/{name}.png")
    folder.pixels("masks/ones.png", np.eye(24, 20))
    folder.pixels("masks/greys.png", np.eye(24, 20) + np.eye(24, 20, 3) * 2)
    found = check(read(folder.root))
    assert {problem.name for problem in found.problems} == {"mask-values"}
    assert _said(found) == {
        "masks/ones.png": (
            "holds no value above 1, where other masks of this data set are white",
            "save masks as 0 and 255",
        ),
        "masks/greys.png": (
            "holds several values up to 2, and counts as empty below 128",
            "save masks as 0 and 255",
        ),
    }


def test_a_label_that_nobody_named_is_a_problem(folder):
    """A mask of 0 and 255 where the labels are 0 and 1 would be empty."""
    folder.json("dataset.json", {"labels": {"background": 0, "lesion": 1}})
    for name in "ab":
        folder.pair(f"imagesTr/{name}.png", f"labelsTr/{name}.png")
    folder.pixels("labelsTr/b.png", np.eye(24, 20))
    (problem,) = check(read(folder.root)).problems
    assert (problem.file, problem.name) == ("labelsTr/a.png", "mask-values")
    assert problem.what == "holds the value 255, which is none of the labels of this data set"


def test_folders_without_any_case_are_a_problem(folder):
    for name in ("images", "masks"):
        (folder.root / name).mkdir(parents=True)
    found = check(read(folder.root))
    assert found.cases == 0
    assert _said(found)[str(folder.root)][0] == "holds no case with image and mask"


def test_the_report_is_plain_json(folder):
    folder.pair("images/a.png", "masks/a.png")
    folder.image("images/b.png")
    report = json.loads(json.dumps(check(read(folder.root)).to_json()))
    assert report["cases"] == 1
    assert report["problems"][0]["file"] == "images/b.png"
    assert set(report["problems"][0]) == {"file", "what", "remedy", "name"}


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "channels"), [("ETIS-LaribPolypDB", "colour"), ("Task04_Hippocampus", "grey")]
)
def test_real_downloads_have_nothing_to_fix(real, name, channels):
    found = check(read(real / name))
    assert found.problems == ()
    assert found.channels == {channels: found.cases}
    assert found.empty_masks == ()


@pytest.fixture(autouse=True)
def cached(monkeypatch, tmp_path):
    monkeypatch.setenv("CANAL_CACHE", str(tmp_path / "cache"))


def missing_mask(folder):
    folder.image("images/lonely.png")


def missing_image(folder):
    folder.mask("masks/stray.png")


def mask_size(folder):
    folder.mask("masks/b.png", size=(12, 10), box=(2, 8, 2, 8))


def mask_values(folder):
    folder.pixels("masks/b.png", np.eye(24, 20) + np.eye(24, 20, 3) * 2)


def blank_image(folder):
    folder.pixels("images/b.png", np.full((24, 20, 3), (9, 0, 200)))


def empty_masks(folder):
    for name in "abc":
        folder.mask(f"masks/{name}.png", box=(0, 0, 0, 0))


KINDS = {
    "missing-mask": (missing_mask, "images/lonely.png has no mask", 3),
    "missing-image": (missing_image, "masks/stray.png is a mask without an image", 3),
    "mask-size": (mask_size, r"masks/b.png has size \(12, 10\), its image \(24, 20\)", 3),
    "mask-values": (mask_values, "masks/b.png holds several values up to 2", 3),
    "blank-image": (blank_image, "images/b.png is an image of one colour", 3),
    "empty-masks": (empty_masks, "holds 3 masks, and none has any foreground", 3),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_the_check_finds_is_refused_until_it_is_accepted(folder, name):
    """The second time as well, when nothing is decoded any more."""
    for each in "abc":
        folder.pair(f"images/{each}.png", f"masks/{each}.png")
    spoil, said, kept = KINDS[name]
    spoil(folder)
    assert {problem.name for problem in check(read(folder.root)).problems} == {name}
    others = [each for each in ACCEPTABLE if each != name]
    for _ in range(2):
        with pytest.raises(DataError, match=f"{said}.*--accept {name}: {ACCEPTABLE[name]}"):
            load(folder.root, size=16, accept=others)
    for _ in range(2):
        assert len(load(folder.root, size=16, accept=[name]).ids) == kept
    with pytest.raises(DataError, match=said):
        load(folder.root, size=16)


def test_masks_of_zeros_and_ones_are_read_and_not_refused(folder):
    for each in "ab":
        folder.image(f"images/{each}.png")
        folder.pixels(f"masks/{each}.png", np.eye(16) if each == "a" else np.zeros((16, 16)))
        folder.image(f"images/{each}.png", size=(16, 16))
    assert load(folder.root, size=16).masks.sum((1, 2, 3)).tolist() == [16, 0]


def test_the_first_files_are_named_and_all_are_counted(folder):
    for each in "abcdef":
        folder.image(f"images/{each}.png")
    folder.mask("masks/f.png")
    with pytest.raises(DataError, match=r"images/a.png has no mask \(and so 4 more: ") as caught:
        load(folder.root, size=16)
    assert "images/b.png, images/c.png, …)" in str(caught.value)
    assert "images/e.png" not in str(caught.value)


def test_images_alone_need_no_mask(folder):
    folder.image("a.png")
    assert load(folder.root, size=16, unlabelled=True).ids == ("a",)


def test_a_name_that_nobody_finds_is_refused(folder):
    folder.pair("images/a.png", "masks/a.png")
    with pytest.raises(InvalidValueError, match=r"accept = 'all' is nothing that .* missing-mask"):
        load(folder.root, size=16, accept=["all"])


def test_who_is_on_an_image_is_nothing_to_accept(folder):
    """Which of two files is a case, and whose it is, decides who pays."""
    folder.pair("images/a.png", "masks/a.png")
    folder.image("images/a.jpg")
    with pytest.raises(DataError, match=r"has the same id as .*; remove one of the two$"):
        load(folder.root, size=16, accept=list(ACCEPTABLE))
