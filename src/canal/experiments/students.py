"""Students and the networks that they are compared with: cells that tables and figures share.

All arms of a scene share split, teachers, initialisation, order of images and standard-normal
draws; they differ in one thing only. Nothing is chosen by looking at the test part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.attacks.view import noiseless_rows
from canal.data.patients import joined
from canal.experiments.cell import Cell, Places, Report
from canal.experiments.estimate import Sample
from canal.experiments.stage import Scene, Stage
from canal.features.aggregator import create
from canal.features.calibration import finite_or_none
from canal.features.distillation import Targets
from canal.features.options import Options
from canal.features.queries import Queries
from canal.features.store import Release
from canal.learning import checkpoint, evaluation, prediction
from canal.learning.networks import evaluating, home, to_float, variation
from canal.learning.settings import DistillSettings
from canal.privacy.units import UNITS
from canal.student import Mode
from canal.student import train as train_student

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from canal.data.arrays import Arrays

_BATCH = 32


@dataclass(frozen=True)
class Asked:
    """What a release is asked for.

    Args:
        preset: accounting, `paper` or `honest`.
        epsilon: that is asked for, of the preset's unit.
        allocation: `canal`, `uniform`, `reverse`, or `none`.
        share: of the channels that are released.
        choices: other arguments of `Plan`, as pairs.
    """

    preset: str = "paper"
    epsilon: float = 8.0
    allocation: str = "canal"
    share: float = 0.1
    choices: tuple[tuple[str, Any], ...] = ()

    def create(self, stage: Stage, folder: Path) -> Release:
        """Make the release; its draws are those of every arm of the scene."""
        ensemble, queries = stage.ensemble, Queries.of(stage.part("recipient"))
        channels, _ = ensemble.shape(*_shape(queries.arrays))
        plan = ensemble.plan(
            queries,
            self.preset,
            epsilon=self.epsilon,
            allocation=self.allocation,
            released=max(1, int(self.share * channels)),
            **dict(self.choices),
        )
        return create(
            *(folder, ensemble, queries, plan),
            seed=stage.scene.seed,
            not_private=True,
            options=Options(paired=True),
        )


@dataclass(frozen=True)
class NetworksCell(Cell):
    """The initialisation, the teachers and their ensemble, measured."""

    scene: Scene

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scene.name}-networks"

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Train, and measure on the test part."""
        stage = self.scene.on(places, report)
        test, asked = stage.part("test"), stage.part("recipient")
        teachers = {each.cohort: each.tap.network for each in stage.ensemble.teachers}
        networks = {"initialisation": [checkpoint.load(stage.init)[0]]}
        networks |= {name: [network] for name, network in teachers.items()}
        networks["ensemble"] = list(teachers.values())
        images = prediction.sample(asked, len(asked.ids))
        return {
            "split": stage.split.digest,
            "sizes": {name: len(stage.part(name).ids) for name in ("test", "recipient", *teachers)},
            "crowd": {
                name: len(set(joined(stage.part(name))))
                for name in ("test", "recipient", *teachers)
            },
            "people": people_of(test),
            "variation": [variation(each.tap.features(images)) for each in stage.ensemble.teachers],
            "networks": {name: scored(members, test) for name, members in networks.items()},
        }


@dataclass(frozen=True)
class StudentCell(Cell):
    """One student.

    Args:
        scene: data and teachers.
        mode: what it learns from, as `canal.student` knows it.
        asked: the release; None for students that listen to none.
        distill: how it listens.
    """

    scene: Scene
    mode: Mode = "release"
    asked: Asked | None = None
    distill: DistillSettings = field(default_factory=DistillSettings)

    @property
    def name(self) -> str:
        """For people."""
        words = [self.scene.name, self.mode]
        if self.asked is not None and self.mode != "noiseless":
            words += [self.asked.preset, self.asked.allocation, f"{self.asked.epsilon:g}"]
        return "-".join(words)

    @property
    def after(self) -> tuple[Cell, ...]:
        """The networks."""
        return (NetworksCell(self.scene),)

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Release, distil, and measure on the test part."""
        stage = self.scene.on(places, report)
        folder = places.runs / self.slug
        release = None if self.asked is None else self.asked.create(stage, folder / "release")
        train_student(
            *(folder / "student", stage.init),
            stage.part("pooled" if self.mode == "pooled" else "recipient"),
            stage.training,
            self.distill,
            release=release,
            mode=self.mode,
            report=stage.told("student"),
        )
        network, _ = checkpoint.load(folder / "student")
        found = scored([network], stage.part("test"))
        if release is None or self.mode == "noise-only":
            return found | {"release": None}
        return found | {"release": facts(release, stage, self.distill)}


def dice(found: Sequence[Mapping[str, Any]], networks: Sequence[Mapping[str, Any]]) -> Sample:
    """Dice of every test image in points, seed by seed.

    Args:
        found: results with `images`, one a seed.
        networks: results of `NetworksCell` of the same scenes, which know whom the images show.
    """
    share = networks[0]["cell"]["scene"]["test"]
    return Sample(
        tuple(100 * np.array(cell["images"]) for cell in found),
        tuple(np.array(cell["people"]) for cell in networks),
        share / (1 - share),
    )


def scored(networks: Sequence[nn.Module], test: Arrays) -> dict[str, Any]:
    """Dice of every test image, and its mean; several networks vote with their probabilities."""
    found = evaluation.dice(predict(networks, test), test)
    return {"dice": float(found.mean()), "images": [round(value, 4) for value in found.tolist()]}


def predict(networks: Sequence[nn.Module], arrays: Arrays) -> NDArray[np.uint8]:
    """Masks of the mean probability of some networks."""
    import torch

    if len(networks) == 1:
        return prediction.predict(networks[0], arrays)
    total: Any = 0
    for network in networks:
        with evaluating(network), torch.no_grad():
            batches = torch.from_numpy(np.array(arrays.images)).split(_BATCH)
            there = home(network)
            votes = [network(to_float(batch).to(there)).sigmoid().cpu() for batch in batches]
            total = total + torch.cat(votes)
    masks: NDArray[np.uint8] = (total / len(networks) > 0.5).to(torch.uint8).numpy()
    return masks


def facts(release: Release, stage: Stage, distill: DistillSettings) -> dict[str, Any]:
    r"""What a release cost everybody, and how much of what the student hears is signal.

    `signal_db` compares the targets with what they would be without noise, in decibels of
    $\sum_c w_c\,\mathrm{var}_c / \sum_c w_c\,\mathrm{mse}_c$: the variance over queries (what one
    image says that another does not) over the noise, both behind the knobs and with the weights of
    the student. So shrinking a target changes nothing; a projection that takes off more noise than
    signal does.
    """
    import torch

    plan = release.plan
    if plan.allocation == "none":
        return {"epsilon": dict.fromkeys(UNITS), "signal_db": None}
    targets = Targets(release, distill)
    shape = (-1, len(release.channels), *plan.grid)
    truth = noiseless_rows(release, stage.ensemble, stage.part("recipient")).reshape(shape)
    truth = targets.filtered(torch.from_numpy(truth).float()).double().numpy()
    heard = targets.batch(release.ids).double().numpy()
    weight = targets.weight.double().numpy()
    signal = (weight * _per_channel(truth.var(axis=0)[None])).sum()
    error = (weight * _per_channel(np.square(heard - truth))).sum()
    promise = plan.calibrate().guarantee
    return {
        "epsilon": {
            # The paper's by the paper's own conversion; what others really pay, exactly.
            unit: finite_or_none(
                promise.epsilon(plan.delta, unit, plan.conversion if unit == "paper" else "exact")
            )
            for unit in UNITS
        },
        "signal_db": 10 * math.log10(signal / error) if signal > 0 else None,
    }


def _per_channel(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means over images and places of `[N, M, *grid]`."""
    means: NDArray[np.float64] = values.reshape(*values.shape[:2], -1).mean(axis=(0, 2))
    return means


def _shape(arrays: Arrays) -> tuple[int, tuple[int, ...]]:
    return arrays.images.shape[1], arrays.images.shape[2:]


def people_of(arrays: Arrays) -> list[int]:
    """Whom each image shows, by number."""
    names = joined(arrays)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]
