"""Peak memory of a process that works on mapped images: what is kept of them would show."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.ratio import Ratio
from canal.data.arrays import Arrays

_PEAK = """
import resource, sys
from importlib import import_module
from pathlib import Path
module, name, folder = sys.argv[1:]
getattr(import_module(module), name)(Path(folder))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def ten_times(what: str, work: Callable[[Path], None], many: str, count: int) -> Ratio:
    """Memory for so many images against that for a tenth of them.

    Args:
        what: is done.
        work: does it, with a folder of images; a function that its module has by name.
        many: what images are counted as.
        count: of the larger run.
    """

    def peak(images: int) -> float:
        with tempfile.TemporaryDirectory() as name:
            _write(Path(name), images)
            command = [sys.executable, "-c", _PEAK, work.__module__, work.__name__, name]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            return float(done.stdout)

    return Ratio(
        f"peak memory of {what}, {many} = {count:,}",
        f"{many} = {count // 10:,}",
        peak(count),
        peak(count // 10),
        target=1 / 1.1,
        unit="MiB",
    )


def mapped(folder: Path) -> Arrays:
    """The images of a run, as the cache keeps them."""
    images, masks = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("images", "masks"))
    ids = tuple(f"image-{number}" for number in range(len(images)))
    return Arrays(ids, images, masks, "bench")


def _write(folder: Path, count: int) -> None:
    """80 MB of 5,000."""
    for name, channels, top in (("images.npy", 3, 256), ("masks.npy", 1, 2)):
        array = np.lib.format.open_memmap(
            folder / name, mode="w+", dtype=np.uint8, shape=(count, channels, 64, 64)
        )
        rng = np.random.default_rng(0)
        for start in range(0, count, 100):
            some = array[start : start + 100]
            some[:] = rng.integers(top, size=some.shape, dtype=np.uint8)
        array.flush()
