"""Batches: a function of seed and step, and orientations that can be done to any target."""

import itertools

import numpy as np
import pytest
import torch

from canal.errors import InvalidValueError
from canal.learning.augmentation import orient, orientation_count
from canal.learning.networks import to_float
from canal.learning.training import Batches

SIZES = [(6, 6), (4, 6), (4, 6, 6), (6, 4, 2), (4, 4, 4)]


def assert_same(one, other):
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.masks, other.masks)
    assert np.array_equal(one.rows, other.rows)
    assert np.array_equal(one.orientations, other.orientations)


@pytest.mark.parametrize("deform", [0.0, 1.0])
@pytest.mark.parametrize("size", [(8, 8), (8, 12), (4, 8, 8)])
def test_random_access_is_sequential_access(make_arrays, size, deform):
    arrays = make_arrays(7, size, channels=2)

    def batches():
        return Batches(arrays, batch_size=3, augment=True, seed=5, deform=deform)

    first, second = batches(), batches()
    sequential = [first[step] for step in range(12)]
    for step in np.random.default_rng(0).permutation(12).tolist():
        assert_same(second[step], sequential[step])
    assert_same(batches()[11], sequential[11])


def test_deformation_comes_behind_the_rest_and_has_draws_of_its_own(make_arrays):
    arrays = make_arrays(6)
    plain, bent = (
        Batches(arrays, batch_size=4, augment=True, seed=5, deform=deform)[3]
        for deform in (0.0, 1.0)
    )
    assert np.array_equal(plain.rows, bent.rows)
    assert np.array_equal(plain.orientations, bent.orientations)
    assert not torch.equal(plain.images, bent.images)
    assert (plain.deformed, bent.deformed) == (False, True)


def test_targets_turn_with_their_images_and_cannot_be_bent(make_arrays):
    arrays = make_arrays(6)
    targets = torch.tensor(arrays.masks).float()
    plain, bent = (
        Batches(arrays, batch_size=4, augment=True, seed=5, deform=deform)[0]
        for deform in (0.0, 1.0)
    )
    assert torch.equal(plain.turn(targets[plain.rows]), plain.masks)
    some = [3, 1]
    assert torch.equal(plain.turn(targets[plain.rows[some]], some), plain.masks[some])
    with pytest.raises(InvalidValueError, match="deform at 0"):
        bent.turn(targets[bent.rows])


def test_the_global_generators_have_no_say_and_are_untouched(make_arrays):
    batches = Batches(make_arrays(7), batch_size=3, augment=True, seed=5)
    torch.manual_seed(0)
    before, numpys = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    one = batches[0]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpys)
    torch.manual_seed(1)
    assert_same(batches[0], one)


@pytest.mark.parametrize("batch_size", [1, 3, 5, 7, 16, 500])
def test_every_image_once_a_pass(make_arrays, batch_size):
    batches = Batches(make_arrays(7), batch_size=batch_size, augment=False, seed=0)
    steps = -(-7 * 80 // batch_size)  # past the 64 passes whose order is remembered
    rows = np.concatenate([batches[step].rows for step in range(steps)])[: 7 * 80]
    passes = rows.reshape(80, 7)
    assert (np.sort(passes, axis=1) == np.arange(7)).all()
    assert len({tuple(order) for order in passes.tolist()}) > 70  # 5040 orders, 80 draws


def test_seeds_and_steps_differ(make_arrays):
    arrays = make_arrays(12)
    one, other = (Batches(arrays, batch_size=4, augment=True, seed=seed) for seed in (0, 1))
    assert not torch.equal(one[0].images, other[0].images)
    # The same rows come again in the next pass, otherwise oriented and lit.
    whole = Batches(arrays, batch_size=12, augment=True, seed=0)
    a, b = (whole[step].images[np.argsort(whole[step].rows)] for step in (0, 1))
    assert not torch.equal(a, b)


def test_without_augmentation_the_pixels_are_the_datas(make_arrays):
    arrays = make_arrays(5, channels=3)
    batch = Batches(arrays, batch_size=4, augment=False, seed=0)[1]
    pixels = (batch.images + 1) * 127.5
    np.testing.assert_allclose(pixels.numpy(), arrays.images[batch.rows], atol=1e-4)
    assert np.array_equal(batch.masks.numpy(), arrays.masks[batch.rows])
    assert (batch.orientations == 0).all()
    assert batch.images.dtype == batch.masks.dtype == torch.float32


def test_to_float_spans_minus_one_to_one():
    assert to_float(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1, 1]


@pytest.mark.parametrize("size", [(8, 8), (4, 8, 8)])
def test_augmentation_turns_image_and_mask_alike(make_arrays, size):
    arrays = make_arrays(8, size, channels=2)
    seen = set()
    for step in range(8):
        batch = Batches(arrays, batch_size=8, augment=True, seed=0)[step]
        assert np.array_equal(
            batch.masks.numpy(),
            orient(torch.tensor(arrays.masks[batch.rows]), batch.orientations).numpy(),
        )
        plain = orient(to_float(torch.tensor(arrays.images[batch.rows])), batch.orientations)
        # Each channel of each image is a straight line of the pixels: contrast, shift and tint.
        for ours, theirs in zip(batch.images.flatten(0, 1), plain.flatten(0, 1), strict=True):
            slope, offset = np.polyfit(theirs.ravel(), ours.ravel(), 1)
            assert 0.74 < slope < 1.26
            assert abs(offset) < 0.3
            np.testing.assert_allclose(ours, slope * theirs + offset, atol=1e-5)
        seen |= set(batch.orientations.tolist())
    assert len(seen) > orientation_count(size) // 2


def test_the_arrays_are_not_changed(make_arrays):
    arrays = make_arrays(4)
    images, masks = arrays.images.copy(), arrays.masks.copy()
    for step in range(3):
        batch = Batches(arrays, batch_size=4, augment=step > 0, seed=0)[step]
        batch.images.zero_()
        batch.masks.fill_(7)
    assert np.array_equal(arrays.images, images)
    assert np.array_equal(arrays.masks, masks)


@pytest.mark.parametrize("size", SIZES)
def test_orientations_are_all_different_and_by_numpy(size):
    item = np.arange(2 * np.prod(size), dtype=np.float32).reshape(2, *size)
    count = orientation_count(size)
    assert count == 2 ** len(size) * (2 if size[-1] == size[-2] else 1)
    batch = torch.tensor(item).expand(count, *item.shape)
    found = orient(batch, np.arange(count)).numpy()
    assert len({turned.tobytes() for turned in found}) == count
    codes = itertools.product(range(count // 2 ** len(size)), *[range(2)] * len(size))
    for turn, *flips in codes:  # the last axis varies fastest, so bits are read from the right
        code = sum(bit << axis for axis, bit in enumerate([*flips, turn]))
        want = np.swapaxes(item, -1, -2) if turn else item
        want = np.flip(want, [axis + 1 for axis, bit in enumerate(flips) if bit])
        assert np.array_equal(found[code], want)


@pytest.mark.parametrize("size", SIZES)
def test_every_orientation_can_be_undone(size):
    count, dims = orientation_count(size), len(size)
    batch = torch.randn(count, 3, *size, generator=torch.manual_seed(0))
    codes = np.arange(count)
    # Flips undo themselves; after a turn, the flips of the last two axes have changed places.
    last, other = codes >> (dims - 1) & 1, codes >> (dims - 2) & 1
    swapped = codes + (other - last) * 2 ** (dims - 1) + (last - other) * 2 ** (dims - 2)
    undo = np.where(codes >> dims & 1, swapped, codes)
    assert torch.equal(orient(orient(batch, codes), undo), batch)
    turned = orient(batch, codes)
    assert torch.equal(turned.flatten(1).sort().values, batch.flatten(1).sort().values)


@pytest.mark.parametrize("size", [(8, 8), (8, 12), (4, 8, 8), (4, 8, 12), (8, 8, 8)])
def test_orienting_commutes_with_pooling(size):
    """So a target at the bottleneck can be turned like the image that it belongs to."""
    pool = torch.nn.functional.max_pool2d if len(size) == 2 else torch.nn.functional.max_pool3d
    count = orientation_count(size)
    images = torch.randn(count, 3, *size, generator=torch.manual_seed(0))
    codes = np.arange(count)
    assert torch.equal(pool(orient(images, codes), 4), orient(pool(images, 4), codes))


def test_a_code_for_each_item(make_arrays):
    with pytest.raises(ValueError, match="shorter"):
        orient(torch.zeros(3, 1, 4, 4), np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"batch_size": 0}, "batch_size = 0 must be at least 1"),
        ({"seed": -1}, "seed = -1 must be at least 0"),
    ],
)
def test_errors_name_the_value(make_arrays, values, sentence):
    with pytest.raises(InvalidValueError, match=sentence):
        Batches(make_arrays(3), **{"batch_size": 2, "augment": False, "seed": 0, **values})


def test_no_images_no_batches(make_arrays):
    with pytest.raises(InvalidValueError, match="no images to train on"):
        Batches(make_arrays(3).rows([]), batch_size=2, augment=False, seed=0)
