"""The results of one data set, arm by arm: what tables of several experiments share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from canal.experiments.estimate import Estimate, Sample
from canal.experiments.students import dice


@dataclass(frozen=True)
class DataSet:
    """The results of one data set.

    Args:
        name: of the data set.
        networks: who is tested, and what there is beside the arms; one a seed.
        arms: Dice of every arm, image by image; one a seed.
    """

    name: str
    networks: Sequence[Mapping[str, Any]]
    arms: Mapping[str, Sequence[Mapping[str, Any]]]

    def dice(self, arm: str) -> Sample:
        """Of a student, or of `initialisation`, `teachers` (their mean) or `ensemble`."""
        if arm in self.arms:
            return dice(self.arms[arm], self.networks)
        if arm == "teachers":
            return dice([_mean_teacher(cell) for cell in self.networks], self.networks)
        return dice([cell["networks"][arm] for cell in self.networks], self.networks)

    def gain(self, arm: str, over: str = "alone") -> Estimate:
        """The paired difference of two arms."""
        return self.dice(arm).minus(self.dice(over)).estimate()

    def closed(self, arm: str, above: str = "pooled", below: str = "alone") -> str:
        """The share of the gap between two networks that an arm closes, if there is any."""
        low_end, high_end = (self.dice(name).resampled() for name in (below, above))
        gap = high_end - low_end
        if np.quantile(gap, 0.025) <= 0:
            return "no gap"
        closed = 100 * (self.dice(arm).resampled() - low_end) / gap
        means = [self.dice(name).means.mean() for name in (arm, below, above)]
        low, high = np.quantile(closed, [0.025, 0.975])
        return (
            f"{100 * (means[0] - means[1]) / (means[2] - means[1]):.0f} % ({low:.0f} to {high:.0f})"
        )


def _mean_teacher(cell: Mapping[str, Any]) -> dict[str, Any]:
    sites = [name for name in cell["networks"] if name not in ("initialisation", "ensemble")]
    return {"images": np.mean([cell["networks"][name]["images"] for name in sites], axis=0)}
