"""Comparisons: rows of arms over the same seeds (or hospitals), and what one gains over another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from paper.arms import Networks
from paper.estimates import Estimate, Sample
from paper.scenario import Scenario
from paper.trial import Arm, Results, Trial


@dataclass(frozen=True)
class Row:
    """Where the Dice of a row is.

    Args:
        arm: that measures it.
        part: of its result, with dots between names; all of it if empty.
        changes: fields of the scenario that are other ones for this row.
    """

    arm: Arm
    part: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)

    def trial(self, scenario: Scenario) -> Trial:
        """The arm in a scenario."""
        return Trial(replace(scenario, **self.changes), self.arm)

    def result(self, results: Results, scenario: Scenario) -> Mapping[str, Any]:
        """Dice, image by image, and what else was found."""
        found: Mapping[str, Any] = results[self.trial(scenario)]
        for name in filter(None, self.part.split(".")):
            found = found[name]
        return found


Rows = Mapping[str, Row]
NETWORKS = Row(Networks())


def trials(scenarios: Iterable[Scenario], rows: Rows) -> list[Trial]:
    """All rows, and the networks that know whom the test images show."""
    return [row.trial(each) for each in scenarios for row in (NETWORKS, *rows.values())]


def fields_of(settings: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Those of some settings that are fields of a dataclass."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in settings.items() if name in names}


class Comparison:
    """Rows of one data set over the same scenarios.

    Args:
        results: of all trials.
        scenarios: seeds of one data set, or hospitals.
        rows: by label.
    """

    def __init__(self, results: Results, scenarios: Sequence[Scenario], rows: Rows) -> None:
        self.name = scenarios[0].data_set
        self.networks = [NETWORKS.result(results, each) for each in scenarios]
        self.rows = {
            label: [row.result(results, each) for each in scenarios] for label, row in rows.items()
        }
        self._people = tuple(np.array(each["people"]) for each in self.networks)
        test = scenarios[0].test
        self._ratio = test / (1 - test)
        self._samples: dict[str, Sample] = {}
        self._gains: dict[tuple[str, str], Estimate] = {}

    def sample(self, label: str) -> Sample:
        """Dice of a row, or of a network by its name, or of `teachers` (their mean)."""
        if label not in self._samples:
            values = tuple(100 * np.array(images) for images in self._images(label))
            self._samples[label] = Sample(values, self._people, self._ratio)
        return self._samples[label]

    def _images(self, label: str) -> Iterable[Any]:
        if label in self.rows:
            return [each["images"] for each in self.rows[label]]
        if label == "teachers":
            return [_mean_teacher(each["networks"]) for each in self.networks]
        return [each["networks"][label]["images"] for each in self.networks]

    def dice(self, label: str) -> Estimate:
        """The mean Dice."""
        return self.sample(label).estimate()

    def gain(self, label: str, over: str) -> Estimate:
        """The paired difference of two rows."""
        if (label, over) not in self._gains:
            difference = self.sample(label).minus(self.sample(over))
            self._gains[label, over] = difference.estimate()
        return self._gains[label, over]

    def closed(self, label: str, below: str, above: str) -> str:
        """The share of the gap between two rows that a row closes, if there is any."""
        ours, low_end, high_end = (self.sample(name) for name in (label, below, above))
        gap = high_end.resampled - low_end.resampled
        if np.quantile(gap, 0.025) <= 0:
            return "no gap"
        low, high = np.quantile(100 * (ours.resampled - low_end.resampled) / gap, [0.025, 0.975])
        start = low_end.means.mean()
        share = (ours.means.mean() - start) / (high_end.means.mean() - start)
        return f"{100 * share:.0f} % ({low:.0f} to {high:.0f})"


def _mean_teacher(networks: Mapping[str, Any]) -> Any:
    sites = [name for name in networks if name not in ("initialisation", "ensemble")]
    return np.mean([networks[name]["images"] for name in sites], axis=0)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    lines = (heads, ["---"] * len(heads), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def bold(gain: Estimate, p: float) -> str:
    """A difference, bold where chance does not explain it."""
    return f"**{gain.signed}**" if p < 0.05 else gain.signed
