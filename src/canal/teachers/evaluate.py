"""How good a segmentation is: Dice, IoU and HD95 of every image (MONAI), and a picture.

The rule for empty masks, written down once: truth and prediction both empty is 1 (Dice and IoU),
one of them empty is 0; HD95 is defined only where both have foreground.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.models.mode import evaluating
from canal.teachers import picture
from canal.teachers.batches import to_float

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from canal.data.cache import Arrays

_BATCH = 32


@dataclass(frozen=True)
class Score:
    """One image.

    Args:
        id: of the case.
        dice: 0 to 1.
        iou: 0 to 1.
        hd95: 95th percentile of the distance between the outlines, in pixels; NaN if undefined.
    """

    id: str
    dice: float
    iou: float
    hd95: float


def predict(network: nn.Module, arrays: Arrays) -> NDArray[np.uint8]:
    """Masks of all images, `[N, 1, *size]` of zeros and ones."""
    import torch

    masks = []
    with evaluating(network), torch.no_grad():
        for start in range(0, len(arrays.ids), _BATCH):
            pixels = torch.from_numpy(np.array(arrays.images[start : start + _BATCH]))
            masks.append((network(to_float(pixels)) > 0).to(torch.uint8).numpy())
    return np.concatenate(masks)


def scores(predicted: NDArray[np.uint8], arrays: Arrays) -> list[Score]:
    """Dice, IoU and HD95 of every image, by MONAI."""
    import torch
    from monai.metrics import compute_dice, compute_hausdorff_distance, compute_iou

    found = []
    for row, name in enumerate(arrays.ids):
        ours = torch.from_numpy(predicted[row : row + 1]).float()
        truth = torch.from_numpy(np.array(arrays.masks[row : row + 1])).float()
        dice = float(compute_dice(ours, truth, ignore_empty=False))
        iou = float(compute_iou(ours, truth, ignore_empty=False))
        distance = math.nan
        if ours.any() and truth.any():
            with warnings.catch_warnings():
                # MONAI 1.6 warns of an argument of its own.
                warnings.simplefilter("ignore", FutureWarning)
                distance = float(
                    compute_hausdorff_distance(ours, truth, include_background=True, percentile=95)
                )
        found.append(Score(name, dice, iou, distance))
    return found


def summary(found: list[Score]) -> dict[str, Any]:
    """Means over images, with a 95 % bootstrap interval for Dice."""
    dice = np.array([score.dice for score in found])
    distances = np.array([score.hd95 for score in found])
    draws = np.random.default_rng(0).integers(len(dice), size=(2000, len(dice)))
    low, high = np.quantile(dice[draws].mean(axis=1), [0.025, 0.975])
    defined = np.isfinite(distances)
    return {
        "images": len(found),
        "dice": float(dice.mean()),
        "dice_interval": [float(low), float(high)],
        "iou": float(np.mean([score.iou for score in found])),
        "hd95": float(distances[defined].mean()) if defined.any() else None,
        "hd95_images": int(defined.sum()),
    }


def write_csv(path: Path, found: list[Score]) -> None:
    """One line an image."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=["id", "dice", "iou", "hd95"])
        writer.writeheader()
        writer.writerows(asdict(score) for score in found)


def from_worst_to_best(dice: Sequence[float], count: int) -> list[int]:
    """Rows of some images, by quantiles of their Dice: the worst, the best, and between."""
    order = np.argsort(dice, kind="stable")
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    chosen: list[int] = order[places].tolist()
    return chosen


def write_grid(
    path: Path, arrays: Arrays, predicted: NDArray[np.uint8], found: list[Score], count: int = 8
) -> None:
    """A picture: image, truth and prediction of cases from the worst to the best.

    A volume is shown where the lesion is largest, or in the middle if it has none.
    """
    from PIL import Image, ImageDraw

    chosen = from_worst_to_best([score.dice for score in found], count)
    height, width = arrays.images.shape[2:4]
    scale = picture.enlargement(width)
    side, tall, gap, label = scale * width, scale * height, 6, 18
    sheet = Image.new(
        "RGB", (len(chosen) * (side + gap) + gap, 3 * (tall + gap) + gap + label), "white"
    )
    draw = ImageDraw.Draw(sheet)
    for column, row in enumerate(chosen):
        left = gap + column * (side + gap)
        image, truth, ours = picture.plane(arrays.images[row], arrays.masks[row], predicted[row])
        panels = (
            picture.shown(image),
            picture.outlined(image, truth, picture.TRUTH),
            picture.outlined(image, ours, picture.PREDICTION),
        )
        for line, panel in enumerate(panels):
            large = Image.fromarray(panel).resize((side, tall), Image.Resampling.NEAREST)
            sheet.paste(large, (left, gap + line * (tall + gap)))
        text = f"Dice {100 * found[row].dice:.0f}"
        draw.text((left + 2, gap + 3 * (tall + gap)), text, fill="black")
    sheet.save(path)
