"""The check: what is there is counted; what is to be fixed is named, with file and remedy."""

import json

import numpy as np
import pytest

from canal.data.check import check
from canal.data.readers import read


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
