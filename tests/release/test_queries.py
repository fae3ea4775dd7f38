"""The queries: known by content, counted by person, read in batches that are always the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from canal.data.arrays import Arrays
from canal.errors import DataError, InvalidValueError, ReleaseError
from canal.features.queries import BATCH, Queries
from canal.features.release import create
from canal.privacy import Ledger
from canal.privacy.units import UNITS
from canal.release.shard import ROWS


def make(count, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 1, 4, 4), dtype=np.uint8)
    masks = rng.integers(0, 2, images.shape, dtype=np.uint8)
    return Arrays(tuple(f"q{row}" for row in range(count)), images, masks, "digest")


def test_a_query_is_asked_once(arrays):
    twice = Arrays((*arrays.ids[:-1], arrays.ids[0]), arrays.images, arrays.masks, "digest")
    with pytest.raises(DataError, match=r"'case-000' is there twice; give every query its own id"):
        Queries.of(twice)


@given(st.lists(st.integers(0, 4) | st.none(), min_size=1, max_size=20))
def test_images_of_one_person_are_counted(people):
    """An image that belongs to nobody in the list is a person of its own."""
    arrays = make(len(people))
    groups = {
        name: f"person {person}"
        for name, person in zip(arrays.ids, people, strict=True)
        if person is not None
    }
    most = max([1, *(people.count(person) for person in people if person is not None)])
    assert Queries.of(replace(arrays, patients=groups)).images_per_person == most
    assert Queries.of(arrays).images_per_person == 1


def test_who_is_on_an_image_is_not_guessed_where_it_is_what_is_protected():
    """Without records each image would pass for a person, and who is on several would pay once."""
    arrays = make(6)
    recorded = replace(
        arrays, patients={name: f"p{row // 3}" for row, name in enumerate(arrays.ids)}
    )
    some = replace(arrays, patients=dict(list(recorded.patients.items())[:5]))
    for unit in UNITS:
        assert Queries.of(recorded).most_of_one_person(unit) == 3
        assert Queries.of(arrays).most_of_one_person(unit, 2) == 2
    for unknown in (arrays, some):
        assert Queries.of(unknown).most_of_one_person("patient") in (1, 3)
        with pytest.raises(InvalidValueError, match=r"add a metadata.csv .* --images-per-person"):
            Queries.of(unknown).most_of_one_person("image")


def test_a_group_named_like_an_image_does_not_swallow_it():
    arrays = make(3)
    assert Queries.of(replace(arrays, patients={"q0": "q1"})).images_per_person == 1


@pytest.mark.parametrize("what", ["images", "masks"])
def test_content_is_image_and_truth(what):
    """One pixel of either makes other content, for that query alone."""
    before, after = make(20), make(20)
    getattr(after, what)[7, 0, 3, 3] ^= 1
    changed = [
        row
        for row, pair in enumerate(
            zip(Queries.of(before).contents, Queries.of(after).contents, strict=True)
        )
        if pair[0] != pair[1]
    ]
    assert changed == [7]


def test_the_same_content_under_two_names_has_one_digest():
    arrays = make(18)
    arrays.images[17], arrays.masks[17] = arrays.images[0], arrays.masks[0]
    contents = Queries.of(arrays).contents
    assert contents[0] == contents[17]
    assert len(set(contents)) == 17


def test_batches_are_the_same_from_any_shard_on():
    """Bits may depend on what else is in a batch, so a resumed run must see the same ones."""
    assert ROWS % BATCH == 0
    queries = Queries.of(make(2 * ROWS + 37))
    whole = {batch.start: batch for batch in queries.batches()}
    for start in range(0, len(queries.ids), ROWS):
        stop = min(start + ROWS, len(queries.ids))
        seen = list(queries.batches(start, stop))
        assert [batch.start for batch in seen] == list(range(start, stop, BATCH))
        for batch in seen:
            assert torch.equal(batch.images, whole[batch.start].images)
            assert torch.equal(batch.masks, whole[batch.start].masks)


def test_batches_hold_every_query_once_and_in_order():
    arrays = make(50)
    batches = list(Queries.of(arrays).batches())
    assert [len(batch.images) for batch in batches] == [BATCH, BATCH, BATCH, 2]
    images = torch.cat([batch.images for batch in batches]).numpy()
    np.testing.assert_allclose(images, arrays.images / 127.5 - 1, atol=1e-6)
    masks = torch.cat([batch.masks for batch in batches]).numpy()
    np.testing.assert_array_equal(masks, arrays.masks)
    assert images.dtype == masks.dtype == np.float32


def test_a_batch_is_a_copy():
    """Whoever works in place on a batch does not paint over the recipient's images."""
    arrays = make(3)
    before = arrays.images.copy()
    next(Queries.of(arrays).batches()).images.zero_()
    np.testing.assert_array_equal(arrays.images, before)


PRIVATE = {
    "unit": "image",
    "epsilon": 8.0,
    "caps_source": "private",
    "importance_source": "private",
}


def test_fewer_images_of_one_person_than_records_show_are_refused_unpaid(
    tmp_path, ensemble, arrays
):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_budget((*ensemble.cohorts, "queries"), "image", epsilon=1e4, delta=1e-5)
    ledger.set_budget(ensemble.cohorts, "patient", epsilon=1e6, delta=1e-5)
    with pytest.raises(InvalidValueError, match="no records say who is on which query image"):
        ensemble.plan(Queries.of(arrays), **PRIVATE)
    groups = {name: f"person {row // 4}" for row, name in enumerate(arrays.ids)}
    asked = Queries.of(replace(arrays, patients=groups))
    plan = ensemble.plan(asked, **PRIVATE)
    assert plan.participants.images_per_person == 4
    for stated in (1, 3):
        fewer = ensemble.plan(asked, images_per_person=stated, **PRIVATE)
        with pytest.raises(ReleaseError, match=f"counts {stated} images of one person, but .* 4 "):
            create(tmp_path / "release", ensemble, asked, fewer, ledger=ledger)
    assert {row.action for row in ledger.rows()} == {"budget"}
    made = create(tmp_path / "release", ensemble, asked, plan, ledger=ledger)
    assert "Nobody is on more than 4 of the query images." in made.statement["assumptions"]
