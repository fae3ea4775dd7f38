"""Canaries: unlike everybody, one patient each, the same for the same seed."""

import numpy as np
import pytest

from canal.attacks.planted import KINDS, plant
from canal.attacks.shadows import Pool
from canal.data.arrays import Arrays
from canal.errors import InvalidValueError


@pytest.fixture(scope="module")
def others():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (9, 1, 16, 16), dtype=np.uint8)
    masks = (images > 200).astype(np.uint8)
    ids = tuple(f"case {number}" for number in range(9))
    groups = {name: f"person {number // 2}" for number, name in enumerate(ids)}
    return Arrays(ids, images, masks, "others", frozenset({"case 8"}), groups)


@pytest.mark.parametrize("kind", KINDS)
def test_one_patient_each_of_one_person_each(others, kind):
    made = plant(others, kind, 4, seed=1)
    assert made.ids[:2] == ("canary 0 image 0", "canary 1 image 0")
    assert len(set(made.patients.values())) == 4
    first = others.rows(["case 0", "case 2", "case 4", "case 6"])
    expected = 255 - first.images if kind == "negative" else first.images
    assert np.array_equal(made.images, expected)
    changed = {"ordinary": first.masks, "inverted": 1 - first.masks}
    if kind in changed:
        assert np.array_equal(made.masks, changed[kind])
    else:
        blocks = made.masks.reshape(4, 4, 4, 4, 4)
        assert np.array_equal(blocks.min(axis=(2, 4)), blocks.max(axis=(2, 4)))
        assert made.masks[:, 0].mean(axis=(1, 2)).min() > 0
    again, other = plant(others, kind, 4, seed=1), plant(others, kind, 4, seed=2)
    assert again.digest == made.digest != other.digest
    assert np.array_equal(again.masks, made.masks)


def test_several_images_are_of_one_patient(others):
    made = plant(others, "scrambled", 2, images=3)
    assert made.images.shape == (6, 1, 16, 16)
    assert [made.patients[name] for name in made.ids[2:4]] == ["canary 0", "canary 1"]
    assert np.array_equal(made.masks[0], made.masks[2])
    assert not np.array_equal(made.images[0], made.images[1])


def test_the_cohort_is_in_every_shadow_and_a_canary_in_half(others):
    cohort = Arrays(("a", "b"), 255 - others.images[:2], others.masks[:2], "cohort")
    pool = Pool.of_canaries(cohort, plant(others, "scrambled", 4))
    assert len(pool.patients) == 4
    assert len(pool.always) == 2
    assert pool.images(pool.always) == ("a", "b")
    halves = pool.halves(8, seed=0)
    assert halves.shape == (8, 4)
    assert (halves.sum(axis=1) == 2).all()


def test_what_no_canary_is_made_of(others):
    with pytest.raises(InvalidValueError, match="'odd' is unknown; choose one of scrambled"):
        plant(others, "odd", 2)
    with pytest.raises(InvalidValueError, match="canaries = 1 must be at least 2"):
        plant(others, "scrambled", 1)
    with pytest.raises(InvalidValueError, match="made of as many people, and there are 4"):
        plant(others, "scrambled", 5)
