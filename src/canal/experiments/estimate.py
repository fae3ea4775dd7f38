r"""Estimates over seeds and test images: means, paired differences, and what chance explains.

Every seed has its own split, so its own test images. Intervals are a bootstrap on both levels:
seeds are drawn, then people within each. A p-value is Student's, paired, over the means of the
seeds: with five of them, no rank test can be significant at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DRAWS = 4000


@dataclass(frozen=True)
class Sample:
    """Values of the test images of every seed.

    Args:
        values: one array a seed.
        people: whom each image shows, by number; one array a seed.
    """

    values: tuple[Floats, ...]
    people: tuple[NDArray[np.int64], ...]

    def minus(self, other: Sample) -> Sample:
        """The paired difference, image by image."""
        pairs = zip(self.values, other.values, strict=True)
        return Sample(tuple(ours - theirs for ours, theirs in pairs), self.people)

    @property
    def means(self) -> Floats:
        """Of every seed."""
        return np.array([values.mean() for values in self.values])

    def estimate(self) -> Estimate:
        """The mean over seeds of the mean over images, with its interval and p-value."""
        means = self.means
        low, high = np.quantile(self.resampled(), [0.025, 0.975])
        return Estimate(float(means.mean()), float(low), float(high), paired_p(means))

    def resampled(self) -> Floats:
        """Means when seeds, and people within them, are drawn anew; the same draws every time."""
        rng = np.random.default_rng(0)
        drawn = np.stack(
            [_resampled(v, p, rng) for v, p in zip(self.values, self.people, strict=True)]
        )
        seeds = rng.integers(len(drawn), size=(len(drawn), DRAWS))
        found: Floats = np.take_along_axis(drawn, seeds, axis=0).mean(axis=0)
        return found


@dataclass(frozen=True)
class Estimate:
    """A mean and how sure it is.

    Args:
        mean: over seeds.
        low: end of the 95 % interval.
        high: its other end.
        p: of a mean of zero; NaN with one seed.
    """

    mean: float
    low: float
    high: float
    p: float


def paired_p(means: Floats) -> float:
    """Student's t-test that the mean is zero; 1 if all values are."""
    if len(means) < 2:
        return math.nan
    from scipy.stats import ttest_1samp  # type: ignore[import-untyped]

    if not np.ptp(means):
        return 0.0 if means[0] else 1.0
    return float(ttest_1samp(means, 0.0).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the chance of any false alarm among them all stays below each.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order.tolist()):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def _resampled(
    values: Floats, people: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.float64]:
    sums, counts = np.bincount(people, values), np.bincount(people)
    means = np.empty(DRAWS)
    for start in range(0, DRAWS, 500):
        chosen = rng.integers(len(sums), size=(500, len(sums)))
        means[start : start + 500] = sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1)
    return means
