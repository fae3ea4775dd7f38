"""Who is a patient and what is on an image, whatever both are called."""

from dataclasses import replace

import numpy as np
import pytest

from canal.data import overlap
from canal.data.cache import Arrays
from canal.errors import DataError


def make(count=6, *, seed=0, prefix="case", groups=None):
    images = np.random.default_rng(seed).integers(0, 256, (count, 1, 32, 32), dtype=np.uint8)
    names = tuple(f"{prefix}-{row}" for row in range(count))
    return Arrays(names, images, np.zeros_like(images), f"digest {seed}", groups=groups or {})


def test_patients_hold_the_digests_of_their_images():
    arrays = make(groups={"case-0": "patient a", "case-3": "patient a", "case-1": "patient b"})
    each = overlap.digests(arrays)
    found = overlap.patients(arrays)
    assert found["patient a"] == {each[0], each[3]}
    assert sorted(map(len, found.values())) == [1, 1, 1, 1, 2]
    assert frozenset().union(*found.values()) == set(each)
    assert len(set(each)) == 6


def test_a_digest_knows_pixels_and_shape_and_nothing_else():
    arrays = make()
    renamed = replace(make(prefix="other"), masks=arrays.masks + 1, digest="another")
    assert overlap.digests(arrays) == overlap.digests(renamed)
    assert overlap.digests(arrays) == overlap.digests(arrays.rows(arrays.ids))
    wide = replace(arrays, images=arrays.images.reshape(6, 1, 16, 64))
    assert not set(overlap.digests(wide)) & set(overlap.digests(arrays))
    pixel = arrays.images.copy()
    pixel[2, 0, 5, 7] ^= 1
    changed = overlap.digests(replace(arrays, images=pixel))
    pairs = zip(changed, overlap.digests(arrays), strict=True)
    assert [row for row, (one, other) in enumerate(pairs) if one != other] == [2]


def test_near_identical_images_show_one_patient():
    arrays = make(4)
    images = arrays.images.copy()
    images[3] = np.clip(images[1].astype(int) + 1, 0, 255)
    found = overlap.patients(replace(arrays, images=images))
    assert sorted(map(len, found.values())) == [1, 1, 2]


def test_what_is_kept_is_read_again_and_a_private_file_is_for_its_owner(tmp_path):
    contents = overlap.patients(make()).values()
    overlap.write(tmp_path, contents, private=True)
    assert set(overlap.read(tmp_path)) == set(contents)
    assert (tmp_path / overlap.TRAINED_ON).stat().st_mode & 0o777 == 0o600
    overlap.write(tmp_path, contents, private=False)
    assert (tmp_path / overlap.TRAINED_ON).stat().st_mode & 0o044


def test_a_half_written_file_that_others_may_read_is_not_filled(tmp_path):
    (tmp_path / f"{overlap.TRAINED_ON}.part").write_text("readable by all")
    overlap.write(tmp_path, overlap.patients(make()).values(), private=True)
    assert (tmp_path / overlap.TRAINED_ON).stat().st_mode & 0o777 == 0o600


def test_unknown_is_not_nothing_and_damage_is_said(tmp_path):
    assert overlap.read(tmp_path) is None
    overlap.write(tmp_path, [], private=True)
    assert overlap.read(tmp_path) == ()
    for damage in ("", "[]", "{}", '{"format": "canal-contents/1", "patients": [["x"]]}'):
        (tmp_path / overlap.TRAINED_ON).write_text(damage)
        with pytest.raises(DataError, match=r"does not say which images .*; train again"):
            overlap.read(tmp_path)
