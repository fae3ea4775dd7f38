"""Scores of single images: read back, and compared image by image."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from canal.errors import DataError
from canal.teachers.evaluate import Score

SCORES = "scores.csv"
DRAWS, BLOCK = 10_000, 500


def read_scores(path: Path) -> tuple[Score, ...]:
    """What `canal student evaluate` wrote.

    Raises:
        DataError: a line is no score, or an image is there twice.
    """
    again = "measure the network again with `canal student evaluate`"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            found = tuple(_score(row) for row in csv.DictReader(file))
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(f"{path} is no table of scores ({error}); {again}") from error
    if not found or len({score.id for score in found}) < len(found):
        raise DataError(f"{path} has no image, or one of them twice; {again}")
    return found


def _score(row: dict[str, str]) -> Score:
    score = Score(row["id"], float(row["dice"]), float(row["iou"]), float(row["hd95"]))
    for name in ("dice", "iou"):
        if not 0 <= getattr(score, name) <= 1:
            raise ValueError(f"{name} of {score.id} is {getattr(score, name)}, not within 0 and 1")
    if not (math.isnan(score.hd95) or score.hd95 >= 0):
        raise ValueError(f"hd95 of {score.id} is {score.hd95}")
    return score


@dataclass(frozen=True)
class Difference:
    """One network less another, on the same images.

    Args:
        mean: of Dice, over the images.
        low: end of the 95 % interval.
        high: its other end.
        images: how many.
    """

    mean: float
    low: float
    high: float
    images: int

    @property
    def verdict(self) -> str:
        """What can be told: `better`, `worse` or `open`; one image tells nothing."""
        if self.images > 1 and self.low > 0:
            return "better"
        if self.images > 1 and self.high < 0:
            return "worse"
        return "open"


def difference(mine: Mapping[str, float], theirs: Mapping[str, float]) -> Difference | None:
    """The paired difference, with a percentile bootstrap over images; None if the images differ.

    Args:
        mine: Dice by image.
        theirs: of the network that it is compared with.
    """
    if mine.keys() != theirs.keys():
        return None
    pairs = np.array([mine[name] - theirs[name] for name in sorted(mine)])
    draw = np.random.default_rng(0)
    means = np.concatenate(
        [
            pairs[draw.integers(len(pairs), size=(BLOCK, len(pairs)))].mean(axis=1)
            for _ in range(DRAWS // BLOCK)
        ]
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(float(pairs.mean()), float(low), float(high), len(pairs))
