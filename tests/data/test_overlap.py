"""Who is a patient and what is on an image, whatever both are called."""

from dataclasses import replace

import numpy as np
import pytest

from canal.data import overlap
from canal.data.arrays import Arrays
from canal.errors import DataError


def make(count=6, *, seed=0, prefix="case", patients=None):
    images = np.random.default_rng(seed).integers(0, 256, (count, 1, 32, 32), dtype=np.uint8)
    names = tuple(f"{prefix}-{row}" for row in range(count))
    return Arrays(names, images, np.zeros_like(images), f"digest {seed}", patients=patients or {})


def test_patients_hold_the_digests_of_their_images():
    arrays = make(patients={"case-0": "patient a", "case-3": "patient a", "case-1": "patient b"})
    each = overlap.digests(arrays)
    found = overlap.digests_by_patient(arrays)
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
    found = overlap.digests_by_patient(replace(arrays, images=images))
    assert sorted(map(len, found.values())) == [1, 1, 2]


def test_what_is_kept_is_read_again_and_a_private_file_is_for_its_owner(tmp_path):
    contents = overlap.digests_by_patient(make()).values()
    overlap.write(tmp_path, contents, private=True)
    assert set(overlap.read(tmp_path)) == set(contents)
    assert (tmp_path / overlap.TRAINED_ON).stat().st_mode & 0o777 == 0o600
    overlap.write(tmp_path, contents, private=False)
    assert (tmp_path / overlap.TRAINED_ON).stat().st_mode & 0o044


def test_a_half_written_file_that_others_may_read_is_not_filled(tmp_path):
    (tmp_path / f"{overlap.TRAINED_ON}.part").write_text("readable by all")
    overlap.write(tmp_path, overlap.digests_by_patient(make()).values(), private=True)
    assert (tmp_path / overlap.TRAINED_ON).stat().st_mode & 0o777 == 0o600


def test_unknown_is_not_nothing_and_damage_is_said(tmp_path):
    assert overlap.read(tmp_path) is None
    overlap.write(tmp_path, [], private=True)
    assert overlap.read(tmp_path) == ()
    for damage in ("", "[]", "{}", '{"format": "canal-contents/1", "patients": [["x"]]}'):
        (tmp_path / overlap.TRAINED_ON).write_text(damage)
        with pytest.raises(DataError, match=r"does not say which images .*; train again"):
            overlap.read(tmp_path)


def content(*seeds):
    return frozenset(digest for seed in seeds for digest in overlap.digests(make(seed=seed)))


NOBODY = frozenset()
ALL = {"cohorts": "checked", "queries": "checked", "initialisation": "checked"}


def test_what_has_nothing_in_common_was_checked():
    cohorts = {"north": content(1), "south": content(2)}
    assert overlap.compare(cohorts, content(3), content(4)) == ALL
    assert overlap.compare(cohorts, content(3), NOBODY) == ALL


@pytest.mark.parametrize(
    ("cohorts", "queries", "initialisation", "said"),
    [
        ((content(1), content(1, 2)), content(3), NOBODY, "6 images of cohort 'north' are in coho"),
        ((content(1), content(2)), content(3, 2), NOBODY, "6 images of the queries are in cohort"),
        ((content(1), content(2)), content(3), content(2), "was trained on 6 images of cohort 'so"),
        ((content(1), None), content(1), NOBODY, "6 images of the queries are in cohort 'north'"),
    ],
)
def test_the_same_image_in_two_places_is_refused(cohorts, queries, initialisation, said):
    named = dict(zip(("north", "south"), cohorts, strict=True))
    with pytest.raises(DataError, match=said):
        overlap.compare(named, queries, initialisation)


def test_one_image_is_enough():
    ours, theirs = content(1), frozenset([next(iter(content(1)))]) | content(2)
    with pytest.raises(DataError, match=r"^1 image of cohort 'a' is in cohort 'b' too"):
        overlap.compare({"a": ours, "b": theirs}, content(3), NOBODY)


def test_unknown_is_said_and_is_not_checked():
    away = overlap.compare(None, content(1), content(1))
    assert set(away.values()) == {"not checked: the cohorts are at other hosts"}
    assert overlap.compare(None, content(1), NOBODY)["initialisation"] == "checked"
    some = overlap.compare({"north": content(1), "south": None}, content(2), None)
    reason = "not checked: nobody kept which images these cohorts have: south"
    assert some["cohorts"] == some["queries"] == reason
    assert some["initialisation"] == "not checked: nobody kept which images it was trained on"
    one = overlap.compare({"north": None}, content(2), NOBODY)
    assert (one["cohorts"], one["queries"]) == ("checked", reason.replace("south", "north"))


def test_lookalikes_are_counted_and_not_refused():
    ours, theirs = make(5), make(4, seed=9, prefix="other")
    images = theirs.images.copy()
    images[:2] = np.clip(ours.images[3:].astype(int) + 1, 0, 255)
    (said,) = overlap.lookalikes({"north": ours, "south": replace(theirs, images=images)})
    assert said.startswith("2 images of north look like images of south (correlation above 0.975)")
    assert "such as case-3 and other-0" in said
    assert overlap.lookalikes({"north": ours, "south": theirs}) == []
