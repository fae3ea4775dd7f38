"""Decoding: thresholds to the grey level, labels, sizes, and files that are broken."""

import numpy as np
import pytest
from PIL import Image, ImageFilter

from canal.data.case import Case
from canal.data.decode import MASK_THRESHOLD, decode_image, decode_mask
from canal.errors import DataError


def _case(folder, images=(), masks=(), labels=()):
    files = [tuple(folder.root / name for name in names) for names in (images, masks)]
    return Case("a", *files, patient="a", labels=labels)


def test_a_mask_is_white_from_128_on(folder):
    folder.pixels("m.png", [[0, 1, 127, 128, 129, 255]])
    assert decode_mask(_case(folder, masks=["m.png"]), size=None).tolist() == [[[0, 0, 0, 1, 1, 1]]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0, 1, 0]], [0, 1, 0]),
        ([[1, 1, 1]], [1, 1, 1]),
        ([[0, 0, 0]], [0, 0, 0]),
        ([[0, 38, 0]], [0, 1, 0]),  # red of a palette, as grey
        ([[38, 38, 38]], [0, 0, 0]),
        ([[0, 1, 2]], [0, 0, 0]),
        ([[0, 1, 255]], [0, 0, 1]),
    ],
)
def test_a_mask_without_white_is_its_one_value(folder, values, expected):
    folder.pixels("m.png", values)
    assert decode_mask(_case(folder, masks=["m.png"]), size=None).tolist() == [[expected]]
    folder.pixels("m.tif", values, np.uint16)
    assert decode_mask(_case(folder, masks=["m.tif"]), size=None).tolist() == [[expected]]


def test_grey_edges_of_a_jpeg_mask_are_thresholded(folder):
    truth = np.zeros((64, 48), np.uint8)
    truth[16:40, 8:32] = 255
    soft = Image.fromarray(truth).filter(ImageFilter.GaussianBlur(1))
    soft.save(folder.at("m.jpg"), quality=60)
    stored = np.asarray(Image.open(folder.root / "m.jpg"))
    assert len(np.unique(stored)) > 10  # the test would prove nothing on a clean mask
    mask = decode_mask(_case(folder, masks=["m.jpg"]), size=None)
    assert np.array_equal(mask[0], stored >= MASK_THRESHOLD)
    # Only the corners, which the blur has rounded, may differ from the truth.
    assert (mask[0] != truth // 255).sum() <= 8


def test_the_union_of_several_masks_is_the_truth(folder):
    folder.mask("1.png", box=(0, 4, 0, 4))
    folder.mask("2.png", box=(2, 6, 2, 6))
    mask = decode_mask(_case(folder, masks=["1.png", "2.png"]), size=None)
    assert mask.shape == (1, 24, 20)
    assert mask.sum() == 16 + 16 - 4


def test_masks_of_unlike_sizes_are_refused(folder):
    folder.mask("1.png")
    folder.mask("2.png", size=(30, 20))
    with pytest.raises(DataError, match=r"2\.png has size \(30, 20\).*bring all masks"):
        decode_mask(_case(folder, masks=["1.png", "2.png"]), size=None)


def test_no_mask_at_all_is_refused(folder):
    with pytest.raises(DataError, match="a has no mask; add one"):
        decode_mask(_case(folder), size=None)


def test_a_label_map_is_compared_with_its_labels(folder):
    folder.pixels("m.png", [[0, 1, 2, 3, 200]])
    mask = decode_mask(_case(folder, masks=["m.png"], labels=(1, 3)), size=None)
    assert mask.tolist() == [[[0, 1, 0, 1, 0]]]


def test_a_palette_counts_by_index_not_by_colour(folder):
    picture = Image.frombytes("P", (3, 1), bytes([0, 1, 2]))
    picture.putpalette([0, 0, 0, 255, 0, 0, 1, 1, 1])
    picture.save(folder.at("m.png"))
    mask = decode_mask(_case(folder, masks=["m.png"], labels=(1,)), size=None)
    assert mask.tolist() == [[[0, 1, 0]]]


def test_a_shrunken_mask_keeps_what_is_at_least_half_covered(folder):
    quarter, half, most = ([[255, 0], [0, 0]], [[255, 255], [0, 0]], [[255, 255], [255, 0]])
    folder.pixels("m.png", np.hstack([quarter, half, most]))
    mask = decode_mask(_case(folder, masks=["m.png"]), size=(1, 3))
    assert mask.tolist() == [[[0, 1, 1]]]


@pytest.mark.parametrize(("channels", "colour"), [(3, True), (3, False), (1, True), (1, False)])
def test_channels_and_size_are_as_asked_for(folder, channels, colour):
    folder.image("i.png", size=(40, 30), colour=colour)
    image = decode_image(_case(folder, ["i.png"]), size=(16, 24), channels=channels)
    assert image.shape == (channels, 16, 24)
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous


def test_an_image_at_its_own_size_is_left_as_it_is(folder):
    folder.image("i.png")
    image = decode_image(_case(folder, ["i.png"]), size=None, channels=3)
    stored = np.asarray(Image.open(folder.root / "i.png"))
    assert np.array_equal(image, stored.transpose(2, 0, 1))


def test_every_file_of_a_case_is_a_channel_in_order(folder):
    folder.pixels("0.png", np.full((4, 5), 10))
    folder.pixels("1.png", np.full((4, 5), 20))
    image = decode_image(_case(folder, ["0.png", "1.png"]), size=None, channels=1)
    assert image[:, 0, 0].tolist() == [10, 20]
    assert image.shape == (2, 4, 5)


def test_twelve_bits_are_scaled_not_cut_off(folder):
    ramp = np.tile(np.linspace(0, 4095, 64), (8, 1))
    folder.pixels("i.png", ramp, np.uint16)
    image = decode_image(_case(folder, ["i.png"]), size=None, channels=1)
    assert np.abs(image[0] - ramp / 4095 * 255.0).max() < 3


def test_a_volume_is_brought_to_a_common_scale(folder):
    ramp = np.linspace(-500, 3000, 8 * 9 * 10, dtype=np.float32).reshape(8, 9, 10)
    folder.volume("v.nii.gz", ramp)
    folder.volume("w.nii.gz", 7 * ramp + 100)
    one, other = (
        decode_image(_case(folder, [name]), size=None, channels=1)
        for name in ("v.nii.gz", "w.nii.gz")
    )
    assert (one.shape, one.min(), one.max()) == ((1, 8, 9, 10), 0, 255)
    assert np.abs(one.astype(int) - other).max() <= 1


def test_one_hot_voxel_does_not_darken_the_rest(folder):
    volume = np.linspace(0, 1, 1000, dtype=np.float32).reshape(10, 10, 10)
    volume[0, 0, 0], volume[0, 0, 1] = 1e6, np.nan
    folder.volume("v.nii.gz", volume)
    assert decode_image(_case(folder, ["v.nii.gz"]), size=None, channels=1).mean() > 100


def test_modalities_on_the_fourth_axis_are_channels(folder):
    volume = np.zeros((4, 5, 6, 2), np.float32)
    volume[:2, ..., 0] = volume[2:, ..., 1] = 1
    folder.volume("v.nii.gz", volume)
    image = decode_image(_case(folder, ["v.nii.gz"]), size=None, channels=1)
    assert np.array_equal(image, 255 * np.moveaxis(volume, -1, 0))


def test_a_volume_of_time_and_channels_is_refused(folder):
    folder.volume("v.nii.gz", np.zeros((4, 5, 6, 2, 3), np.float32))
    with pytest.raises(DataError, match=r"v\.nii\.gz has 5 axes; export it as"):
        decode_image(_case(folder, ["v.nii.gz"]), size=None, channels=1)


def test_volumes_and_their_labels_are_resized_alike(folder):
    labels = np.zeros((8, 8, 8), np.int16)
    labels[:4], labels[:2] = 1, 2
    folder.volume("v.nii.gz", labels.astype(np.float32))
    folder.volume("l.nii.gz", labels)
    case = _case(folder, ["v.nii.gz"], ["l.nii.gz"], labels=(1, 2))
    assert decode_image(case, size=(4, 6, 4), channels=1).shape == (1, 4, 6, 4)
    mask = decode_mask(case, size=(4, 6, 4))
    assert mask.shape == (1, 4, 6, 4)
    assert mask.any((0, 2, 3)).tolist() == [True, True, False, False]


@pytest.mark.parametrize("name", ["i.png", "i.jpg", "i.nii.gz"])
@pytest.mark.parametrize("how", ["cut", "text", "empty"])
def test_a_broken_file_is_named_with_a_remedy(folder, name, how):
    (folder.scan if "nii" in name else folder.image)(name)
    if how == "cut":
        folder.cut(name)
    else:
        (folder.root / name).write_text("<html>not found</html>" if how == "text" else "")
    with pytest.raises(DataError, match=r"cannot be decoded .*; replace the file") as caught:
        decode_image(_case(folder, [name]), size=None, channels=3)
    assert str(caught.value).startswith(str(folder.root / name))
