"""What `canal data check` finds, every loader refuses, unless a user accepts it by its name."""

import numpy as np
import pytest

from canal.data.case import ACCEPTABLE
from canal.data.check import check
from canal.data.load import load
from canal.data.readers import read
from canal.errors import DataError, InvalidValueError


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
