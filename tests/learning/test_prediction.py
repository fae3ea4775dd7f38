"""Masks for a folder: one a picture, in its size; volumes as volumes, in their place."""

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from canal.data.readers import read
from canal.errors import DataError
from canal.learning.checkpoint import Checkpoint
from canal.learning.prediction import write_masks


class Bright(torch.nn.Module):
    """Segments whatever is brighter than the middle."""

    def forward(self, images):
        return images[:, :1]


def made(size, channels=1):
    return Checkpoint(architecture={"in_channels": channels}, size=size)


def test_pictures_keep_name_and_size(tmp_path):
    (tmp_path / "in" / "ward").mkdir(parents=True)
    truth = {}
    for name, shape in (("a.png", (40, 60)), ("ward/b.jpg", (64, 64))):
        left = np.zeros(shape, dtype=np.uint8)
        left[:, : shape[1] // 2] = 255
        Image.fromarray(left).save(tmp_path / "in" / name)
        truth[name.rsplit(".", 1)[0]] = left
    data = read(tmp_path / "in", unlabelled=True)
    assert [case.masks for case in data.cases] == [(), ()]
    written = write_masks(Bright(), made((32, 32)), data.cases, tmp_path / "out")
    assert written == [tmp_path / "out" / name for name in ("a.png", "ward/b.png")]
    for case, path in zip(data.cases, written, strict=True):
        mask = np.asarray(Image.open(path))
        assert mask.shape == truth[case.id].shape
        assert set(np.unique(mask)) == {0, 255}
        # All but the columns next to the edge, which a smaller network cannot place exactly.
        assert (mask == truth[case.id]).mean() > 0.95


def test_volumes_keep_shape_and_place(tmp_path):
    affine = np.diag([2.0, 3.0, 4.0, 1.0])
    scan = np.zeros((20, 24, 28), dtype=np.float32)
    scan[:10] = 100.0
    (tmp_path / "in").mkdir()
    nibabel.save(nibabel.Nifti1Image(scan, affine), tmp_path / "in" / "scan.nii.gz")
    data = read(tmp_path / "in", unlabelled=True)
    assert data.spatial_dims == 3
    (path,) = write_masks(Bright(), made((32, 32, 32)), data.cases, tmp_path / "out")
    found = nibabel.load(path)
    assert path.name == "scan.nii.gz"
    assert found.shape == scan.shape
    np.testing.assert_array_equal(found.affine, affine)
    assert (np.asarray(found.dataobj) == (scan > 0)).mean() > 0.9


def test_an_empty_folder_is_told(tmp_path):
    with pytest.raises(DataError, match="no data set was recognised"):
        read(tmp_path, unlabelled=True)
