"""Measures segmentations: Dice, IoU and HD95 of every image (MONAI), intervals, a picture.

The rule for empty masks: truth and prediction both empty is 1 (Dice and IoU),
one of them empty is 0; HD95 is defined only where both have foreground.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.data.patients import joined
from canal.learning import pictures

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from canal.data.arrays import Arrays


@dataclass(frozen=True)
class Score:
    """The scores of one image.

    Args:
        id: of the case.
        dice: 0 to 1.
        iou: 0 to 1.
        hd95: 95th percentile of the distance between the outlines, in pixels; NaN if undefined.
        person: the patient on the image (`canal.data.patients.joined`); empty: one of its own.
    """

    id: str
    dice: float
    iou: float
    hd95: float
    person: str = ""


def scores(predicted: NDArray[np.uint8], arrays: Arrays) -> list[Score]:
    """Dice, IoU and HD95 of every image, by MONAI."""
    import torch
    from monai.metrics import compute_dice, compute_hausdorff_distance, compute_iou

    found = []
    for row, (name, person) in enumerate(zip(arrays.ids, joined(arrays), strict=True)):
        ours = torch.from_numpy(predicted[row : row + 1]).float()
        truth = torch.from_numpy(np.array(arrays.masks[row : row + 1])).float()
        overlap = float(compute_dice(ours, truth, ignore_empty=False))
        iou = float(compute_iou(ours, truth, ignore_empty=False))
        distance = math.nan
        if ours.any() and truth.any():
            with warnings.catch_warnings():
                # MONAI 1.6 warns of an argument of its own.
                warnings.simplefilter("ignore", FutureWarning)
                distance = float(
                    compute_hausdorff_distance(ours, truth, include_background=True, percentile=95)
                )
        found.append(Score(name, overlap, iou, distance, person))
    return found


def dice(predicted: NDArray[np.uint8], arrays: Arrays) -> NDArray[np.float64]:
    """Dice of every image alone; HD95 takes most of the time of `scores`."""
    import torch
    from monai.metrics import compute_dice

    truth = torch.from_numpy(np.array(arrays.masks)).float()
    found = compute_dice(torch.from_numpy(predicted).float(), truth, ignore_empty=False)
    values: NDArray[np.float64] = found[:, 0].double().numpy()
    return values


def summary(found: list[Score]) -> dict[str, Any]:
    """Means over images, with a 95 % bootstrap interval for Dice that draws patients."""
    overlaps = np.array([score.dice for score in found])
    distances = np.array([score.hd95 for score in found])
    means = resampled_means(
        overlaps, [score.person or f"image {score.id}" for score in found], 2000
    )
    low, high = np.quantile(means, [0.025, 0.975])
    defined = np.isfinite(distances)
    return {
        "images": len(found),
        "dice": float(overlaps.mean()),
        "dice_interval": [float(low), float(high)],
        "iou": float(np.mean([score.iou for score in found])),
        "hd95": float(distances[defined].mean()) if defined.any() else None,
        "hd95_images": int(defined.sum()),
    }


def resampled_means(
    values: NDArray[np.float64],
    people: Sequence[str] | NDArray[np.int64],
    draws: int,
    rng: np.random.Generator | None = None,
) -> NDArray[np.float64]:
    """Means over images when patients are drawn anew, with replacement, each with all images.

    Args:
        values: one for each image.
        people: the patient on each image.
        draws: how many means.
        rng: draws them; the same every time if none is given.
    """
    _, who = np.unique(people, return_inverse=True)
    sums, counts = np.bincount(who, values), np.bincount(who)
    rng = np.random.default_rng(0) if rng is None else rng
    chosen = rng.integers(len(sums), size=(draws, len(sums)))
    means: NDArray[np.float64] = sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1)
    return means


def write_csv(path: Path, found: list[Score]) -> None:
    """One line an image."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[field.name for field in fields(Score)])
        writer.writeheader()
        writer.writerows(asdict(score) for score in found)


def from_worst_to_best(overlaps: Sequence[float], count: int) -> list[int]:
    """Rows of some images, by quantiles of their Dice: the worst, the best, and between."""
    order = np.argsort(overlaps, kind="stable")
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    chosen: list[int] = order[places].tolist()
    return chosen


def write_grid(
    path: Path, arrays: Arrays, predicted: NDArray[np.uint8], found: list[Score], count: int = 8
) -> None:
    """A picture: image, truth and prediction of cases from the worst to the best.

    A volume is shown where the lesion is largest, or in the middle if it has none.
    """
    chosen = from_worst_to_best([score.dice for score in found], count)
    columns = []
    for row in chosen:
        image, truth, ours = pictures.plane(arrays.images[row], arrays.masks[row], predicted[row])
        columns.append(
            (
                pictures.shown(image),
                pictures.outlined(image, truth, pictures.TRUTH),
                pictures.outlined(image, ours, pictures.PREDICTION),
            )
        )
    labels = [f"Dice {100 * found[row].dice:.0f}" for row in chosen]
    pictures.sheet(columns, labels).save(path)
