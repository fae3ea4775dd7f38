"""The paper's attack table, with what its reviewers would ask for (paper, tab:exp-attacks).

For each seed an initialisation, three teachers, and teachers without one patient each; then one
cell for each release, attacked in every way. Membership of patients has a table of its own
(`canal.experiments.patients`). Noise is seeded, so that a cell can be made again, and its draws are
shared by the arms: those of statistics and those of features.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from canal.attacks.canary import Canary, exchange, measure
from canal.attacks.finding import Finding, features_mu
from canal.attacks.inversion import invert
from canal.attacks.matching import match
from canal.attacks.view import Floats, noiseless_rows, spreads
from canal.experiments.cell import Cell, Places, Report
from canal.experiments.stage import Scene
from canal.features.aggregator import create
from canal.features.ensemble import load_ensemble
from canal.features.options import Options
from canal.features.queries import Queries
from canal.features.store import Release
from canal.learning.networks import to_float, variation
from canal.learning.teacher import train

SITE = "site-1"


@dataclass(frozen=True)
class Arm:
    """One row of the table.

    Args:
        name: for people.
        preset: accounting, `paper` or `honest`.
        allocation: of the noise.
        epsilon: that is asked for.
    """

    name: str
    preset: str
    allocation: str
    epsilon: float


ARMS = (
    Arm("no noise", "paper", "none", 8),
    Arm("CANAL, the paper's eps 1,000", "paper", "canal", 1000),
    Arm("uniform, the paper's eps 8", "paper", "uniform", 8),
    Arm("CANAL, the paper's eps 8", "paper", "canal", 8),
    Arm("uniform, the paper's eps 2", "paper", "uniform", 2),
    Arm("CANAL, the paper's eps 2", "paper", "canal", 2),
    Arm("CANAL, a patient's eps 8", "honest", "canal", 8),
)


@dataclass(frozen=True)
class NetworksCell(Cell):
    """Teachers of one seed, and those without one patient.

    Args:
        scene: data and teachers.
        canaries: patients of the first site, without each of whom its teacher is trained again.
    """

    scene: Scene = field(default_factory=lambda: Scene("ISIC 2018", recipient=200))
    canaries: int = 2

    @property
    def name(self) -> str:
        """For people."""
        return f"attacks-{self.scene.seed}-networks"

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Train everything; say how large it is, and how much the bottleneck varies."""
        networks = Networks(self, places, report)
        images = to_float(_tensor(networks.asked.images))
        return {
            "members": len(networks.asked.ids),
            "others": len(networks.others.ids),
            "trained": len(networks.canaries),
            "variation": [
                variation(teacher.tap.features(images))
                for teacher in networks.stage.ensemble.teachers
            ],
        }


class Networks:
    """What a `NetworksCell` is made of; trained when first asked for, kept in the run folder."""

    def __init__(self, cell: NetworksCell, places: Places, report: Report) -> None:
        self.cell, self.report = cell, report
        self.stage = cell.scene.on(places, report)
        self.asked, self.others = self.stage.part("recipient"), self.stage.part("test")
        self.cohort = self.stage.part(SITE)

    @cached_property
    def canaries(self) -> Sequence[Path]:
        """Folders of teachers of the first site, each without one patient."""
        people = list(dict.fromkeys(self.cohort.patients.values()))
        chosen = people[: self.cell.canaries]
        places = [self.stage.folder / f"without-{number}" for number in range(len(chosen))]
        for place, person in zip(places, chosen, strict=True):
            train(
                *(place, self.stage.init, self.cohort.without(person), self.stage.training),
                name=SITE,
                report=self.stage.told(f"{place.name} of {len(chosen)}"),
            )
        return places


@dataclass(frozen=True)
class AttackCell(Cell):
    """One release and what every attack made of it.

    Args:
        networks: whose teachers.
        arm: which release.
        decoder_steps: of the inversion.
    """

    networks: NetworksCell
    arm: Arm
    decoder_steps: int = 600

    @property
    def name(self) -> str:
        """For people."""
        words = (self.arm.preset, self.arm.allocation, f"{self.arm.epsilon:g}")
        return "-".join((f"attacks-{self.networks.scene.seed}", *words))

    @property
    def after(self) -> tuple[Cell, ...]:
        """The networks."""
        return (self.networks,)

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Release, attack, measure."""
        networks = Networks(self.networks, places, report)
        seed, ensemble = self.networks.scene.seed, networks.stage.ensemble
        release = self._release(networks, places)
        digest, asked, others = release.manifest.digest, networks.asked, networks.others
        report("matching", 0, 1)
        matched = match(release, ensemble, asked, others)
        steps = iter(range(1, self.decoder_steps + 1))
        painted = invert(
            *(release, ensemble, asked, others),
            steps=self.decoder_steps,
            seed=seed,
            progress=lambda _: report("inversion", next(steps), self.decoder_steps),
        )
        painted.write_pictures(places.runs / f"{self.slug}.png", asked)
        mu = features_mu(release, "patient")
        return {
            "epsilon_patient": _epsilon(release),
            "apart": _apart(release, noiseless_rows(release, ensemble, asked)),
            "images": Finding(
                "", digest, matched, "image", features_mu(release, "image")
            ).to_json(),
            "patients": {"allowed": None if mu is None else {"unit": "patient", "mu": mu}},
            "canaries": [canary.to_json() for canary in self._canaries(networks, release)],
            "inversion": painted.to_json(),
        }

    def _release(self, networks: Networks, places: Places) -> Release:
        arm, queries = self.arm, Queries.of(networks.asked)
        ensemble = networks.stage.ensemble
        plan = ensemble.plan(queries, arm.preset, epsilon=arm.epsilon, allocation=arm.allocation)
        return create(
            places.runs / f"{self.slug}.release",
            *(ensemble, queries, plan),
            seed=self.networks.scene.seed,
            not_private=True,
            options=Options(paired=True),
        )

    def _canaries(self, networks: Networks, release: Release) -> Iterable[Canary]:
        ensemble, queries = networks.stage.ensemble, Queries.of(networks.asked)
        for place in networks.canaries:
            without = exchange(ensemble, load_ensemble([place]))
            yield measure(release, ensemble, without, queries)


def _tensor(images: Any) -> Any:
    import torch

    return torch.from_numpy(np.array(images))


def _apart(release: Release, rows: Floats) -> float:
    """Median distance of two queries, in units of the noise: what there is to tell them by."""
    scaled = rows / spreads(release)
    squares = np.square(scaled).sum(axis=1)
    apart = squares[:, None] + squares - 2 * scaled @ scaled.T
    return float(np.sqrt(np.median(apart[np.triu_indices(len(rows), 1)])))


def _epsilon(release: Release) -> float | None:
    """What the noise of a research run would cost a patient, had it come from a secret."""
    plan = release.plan
    if plan.allocation == "none":
        return None
    return plan.calibrate().guarantee.epsilon(plan.delta, "patient", "exact")
