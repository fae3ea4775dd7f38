r"""Estimates over seeds and test images: means, paired differences, and what chance explains.

Every seed splits the same data set anew. Intervals are a bootstrap on both levels: seeds are drawn,
then people within each, anew whenever a seed comes again. A bootstrap of five seeds is short where
seeds differ much. A p-value is Student's over the means of the seeds (with five of them, no rank
test can be significant at all), corrected for what splits share: cohorts and test parts overlap, so
the variance of their mean is not $s^2/J$ but $s^2(1/J + n_\text{test}/n_\text{train})$ (Nadeau and
Bengio 2003).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from canal.learning.evaluation import resampled_means

Floats = NDArray[np.float64]
DRAWS = 4000


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

    def __str__(self) -> str:
        return f"{self.mean:.1f} ({self.low:.1f} to {self.high:.1f})"

    @property
    def signed(self) -> str:
        """With the sign of a difference."""
        return f"{self.mean:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


@dataclass(frozen=True)
class Sample:
    """Values of the test images of every seed.

    Args:
        values: one array a seed.
        people: whom each image shows, by number; one array a seed.
        ratio: of test to training images in every split.
    """

    values: tuple[Floats, ...]
    people: tuple[NDArray[np.int64], ...]
    ratio: float

    def minus(self, other: Sample) -> Sample:
        """The paired difference, image by image."""
        pairs = zip(self.values, other.values, strict=True)
        return Sample(tuple(ours - theirs for ours, theirs in pairs), self.people, self.ratio)

    @property
    def means(self) -> Floats:
        """Of every seed."""
        return np.array([values.mean() for values in self.values])

    def estimate(self) -> Estimate:
        """The mean over seeds of the mean over images, with its interval and p-value."""
        means = self.means
        low, high = np.quantile(self.resampled, [0.025, 0.975])
        return Estimate(float(means.mean()), float(low), float(high), p_value(means, self.ratio))

    @cached_property
    def resampled(self) -> Floats:
        """Means when seeds, and people within them, are drawn anew; the same draws every time."""
        rng = np.random.default_rng(0)
        count = len(self.values)
        found = np.zeros(DRAWS)
        for seeds in rng.integers(count, size=(count, DRAWS)):
            for seed, (values, people) in enumerate(zip(self.values, self.people, strict=True)):
                chosen = np.flatnonzero(seeds == seed)
                found[chosen] += resampled_means(values, people, len(chosen), rng) / count
        return found


def p_value(means: Floats, ratio: float) -> float:
    """That the mean is zero; two-sided, NaN with one seed, 1 if all are zero.

    Args:
        means: of every seed.
        ratio: of test to training images; 0 where seeds share nothing.
    """
    if len(means) < 2:
        return math.nan
    from scipy.stats import t  # type: ignore[import-untyped]

    spread = math.sqrt(float(means.var(ddof=1)) * (1 / len(means) + ratio))
    if not spread:
        return 0.0 if means[0] else 1.0
    return float(2 * t.sf(abs(float(means.mean())) / spread, len(means) - 1))


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
