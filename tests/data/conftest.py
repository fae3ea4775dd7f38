"""Small folders in the layouts of official downloads, and the way to the real ones."""

import csv
import json
import os
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from PIL import Image


@dataclass(frozen=True)
class Folder:
    """Files below a root; what is in an image depends on its name alone."""

    root: Path

    def at(self, name):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def image(self, name, *, size=(24, 20), colour=True):
        rng = np.random.default_rng(crc32(name.encode()))
        self.pixels(name, rng.integers(0, 256, (*size, 3) if colour else size))

    def mask(self, name, *, size=(24, 20), box=(4, 12, 5, 15)):
        top, bottom, left, right = box
        values = np.zeros(size, np.uint8)
        values[top:bottom, left:right] = 255
        self.pixels(name, values)

    def pixels(self, name, values, dtype=np.uint8):
        Image.fromarray(np.asarray(values, dtype)).save(self.at(name))

    def pair(self, image, mask):
        self.image(image)
        self.mask(mask)

    def volume(self, name, values):
        import nibabel

        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), self.at(name))

    def scan(self, name, *, size=(8, 9, 10)):
        rng = np.random.default_rng(crc32(name.encode()))
        self.volume(name, rng.normal(1000, 300, size).astype(np.float32))

    def json(self, name, content):
        self.at(name).write_text(json.dumps(content))

    def csv(self, name, *rows):
        with self.at(name).open("w", newline="") as file:
            csv.writer(file).writerows(rows)

    def cut(self, name):
        """Leave the first half, as an interrupted download does."""
        whole = (self.root / name).read_bytes()
        (self.root / name).write_bytes(whole[: len(whole) // 2])


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "download")


@pytest.fixture(scope="session")
def real():
    """The public data sets, which are never part of the project."""
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    root = Path(os.environ.get("CANAL_DATA") or beside)
    if not (root / "Kvasir-SEG").is_dir():
        pytest.skip(f"the public data sets are not in {root}; set CANAL_DATA to their folder")
    return root
