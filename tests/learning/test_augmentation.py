"""Augmentation: orientations by numpy; parts of a deformation alone, by scipy, and together."""

import itertools

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from scipy.ndimage import center_of_mass, map_coordinates, zoom

from canal.learning import augmentation as deformation
from canal.learning.augmentation import deformed, orient, orientation_count
from canal.learning.networks import to_float
from canal.learning.training import Batches

ORIENTED = [(6, 6), (4, 6), (4, 6, 6), (6, 4, 2), (4, 4, 4)]
SIZES = [(24, 24), (16, 32), (8, 12, 16)]
PARTS = ("_TURN", "_SIZE", "_STRETCH", "_SHIFT", "_BEND", "_GAMMA", "_NOISE")


@pytest.mark.parametrize("size", ORIENTED)
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


@pytest.mark.parametrize("size", ORIENTED)
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


@pytest.fixture
def only(monkeypatch):
    """Leaves some parts on, at their strength or at another."""

    def leave(**parts):
        for name in PARTS:
            monkeypatch.setattr(deformation, name, parts.get(name, 0.0))

    return leave


def made_up(size, count=5, channels=2):
    rng = np.random.default_rng(7)
    images = rng.uniform(-1, 1, (count, channels, *size)).astype(np.float32)
    masks = (rng.random((count, 1, *size)) > 0.5).astype(np.float32)
    return torch.from_numpy(images), torch.from_numpy(masks)


def discs(size, radius, count=4, centre=None):
    middle = [(n - 1) / 2 for n in size] if centre is None else centre
    axes = np.meshgrid(
        *(np.arange(n) - at for n, at in zip(size, middle, strict=True)), indexing="ij"
    )
    one = (sum(axis**2 for axis in axes) <= radius**2).astype(np.float32)
    return torch.from_numpy(np.broadcast_to(one, (count, 1, *size)).copy())


def moved(masks, seed=0):
    return deformed(2 * masks - 1, masks, 1.0, np.random.default_rng(seed))[1].numpy()[:, 0]


@pytest.mark.parametrize("size", SIZES)
def test_no_strength_moves_nothing(size):
    images, masks = made_up(size)
    found, same = deformed(images, masks, 0.0, np.random.default_rng(0))
    torch.testing.assert_close(found, images, atol=1e-5, rtol=0)
    assert torch.equal(same, masks)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_come_from_where_numpy_says(size, monkeypatch):
    """The whole map again: generators by hand, scipy's exponential, zoom and interpolation."""
    for name in ("_GAMMA", "_NOISE"):
        monkeypatch.setattr(deformation, name, 0.0)
    images, masks = made_up(size)
    found, also = deformed(images, masks, 0.8, np.random.default_rng(3))
    dims, count, rng = len(size), len(images), np.random.default_rng(3)
    turn = rng.uniform(-0.5, 0.5, (count, dims, dims))
    stretch = rng.uniform(-0.15, 0.15, (count, dims, dims))
    scale = rng.uniform(-0.35, 0.35, (count, 1, 1))
    shift = rng.uniform(-0.2, 0.2, (count, dims, 1))
    knots = rng.normal(scale=0.05, size=(count, dims, *[5] * dims))
    sides = np.array(size[::-1], dtype=float)  # x first, as torch has it
    outside = False
    for one in range(count):
        generator = np.zeros((dims, dims))
        for i in range(dims):
            generator[i, i] = stretch[one, i, i] + scale[one, 0, 0]
            for j in range(i + 1, dims):
                generator[i, j] = turn[one, i, j] + stretch[one, i, j]
                generator[j, i] = -turn[one, i, j] + stretch[one, i, j]
        pixels = np.stack(np.meshgrid(*(np.arange(n) for n in size), indexing="ij"), -1)
        away = pixels[..., ::-1] - (sides - 1) / 2
        there = away @ expm(0.8 * generator).T + 0.8 * shift[one, :, 0] * sides / 2
        if dims == 3:  # of the plane's bicubic field scipy has no like
            field = np.stack([_linear(knots[one, axis], size) for axis in range(dims)], -1)
        else:
            field = deformation._places(images, 0.8, np.random.default_rng(3))[one].numpy()
            field = (field * sides / 2 - there) / (0.8 * sides / 2)
            assert 0.03 < field.std() < 0.06
            corners = field[[0, 0, -1, -1], [0, -1, 0, -1]]
            want = knots[one][:, [0, 0, -1, -1], [0, -1, 0, -1]].T
            np.testing.assert_allclose(corners, want, atol=1e-4)
        there = there + 0.8 * field * sides / 2 + (sides - 1) / 2
        outside |= bool((there < 0).any())
        where = [there[..., axis] for axis in reversed(range(dims))]
        for channel, original in zip(found[one].numpy(), images[one].numpy(), strict=True):
            want = map_coordinates(original, where, order=1, mode="reflect")
            np.testing.assert_allclose(channel, want, atol=2e-3)
        want = map_coordinates(masks[one, 0].numpy(), where, order=1, mode="reflect")
        sure = np.abs(want - 0.5) > 0.01
        assert np.array_equal(also[one, 0].numpy()[sure], (want > 0.5)[sure])
    assert outside  # and reflected


def _linear(knots, size):
    """A coarse field between its knots, corners on corners."""
    return zoom(knots, [n / 5 for n in size], order=1, grid_mode=False)


def test_a_shift_moves_the_middle(only):
    only(_SHIFT=0.2)
    masks = discs((40, 60), 6, count=6)
    rng = np.random.default_rng(0)
    rng.uniform(size=6 * (4 + 4 + 1))  # what turns, stretches and sizes are drawn from
    drawn = rng.uniform(-0.2, 0.2, (6, 2))
    for mask, (x, y) in zip(moved(masks), drawn, strict=True):
        at = center_of_mass(mask)
        assert at == pytest.approx((19.5 - 20 * y, 29.5 - 30 * x), abs=0.55)


def test_size_changes_the_area(only):
    only(_SIZE=0.35)
    masks = discs((48, 48), 12, count=8)
    rng = np.random.default_rng(0)
    rng.uniform(size=8 * 8)
    drawn = rng.uniform(-0.35, 0.35, 8)
    areas = moved(masks).sum((1, 2)) / masks[0].sum().item()
    np.testing.assert_allclose(areas, np.exp(-2 * drawn), rtol=0.08)


def test_a_turn_goes_round_the_middle_whatever_the_sides(only):
    only(_TURN=0.5)
    masks = discs((48, 96), 4, count=6, centre=(23.5, 47.5 + 15))
    drawn = np.random.default_rng(0).uniform(-0.5, 0.5, (6, 2, 2))[:, 0, 1]
    assert np.abs(drawn).max() > 0.3
    for mask, angle in zip(moved(masks), drawn, strict=True):
        y, x = center_of_mass(mask)
        assert (x - 47.5, y - 23.5) == pytest.approx(
            (15 * np.cos(angle), 15 * np.sin(angle)), abs=0.5
        )
    round_ = discs((48, 96), 15)
    assert np.abs(moved(round_) - round_.numpy()[:, 0]).sum() / round_.sum() < 0.03


def test_a_stretch_changes_proportions(only):
    only(_STRETCH=0.15)
    longer = [
        np.ptp(np.nonzero(mask)[1]) - np.ptp(np.nonzero(mask)[0])
        for mask in moved(discs((64, 64), 20, count=8))
    ]
    assert max(longer) > 2
    assert min(longer) < -2


def test_bends_are_every_images_own(only):
    only(_BEND=0.05)
    masks = discs((32, 32), 9, count=4)
    bent = moved(masks)
    assert len({mask.tobytes() for mask in bent}) == 4
    assert 0.005 < np.abs(bent - masks.numpy()[:, 0]).mean() < 0.15


def test_gamma_bends_a_ramp_and_keeps_its_ends(only):
    only(_GAMMA=0.4)
    ramp = torch.linspace(-1, 0.5, 32).expand(16, 1, 8, 32)
    found, _ = deformed(ramp, torch.zeros(16, 1, 8, 32), 1.0, np.random.default_rng(0))
    torch.testing.assert_close(found.amin((1, 2, 3)), torch.full((16,), -1.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.amax((1, 2, 3)), torch.full((16,), 0.5), atol=1e-4, rtol=0)
    share = (found[:, 0, 0, 1:-1] + 1) / 1.5
    gammas = share.log() / ((ramp[0, 0, 0, 1:-1] + 1) / 1.5).log()
    assert gammas.std(dim=1).max() < 0.01
    logs = gammas.mean(dim=1).log()
    assert 0.25 < logs.abs().max() <= 0.401


def test_noise_is_up_to_a_twentieth(only):
    """Sixteen widths between 0 and 0.05; the largest is below 0.025 once in 65,000 seeds."""
    only(_NOISE=0.05)
    even = torch.full((16, 1, 32, 32), 0.25)
    found, _ = deformed(even, torch.zeros(16, 1, 32, 32), 1.0, np.random.default_rng(0))
    widths = (found - 0.25).flatten(1).std(dim=1)
    assert 0.025 < widths.max() < 0.055
    assert widths.min() < 0.025


@pytest.mark.parametrize(("strength", "most"), [(1.0, 1e-3), (1.5, 2e-2)])
def test_few_images_are_folded_over(strength, most):
    images = torch.zeros(64, 1, 48, 48)
    places = deformation._places(images, strength, np.random.default_rng(0)).numpy()
    down, right = places[:, 1:, :-1] - places[:, :-1, :-1], places[:, :-1, 1:] - places[:, :-1, :-1]
    area = right[..., 0] * down[..., 1] - right[..., 1] * down[..., 0]
    assert (area <= 0).mean() < most


def test_every_image_otherwise_and_the_same_again():
    images, masks = (each[:1].expand(4, -1, -1, -1) for each in made_up((16, 16)))
    before = images.clone()
    one, other = (deformed(images, masks, 1.0, np.random.default_rng(5)) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    assert torch.equal(images, before)
    assert len({image.numpy().tobytes() for image in one[0]}) == 4
    assert not torch.equal(one[0], deformed(images, masks, 1.0, np.random.default_rng(6))[0])
