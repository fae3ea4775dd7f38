"""Inversion: pictures come back where nothing hides them, and the mean image is no success."""

import numpy as np
import pytest
from PIL import Image

from canal.attacks.inversion import invert, likeness
from canal.attacks.roc import NOTHING
from canal.data.arrays import Arrays
from canal.errors import InvalidValueError


def bright(count, seed, prefix):
    """Flat images, each of a brightness of its own: what one layer can tell, and SSIM sees."""
    rng = np.random.default_rng(seed)
    level = rng.integers(30, 226, (count, 1, 1, 1))
    images = np.broadcast_to(level, (count, 1, 16, 16)).astype(np.uint8).copy()
    images += rng.integers(0, 20, images.shape, dtype=np.uint8)
    return Arrays(
        tuple(f"{prefix}-{row}" for row in range(count)), images, (images > 128) * 1, prefix
    )


@pytest.fixture(scope="module")
def victims():
    return bright(24, 0, "victim")


@pytest.fixture(scope="module")
def auxiliary():
    return bright(120, 1, "other")


def attacked(make_release, ensemble, victims, auxiliary, **choices):
    release = make_release(arrays=victims, grid=(16, 16), **choices)
    return invert(release, ensemble, victims, auxiliary, steps=150, seed=0)


def test_without_noise_pictures_come_back(make_release, ensemble, victims, auxiliary, tmp_path):
    found = attacked(make_release, ensemble, victims, auxiliary, allocation="none")
    gain, low, _ = found.gain()
    assert low > 0.05, gain
    assert found.decoded.psnr.mean() > found.mean_image.psnr.mean() + 5
    assert NOTHING not in found.words()
    found.write_pictures(tmp_path / "sheet.png", victims)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > sheet.height
    plain = found.to_json()
    assert plain["victims"] == 24
    assert plain["ssim_gain"] == pytest.approx(gain)


def test_under_noise_it_paints_the_mean(make_release, ensemble, victims, auxiliary):
    found = attacked(make_release, ensemble, victims, auxiliary, epsilon=0.05, seed=1)
    assert found.decoded.ssim.mean() == pytest.approx(found.mean_image.ssim.mean(), abs=0.02)
    assert abs(found.decoded.psnr.mean() - found.mean_image.psnr.mean()) < 1


def test_the_same_seed_paints_the_same(make_release, ensemble, victims, auxiliary):
    release = make_release(arrays=victims, grid=(16, 16), seed=1)
    one, two = (invert(release, ensemble, victims, auxiliary, steps=3, seed=4) for _ in range(2))
    assert np.array_equal(one.pictures, two.pictures)


def test_victims_are_not_learned_from(make_release, ensemble, victims, auxiliary):
    release = make_release(arrays=victims, grid=(16, 16), seed=1)
    with pytest.raises(InvalidValueError, match="not members"):
        invert(release, ensemble, victims, auxiliary.beside(victims), steps=1)
    with pytest.raises(InvalidValueError, match="120 of the 120 members are not in"):
        invert(release, ensemble, auxiliary, victims, steps=1)
    with pytest.raises(InvalidValueError, match="steps = 0"):
        invert(release, ensemble, victims, auxiliary, steps=0)


def test_likeness_knows_its_limits():
    truth = np.random.default_rng(0).uniform(size=(2, 3, 16, 16))
    with np.errstate(divide="ignore"):
        same = likeness(truth, truth)
    assert same.ssim == pytest.approx([1, 1])
    assert (same.psnr == np.inf).all()
    off = likeness(np.clip(truth + 0.1, 0, 2), truth)
    assert off.psnr == pytest.approx([20, 20])
    assert (off.ssim < 1).all()
