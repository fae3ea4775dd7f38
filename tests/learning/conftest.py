"""What the tests of the teachers share."""

import numpy as np
import pytest

from canal.data.arrays import Arrays


@pytest.fixture(scope="session")
def make_arrays():
    """Bright discs on noise, read-only as a memory map is; easy, so that a few steps show."""

    def make(count=12, size=(32, 32), channels=1, seed=0):
        rng = np.random.default_rng(seed)
        grid = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"))
        masks = np.zeros((count, 1, *size), dtype=np.uint8)
        for mask in masks:
            centre = rng.uniform(0.3, 0.7, len(size)) * size
            distance = np.linalg.norm(grid - centre.reshape(-1, *[1] * len(size)), axis=0)
            mask[0] = distance < rng.uniform(0.15, 0.3) * min(size)
        noise = rng.integers(0, 100, (count, channels, *size))
        images = (noise + 130 * masks).astype(np.uint8)
        for array in (images, masks):
            array.flags.writeable = False
        return Arrays(tuple(f"case-{i}" for i in range(count)), images, masks, f"digest-{seed}")

    return make
