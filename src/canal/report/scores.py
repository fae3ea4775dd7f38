"""Scores of single images: read back, and compared image by image."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from canal.errors import DataError
from canal.learning.evaluation import Score, resampled_means

SCORES = "scores.csv"
DRAWS = 10_000


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
    score = Score(
        row["id"],
        float(row["dice"]),
        float(row["iou"]),
        float(row["hd95"]),
        row.get("person") or "",
    )
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


def difference(mine: Sequence[Score], theirs: Sequence[Score]) -> Difference | None:
    """The paired difference, with a percentile bootstrap over people; None if the images differ.

    Args:
        mine: of one network.
        theirs: of the network that it is compared with.
    """
    ours, others = ({score.id: score for score in each} for each in (mine, theirs))
    if ours.keys() != others.keys():
        return None
    names = sorted(ours)
    pairs = np.array([ours[name].dice - others[name].dice for name in names])
    people = [ours[name].person or f"image {name}" for name in names]
    low, high = np.quantile(resampled_means(pairs, people, DRAWS), [0.025, 0.975])
    return Difference(float(pairs.mean()), float(low), float(high), len(pairs))
