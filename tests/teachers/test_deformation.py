"""Deformation: image and mask move alike, by scipy's word, and only as far as they are told."""

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates

from canal.teachers import deformation
from canal.teachers.deformation import deformed

SIZES = [(24, 24), (16, 32), (8, 12, 16)]


def made_up(size, count=5, channels=2):
    rng = np.random.default_rng(7)
    images = rng.uniform(-1, 1, (count, channels, *size)).astype(np.float32)
    masks = (rng.random((count, 1, *size)) > 0.5).astype(np.float32)
    return torch.from_numpy(images), torch.from_numpy(masks)


def discs(size, radius, count=4):
    axes = np.meshgrid(*(np.arange(n) - (n - 1) / 2 for n in size), indexing="ij")
    one = (sum(axis**2 for axis in axes) <= radius**2).astype(np.float32)
    return torch.from_numpy(np.broadcast_to(one, (count, 1, *size)).copy())


def without(monkeypatch, *names):
    for name in names:
        monkeypatch.setattr(deformation, name, 0.0)


@pytest.mark.parametrize("size", SIZES)
def test_no_strength_moves_nothing(size):
    images, masks = made_up(size)
    found, moved = deformed(images, masks, 0.0, np.random.default_rng(0))
    torch.testing.assert_close(found, images, atol=1e-5, rtol=0)
    assert torch.equal(moved, masks)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_come_from_where_scipy_finds_them(size, monkeypatch):
    without(monkeypatch, "_GAMMA", "_NOISE")
    images, masks = made_up(size)
    found, _ = deformed(images, masks, 1.0, np.random.default_rng(3))
    places = deformation._places(images, 1.0, np.random.default_rng(3)).numpy()
    assert np.abs(places).max() > 1  # some of them are outside, and reflected
    sides = np.array(size[::-1])
    pixels = ((places + 1) * sides - 1) / 2
    for ours, theirs, at in zip(found.numpy(), images.numpy(), pixels, strict=True):
        for channel, original in zip(ours, theirs, strict=True):
            where = [at[..., axis] for axis in reversed(range(len(size)))]
            want = map_coordinates(original, where, order=1, mode="reflect")
            np.testing.assert_allclose(channel, want, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_masks_go_with_their_images(size):
    masks = discs(size, min(size) / 3, count=16)
    found, moved = deformed(2 * masks - 1, masks, 1.0, np.random.default_rng(1))
    assert set(moved.unique().tolist()) == {0.0, 1.0}
    assert ((found > 0) == (moved > 0)).float().mean() > 0.97
    assert (moved != masks).float().mean() > 0.02
    # Negative control: with the mask of another image they agree less.
    assert ((found > 0) == (moved.roll(1, 0) > 0)).float().mean() < 0.97


def test_an_oblong_image_is_turned_and_not_squeezed(monkeypatch):
    without(monkeypatch, "_SIZE", "_STRETCH", "_SHIFT", "_BEND", "_GAMMA", "_NOISE")
    masks = discs((48, 96), 15, count=16)
    _, moved = deformed(2 * masks - 1, masks, 1.0, np.random.default_rng(0))
    # A disc that is turned is the same disc, but for its rim.
    assert (moved != masks).float().sum() / masks.sum() < 0.03


def test_strength_is_how_far(monkeypatch):
    without(monkeypatch, "_GAMMA", "_NOISE")
    images, _ = made_up((24, 24), count=64)
    still = deformation._places(images, 0.0, np.random.default_rng(0))
    far = [
        (deformation._places(images, strength, np.random.default_rng(0)) - still)
        .norm(dim=-1)
        .mean()
        for strength in (0.25, 0.5, 1.0)
    ]
    assert far[0] < far[1] < far[2]
    assert far[2] / far[1] == pytest.approx(2, rel=0.15)


def test_every_image_otherwise_and_the_same_again():
    images, masks = (each[:1].expand(4, -1, -1, -1) for each in made_up((16, 16)))
    before = images.clone()
    one, other = (deformed(images, masks, 1.0, np.random.default_rng(5)) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    assert torch.equal(images, before)
    assert len({image.numpy().tobytes() for image in one[0]}) == 4
    assert not torch.equal(one[0], deformed(images, masks, 1.0, np.random.default_rng(6))[0])


def test_an_even_image_stays_even_but_for_noise():
    images = torch.full((3, 1, 8, 8), 0.25)
    found, _ = deformed(images, torch.zeros(3, 1, 8, 8), 1.0, np.random.default_rng(0))
    assert torch.isfinite(found).all()
    assert (found - 0.25).abs().max() < 0.3
