"""Evaluation: Dice, IoU and HD95 against other hands, the rule for empty masks, and the files."""

import csv
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch import nn

from canal.data.arrays import Arrays
from canal.learning import prediction
from canal.learning.evaluation import Score, scores, summary, write_csv, write_grid
from canal.learning.prediction import predict


def truth_of(masks):
    masks = np.asarray(masks, dtype=np.uint8)
    images = np.zeros(masks.shape, dtype=np.uint8)
    return Arrays(tuple(f"case-{i}" for i in range(len(masks))), images, masks, "")


def blobs(count, size, seed):
    rng = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(rng.standard_normal((count, *size)), [0, *[2] * len(size)])
    return (smooth > np.quantile(smooth, 0.6)).astype(np.uint8)[:, None]


def hd95(ours, truth):
    """Of the outlines, by scipy's distance transform; the larger of the two directions."""
    edges = [mask & ~ndimage.binary_erosion(mask) for mask in (ours > 0, truth > 0)]
    return max(
        np.percentile(ndimage.distance_transform_edt(~other)[one], 95)
        for one, other in (edges, edges[::-1])
    )


@pytest.mark.parametrize("size", [(24, 30), (12, 14, 10)])
def test_against_set_arithmetic_and_scipy(size):
    predicted, arrays = blobs(6, size, 0), truth_of(blobs(6, size, 1))
    for row, score in enumerate(scores(predicted, arrays)):
        ours, truth = predicted[row, 0], arrays.masks[row, 0]
        both, either = (ours & truth).sum(), (ours | truth).sum()
        assert score.id == f"case-{row}"
        assert 0 < score.dice < 1
        assert score.dice == pytest.approx(2 * both / (ours.sum() + truth.sum()), abs=1e-6)
        assert score.iou == pytest.approx(both / either, abs=1e-6)
        assert score.hd95 == pytest.approx(hd95(ours, truth), abs=1e-4)


def test_hausdorff_of_two_points_by_scikit_image():
    metrics = pytest.importorskip("skimage.metrics")
    ours, truth = np.zeros((2, 1, 1, 16, 16), dtype=np.uint8)
    ours[0, 0, 3, 4], truth[0, 0, 6, 8] = 1, 1
    (score,) = scores(ours, truth_of(truth))
    assert score.hd95 == pytest.approx(5)  # 3, 4, 5
    assert score.hd95 == pytest.approx(metrics.hausdorff_distance(ours[0, 0] > 0, truth[0, 0] > 0))


def test_by_hand():
    """Four and six pixels that share three: Dice 6/10, IoU 3/7."""
    ours, truth = np.zeros((2, 1, 1, 8, 8), dtype=np.uint8)
    ours[0, 0, 2, 1:5], truth[0, 0, 2, 2:8] = 1, 1
    (score,) = scores(ours, truth_of(truth))
    assert score.dice == pytest.approx(0.6)
    assert score.iou == pytest.approx(3 / 7)


@pytest.mark.parametrize(
    ("ours", "truth", "overlap", "distance"),
    [(0, 0, 1, math.nan), (1, 0, 0, math.nan), (0, 1, 0, math.nan), (1, 1, 1, 0)],
)
@pytest.mark.parametrize("size", [(8, 8), (8, 8, 8)])
def test_the_rule_for_empty_masks(ours, truth, overlap, distance, size):
    masks = np.zeros((2, 1, 1, *size), dtype=np.uint8)
    masks[0, 0, 0, 2:5, 2:5], masks[1, 0, 0, 2:5, 2:5] = ours, truth
    (score,) = scores(masks[0], truth_of(masks[1]))
    assert (score.dice, score.iou) == (overlap, overlap)
    assert score.hd95 == pytest.approx(distance, nan_ok=True)


class Threshold(nn.Module):
    """Foreground where a pixel is brighter than the middle; knows what it was given."""

    def __init__(self):
        super().__init__()
        self.frozen, self.trained = nn.BatchNorm2d(1), nn.BatchNorm2d(1)
        self.batches, self.modes = [], []

    def forward(self, images):
        self.batches.append(len(images))
        self.modes.append((self.training, self.trained.training, torch.is_grad_enabled()))
        if len(self.batches) == 3:
            raise ArithmeticError("on purpose")
        return images[:, :1]


@pytest.mark.parametrize("size", [(8, 8), (4, 8, 8)])
def test_predict_thresholds_at_one_half_in_batches_in_order(make_arrays, size):
    arrays = make_arrays(40, size, channels=3)
    predicted = predict(Threshold(), arrays)
    assert predicted.dtype == np.uint8
    assert np.array_equal(predicted, (arrays.images[:, :1] >= 128).astype(np.uint8))


def test_predict_leaves_the_network_as_found(make_arrays):
    network = Threshold().train()
    network.frozen.eval()
    predict(network, make_arrays(40))
    assert network.modes == [(False, False, False)] * 2
    with pytest.raises(ArithmeticError):
        predict(network, make_arrays(8))
    assert network.training
    assert network.trained.training
    assert not network.frozen.training
    assert torch.is_grad_enabled()


def test_summary_counts_what_is_defined():
    found = [Score("a", 1.0, 1.0, math.nan), Score("b", 0.5, 0.4, 3.0), Score("c", 0.0, 0.1, 5.0)]
    made = summary(found)
    assert (made["images"], made["hd95_images"]) == (3, 2)
    assert (made["dice"], made["iou"], made["hd95"]) == (0.5, 0.5, 4.0)
    assert summary(found[:1])["hd95"] is None


@pytest.mark.parametrize("count", [1, 2, 5, 60])
def test_the_interval_holds_the_mean_and_narrows(count):
    dice = np.random.default_rng(count).beta(5, 1, count)
    made = summary([Score(f"{row}", value, value, value) for row, value in enumerate(dice)])
    low, high = made["dice_interval"]
    assert low - 1e-12 <= made["dice"] <= high + 1e-12
    assert dice.min() - 1e-12 <= low
    assert high <= dice.max() + 1e-12
    if count == 60:  # as the normal approximation has it, within a fifth
        assert high - low == pytest.approx(2 * 1.96 * dice.std() / math.sqrt(60), rel=0.2)


def test_csv_is_read_back(tmp_path):
    found = [Score('north, "first"', 0.1 + 0.2, 1 / 3, math.nan), Score("é", 1.0, 1.0, 0.5)]
    write_csv(tmp_path / "scores.csv", found)
    with (tmp_path / "scores.csv").open(newline="") as file:
        read = [
            Score(row["id"], *(float(row[name]) for name in ("dice", "iou", "hd95")))
            for row in csv.DictReader(file)
        ]
    assert repr(read) == repr(found)


@pytest.mark.parametrize(
    ("size", "channels", "panel"),
    [
        ((32, 32), 1, (192, 192)),
        ((32, 32), 3, (192, 192)),
        ((32, 48), 3, (128, 192)),
        ((256, 256), 1, (256, 256)),
        ((16, 48, 32), 1, (64, 192)),
        ((32, 32, 32), 1, (192, 192)),
    ],
)
def test_the_grid_shows_image_truth_and_prediction(tmp_path, make_arrays, size, channels, panel):
    arrays = make_arrays(10, size, channels)
    predicted = np.zeros_like(arrays.masks)
    found = [Score(name, row / 10, 0, 0) for row, name in enumerate(arrays.ids)]
    write_grid(tmp_path / "grid.png", arrays, predicted, found, count=4)
    with Image.open(tmp_path / "grid.png") as picture:
        sheet = np.asarray(picture)
    tall, side = panel
    assert sheet.shape == (3 * (tall + 6) + 6 + 18, 4 * (side + 6) + 6, 3)

    def shown(line, column):
        top, left = 6 + line * (tall + 6), 6 + column * (side + 6)
        return sheet[top : top + tall, left : left + side]

    for column, row in enumerate([0, 3, 6, 9]):  # from the worst to the best
        image, mask = arrays.images[row], arrays.masks[row, 0]
        if len(size) == 3:
            largest = np.argmax([mask[..., z].sum() for z in range(size[2])])
            image, mask = image[..., largest], mask[..., largest]
        colours = np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0)
        scale = tall // image.shape[1]
        want = colours.repeat(scale, axis=0).repeat(scale, axis=1)
        assert np.array_equal(shown(0, column), want)
        assert np.array_equal(shown(2, column), want)  # nothing predicted, nothing drawn
        drawn = (shown(1, column) == (80, 220, 120)).all(axis=2)[::scale, ::scale]
        outline = mask.astype(bool) & ~ndimage.binary_erosion(mask)
        assert outline.any()
        assert np.array_equal(drawn, outline)
        assert np.array_equal(shown(1, column)[::scale, ::scale][~drawn], colours[~drawn])


def test_a_volume_without_a_lesion_is_shown_in_the_middle(tmp_path):
    images = np.arange(8, dtype=np.uint8) * np.ones((1, 1, 8, 8, 1), dtype=np.uint8)
    empty = np.zeros_like(images)
    write_grid(
        tmp_path / "grid.png", Arrays(("a",), images, empty, ""), empty, [Score("a", 1, 1, 0)]
    )
    with Image.open(tmp_path / "grid.png") as picture:
        assert picture.getpixel((20, 20)) == (4, 4, 4)


def test_a_grid_of_fewer_images_than_asked_for(tmp_path, make_arrays):
    arrays = make_arrays(2)
    found = [Score(name, 0.5, 0.5, 1.0) for name in arrays.ids]
    write_grid(tmp_path / "grid.png", arrays, arrays.masks, found)
    with Image.open(tmp_path / "grid.png") as sheet:
        assert sheet.width == 2 * (192 + 6) + 6


def test_batches_of_evaluation_are_bounded(make_arrays):
    network = Threshold()
    predict(network, make_arrays(prediction._BATCH + 1))
    assert network.batches == [prediction._BATCH, 1]
