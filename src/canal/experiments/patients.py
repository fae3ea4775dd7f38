"""Membership of patients: canaries in small cohorts, looked for with noise and without.

An attack that finds nobody where there is no noise says nothing about noise. So canaries
(`canal.attacks.planted`) are put into a small cohort, each into half of the runs, and the same
attack is made on releases without noise, with a patient's epsilon of 8 and 1, and with the paper's.

*Features*: every shadow is a teacher trained on the cohort and half of the canaries; each in turn
plays the site's teacher, attacked by all others. Trainings favour the adversary: they start from a
network that is trained already, go on slowly, and do not vary the images. So what patients change
nearly adds up, and shadows can learn it. At twenty times the rate of learning what one patient
changes depends on all others, and the same attack finds hardly anybody.

*Gradients*: whole releases, each with members of its own, attacked in the sums that it published.
Then other members and other noise are drawn on the way that each of them went, for rates of false
alarms that a few releases cannot show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.attacks.finding import features_mu
from canal.attacks.lira import Shadows, exact_ratios, known_ratios
from canal.attacks.outcome import exact_epsilon
from canal.attacks.patients import CONTROLS, Target, attack_shadows
from canal.attacks.planted import Kind, plant
from canal.attacks.roc import Played
from canal.attacks.rounds_patients import gather
from canal.attacks.shadows import Pool, train_shadows
from canal.experiments.cell import Cell, Places, Report
from canal.experiments.course import Course
from canal.experiments.stage import Stage
from canal.experiments.taught import Lesson
from canal.features.aggregator import create
from canal.features.ensemble import load_ensemble
from canal.features.options import Options
from canal.features.queries import Queries
from canal.gradients.patients import Patients
from canal.learning.networks import to_float, variation
from canal.learning.settings import TrainingSettings
from canal.learning.teacher import load_initialisation, train

if TYPE_CHECKING:
    from canal.data.arrays import Arrays

SITE = "site-1"
# Digits of a score that are kept; those under much noise are small, so not a number of decimals.
_DIGITS = 4


@dataclass(frozen=True)
class Arm:
    """One release.

    Args:
        name: for people.
        epsilon: that is asked for; None for no noise.
        preset: of features: whose epsilon that is, `paper`'s or a patient's (`honest`).
    """

    name: str
    epsilon: float | None
    preset: str = "honest"


CLEAR = Arm("no noise", None)
FEATURES = (
    CLEAR,
    Arm("the paper's eps 100", 100, "paper"),
    Arm("the paper's eps 8", 8, "paper"),
    Arm("the paper's eps 1", 1, "paper"),
    Arm("a patient's eps 8", 8),
    Arm("a patient's eps 1", 1),
)
GRADIENTS = (CLEAR, Arm("a patient's eps 8", 8), Arm("a patient's eps 1", 1))


@dataclass(frozen=True)
class Planting:
    """Who is in a cohort.

    Args:
        kind: of the canaries, each of whom is in half of the runs.
        canaries: how many.
        ordinary: patients as they are, each of whom is in half of the runs as well.
        always: patients beside them, who are in all runs.
    """

    kind: Kind = "scrambled"
    canaries: int = 16
    ordinary: int = 8
    always: int = 8

    def planted(self, stage: Stage) -> Arrays:
        """Who is in half of the runs; canaries are of the test part, whom no cohort knows."""
        made = plant(stage.part("test"), self.kind, self.canaries, seed=stage.scene.seed)
        last = self.always + self.ordinary
        return made.beside(some_people(stage.part(SITE), self.always, last))

    def cohort(self, stage: Stage, site: str) -> Arrays:
        """Who is in all runs."""
        return some_people(stage.part(site), 0, self.always)


def some_people(arrays: Arrays, first: int, last: int) -> Arrays:
    """All images of some people, in the order of their first images."""
    people = set(list(dict.fromkeys(arrays.patients.values()))[first:last])
    return arrays.rows([name for name in arrays.ids if arrays.patients[name] in people])


@dataclass(frozen=True)
class ShadowsCell(Cell):
    """Teachers and shadows.

    Args:
        scene: data and initialisation; the teachers' training is below.
        planting: who is in the first site's cohort.
        shadows: how many.
        training: of teachers and shadows.
    """

    scene: Course
    planting: Planting = field(default_factory=Planting)
    shadows: int = 192
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(
            steps=100, batch_size=8, learning_rate=1e-4, augment=False
        )
    )

    @property
    def name(self) -> str:
        """For people."""
        return f"features-{self.scene.name}-{self.planting.kind}-shadows"

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Train; say how much the bottleneck varies."""
        import torch

        stage = self.scene.on(places, report)
        images = to_float(torch.from_numpy(np.array(stage.part("recipient").images)))
        taps = [teacher.tap for teacher in load_ensemble(self.teachers(stage), stage.init).teachers]
        pool = self.pool(stage)
        return {
            "trained": len(self.trained(stage)),
            "images": len(pool.images([*pool.always, *pool.patients])),
            "variation": [variation(tap.features(images)) for tap in taps],
        }

    def folder(self, stage: Stage) -> Path:
        """Of all networks."""
        return stage.folder / self.slug

    def teachers(self, stage: Stage) -> list[Path]:
        """One for each site, of a small cohort without canaries."""
        made = []
        for site in stage.sites:
            place = self.folder(stage) / site
            cohort = self.planting.cohort(stage, site)
            train(place, stage.init, cohort, self.training, name=site, report=stage.told(site))
            made.append(place)
        return made

    def pool(self, stage: Stage) -> Pool:
        """The first site's cohort, and who is put there."""
        cohort = self.planting.cohort(stage, SITE)
        return Pool.of_canaries(cohort, self.planting.planted(stage))

    def trained(self, stage: Stage) -> list[Path]:
        """The shadows."""
        pool = self.pool(stage)
        return train_shadows(
            self.folder(stage) / "shadows",
            stage.init,
            pool,
            pool.halves(self.shadows, stage.scene.seed),
            self.training,
            lambda number, progress: stage.report("shadows", number, self.shadows),
        )


@dataclass(frozen=True)
class FeaturesCell(Cell):
    """A release of features, and canaries of one site.

    Args:
        networks: teachers and shadows.
        arm: which release.
    """

    networks: ShadowsCell
    arm: Arm

    @property
    def name(self) -> str:
        """For people."""
        words = (self.arm.preset, "none" if self.arm.epsilon is None else f"{self.arm.epsilon:g}")
        planting = self.networks.planting
        return "-".join(("features", self.networks.scene.name, planting.kind, *words))

    @property
    def after(self) -> tuple[Cell, ...]:
        """The networks."""
        return (self.networks,)

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Release, attack."""
        stage, arm = self.networks.scene.on(places, report), self.arm
        seed, queries = stage.scene.seed, Queries.of(stage.part("recipient"))
        ensemble = load_ensemble(self.networks.teachers(stage), stage.init)
        allocation = "none" if arm.epsilon is None else "canal"
        plan = ensemble.plan(queries, arm.preset, epsilon=arm.epsilon or 8.0, allocation=allocation)
        folder = places.runs / f"{self.slug}.release"
        release = create(
            *(folder, ensemble, queries, plan),
            seed=seed,
            not_private=True,
            options=Options(paired=True),
        )
        target = Target.of(release, queries.arrays)
        pool = self.networks.pool(stage)
        report("scoring shadows", 0, 1)
        shadows = Shadows(
            target.features(self.networks.trained(stage)),
            pool.halves(self.networks.shadows, seed),
        )
        canaries = np.array(["canary" in who for who in pool.patients])
        made: dict[str, Any] = {}
        for name, whom in (("canaries", canaries), ("ordinary", ~canaries)):
            lira, plain = attack_shadows(
                *(shadows.of(whom), target.noise, seed, CONTROLS),
                noise=float(arm.epsilon is not None),
            )
            made[name] = _kept(lira) | {"plain": plain.roc.auc, "p": lira.p}
        delta, mu = plan.delta, features_mu(release, "patient")
        epsilon = None if mu is None else exact_epsilon(mu, delta)
        return made | {"epsilon": epsilon, "delta": delta, "mu": mu}


@dataclass(frozen=True)
class RoundsCell(Cell):
    """Releases of gradient rounds, each with members of its own.

    Args:
        scene: data and initialisation.
        arm: which releases.
        planting: who is in half of the releases; nobody is in all.
        releases: how many.
        lesson: how patients are asked; epsilon is the arm's.
    """

    scene: Course
    arm: Arm
    planting: Planting = field(default_factory=lambda: Planting(ordinary=24, always=0))
    releases: int = 8
    lesson: Lesson = field(default_factory=lambda: Lesson(rounds=10, directions=256))

    @property
    def name(self) -> str:
        """For people."""
        epsilon = "none" if self.arm.epsilon is None else f"{self.arm.epsilon:g}"
        return f"gradients-{self.scene.name}-{epsilon}"

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Release, attack; and play on the same ways."""
        stage = self.scene.on(places, report)
        noisy = self.arm.epsilon is not None
        lesson = replace(self.lesson, epsilon=self.arm.epsilon or 8.0, noise=noisy)
        pool = self._pool(stage, lesson)
        canaries = np.array([who.startswith("canary") for who in pool.rows])
        rng = np.random.default_rng([stage.scene.seed, 26])
        members = rng.random((self.releases, len(pool))) < 0.5
        prepared = lesson.prepare(stage, len(pool) // 2, 1)
        found: dict[str, list[Any]] = {"exact": [], "known": [], "played": [], "mu": []}
        for number, row in enumerate(members):
            report("releases", number, self.releases)
            cohort = Patients(SITE, _some(pool, row), views=lesson.views)
            folder = places.runs / self.slug / f"{number}"
            release = prepared.teach(folder, [cohort], 1000 * stage.scene.seed + number, report)
            network, _ = load_initialisation(stage.init)
            evidence = gather(release, network, [pool])
            seen = evidence if noisy else evidence.without_noise()
            found["exact"].append(exact_ratios(seen.gram, seen.observed))
            found["known"].append(known_ratios(seen.gram, seen.observed, row))
            played = evidence.play(np.ones(len(pool), bool), number, noise=noisy)
            found["played"].append((played.scores, played.members))
            found["mu"].append(evidence.mu)
        made: dict[str, Any] = {}
        for name, whom in (("canaries", canaries), ("ordinary", ~canaries)):
            plays = Played(
                np.concatenate([scores[:, whom] for scores, _ in found["played"]]),
                np.concatenate([drawn[:, whom] for _, drawn in found["played"]]),
            )
            made[name] = _kept(Played(np.array(found["exact"])[:, whom], members[:, whom])) | {
                "known": Played(np.array(found["known"])[:, whom], members[:, whom]).roc.auc,
                "played": _rates(plays),
                "mu": np.median(np.array(found["mu"])[:, whom]).item(),
            }
        plan = prepared.plan
        promise = plan.calibrate().guarantee if noisy else None
        return made | {
            "epsilon": self.arm.epsilon,
            "delta": plan.delta,
            "mu": None if promise is None else promise.mu("membership"),
            "coordinates": plan.coordinates,
        }

    def _pool(self, stage: Stage, lesson: Lesson) -> Patients:
        """Ordinary patients of the first site, and canaries."""
        return Patients("pool", self.planting.planted(stage), views=lesson.views)


def _some(pool: Patients, row: Sequence[bool]) -> Arrays:
    """Images of these patients."""
    chosen = [mine for inside, mine in zip(row, pool.rows.values(), strict=True) if inside]
    return pool.arrays.rows([pool.arrays.ids[each] for mine in chosen for each in mine])


RATES = (0.01, 0.001)


def _rates(played: Played) -> dict[str, Any]:
    """What a table says of it."""
    roc = played.roc
    seen = [rate for rate in RATES if rate * len(roc.others) >= 1]
    return {
        "auc": roc.auc,
        "auc_interval": list(played.auc_interval),
        "members": len(roc.members),
        "others": len(roc.others),
        "tpr": {f"{rate:g}": [roc.tpr(rate), *roc.tpr_interval(rate)] for rate in seen},
    }


def _kept(played: Played) -> dict[str, Any]:
    """The same with the scores: data sets are looked at together."""
    roc = played.roc
    return _rates(played) | {
        "scores": {
            side: [float(f"{score:.{_DIGITS}g}") for score in scores]
            for side, scores in (("members", roc.members), ("others", roc.others))
        }
    }


def cells(
    seeds: int, data_sets: Sequence[str] = ("Kvasir-SEG", "BUSI")
) -> list[FeaturesCell | RoundsCell]:
    """Everything that the table is made of; all data sets with one seed, then with the next."""
    found: list[FeaturesCell | RoundsCell] = []
    training = TrainingSettings(steps=200, batch_size=8)
    for seed, name in product(range(seeds), data_sets):
        scene = Course(
            *(name, seed, 32), recipient=40, base_channels=8, training=training, start=1000
        )
        networks = ShadowsCell(scene)
        found += [FeaturesCell(networks, arm) for arm in FEATURES]
        found += [RoundsCell(scene, arm) for arm in GRADIENTS]
    return found
