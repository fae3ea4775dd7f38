"""The composition penalty: features released once, against fresh noise at every student step.

The accounting for any number of steps, and one real per-iteration run at the steps that our student
takes, at the same epsilon.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from canal.experiments.cell import Cell, Places, Report
from canal.experiments.drawing import alone
from canal.experiments.markdown import row, shown, table
from canal.experiments.preset import Preset
from canal.experiments.stage import Scene
from canal.experiments.students import Asked, NetworksCell, StudentCell, dice, scored
from canal.features.mechanism import Mechanism
from canal.features.per_iteration import PerIterationRelease
from canal.features.plan import Plan
from canal.features.queries import Queries
from canal.features.statistics import Statistics
from canal.learning import checkpoint
from canal.privacy.iteration import Penalty, penalty, releases_per_image
from canal.privacy.randomness import Secret
from canal.privacy.units import Participants
from canal.release.chart import lines
from canal.student import train as train_student

ASKED = Asked(epsilon=8.0, allocation="uniform")
TIMES = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)


@dataclass(frozen=True)
class IterationCell(Cell):
    """A student whose every batch is answered with fresh noise.

    Args:
        scene: data and teachers.
        asked: what all answers together may cost.
    """

    scene: Scene
    asked: Asked = ASKED

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scene.name}-per-iteration-{self.asked.epsilon:g}"

    @property
    def after(self) -> tuple[Cell, ...]:
        """The networks."""
        return (NetworksCell(self.scene),)

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Answer every batch anew, and measure on the test part."""
        stage = self.scene.on(places, report)
        folder, asked = places.runs / self.slug, stage.part("recipient")
        once = self.asked.create(stage, folder / "once")
        training = stage.training
        times = releases_per_image(training.steps, training.batch_size, len(asked.ids))
        plan = replace(once.plan, releases=times)
        statistics = Statistics.from_json(once.manifest.statistics)
        often = PerIterationRelease(
            Mechanism.of(plan.calibrate(statistics.weights(plan)), statistics),
            stage.ensemble,
            Queries.of(asked),
            Secret.seeded(self.scene.seed),
        )
        # Fresh noise is counted from the start: what a killed run left behind is not gone on with.
        if (folder / "student").exists():
            shutil.rmtree(folder / "student")
        train_student(
            *(folder / "student", stage.init, asked, training),
            release=often,
            report=stage.told("student"),
        )
        network, _ = checkpoint.load(folder / "student")
        spent = often.spent()
        return scored([network], stage.part("test")) | {
            "releases": times,
            "most_asked": max(often.asked.values()),
            "epsilon": spent.epsilon(plan.delta, "paper", plan.conversion),
            "noise_factor": float(often.mechanism.sigma[0] / once.manifest.mechanism["sigma"][0]),
        }


def scenes(preset: Preset) -> list[Scene]:
    """Of the second data set, the few seeds."""
    return preset.scenes(preset.data_sets[len(preset.data_sets) // 2], preset.few)


def cells(preset: Preset) -> Sequence[Cell]:
    """The real runs: once, per iteration, alone."""
    return [
        cell
        for scene in scenes(preset)
        for cell in (
            IterationCell(scene),
            StudentCell(scene, "release", ASKED),
            StudentCell(scene, "alone"),
        )
    ]


def page(preset: Preset, places: Places) -> str:
    """Accounting for any Q, and the real runs."""
    accounting = table(
        ["Q", "eps at the same noise, exact", "noise at the same eps", "signal lost"],
        [
            row(
                [
                    f"{each.releases:,}",
                    f"{each.epsilon_per_iteration:.4g}",
                    f"× {each.sigma_factor:.3g}",
                    f"{each.snr_loss_db:.1f} dB",
                ]
            )
            for each in _penalties(preset)
        ],
    )
    chosen = scenes(preset)
    networks = [NetworksCell(scene).result(places) for scene in chosen]
    often = [IterationCell(scene).result(places) for scene in chosen]
    once = [StudentCell(scene, "release", ASKED).result(places) for scene in chosen]
    silent = dice([StudentCell(scene, "alone").result(places) for scene in chosen], networks)
    rows = []
    for name, made in (
        ("released once, uniform eps 8", once),
        (f"at every step, Q = {often[0]['releases']}, uniform eps 8", often),
    ):
        ours = dice(made, networks)
        gain = ours.minus(silent).estimate()
        rows.append(row([name, shown(ours.estimate()), shown(gain, signed=True)]))
    return f"{accounting}\n{table([chosen[0].data_set, 'Dice', 'less alone'], rows)}"


def figures(preset: Preset, places: Places) -> dict[str, str]:  # noqa: ARG001  # as all others
    """Epsilon at the same noise, once and per iteration."""
    found = _penalties(preset)
    drawn = {
        "per iteration": [(float(each.releases), each.epsilon_per_iteration) for each in found],
        "once": [(float(each.releases), each.epsilon_once) for each in found],
    }
    svg = lines("composition", "Epsilon at the same noise", drawn, "Q, releases of an image", "eps")
    return {"composition.svg": alone(svg, ".line{stroke:#0b5270}")}


def _penalties(preset: Preset) -> list[Penalty]:
    plan = Plan.preset(
        "paper",
        epsilon=ASKED.epsilon,
        allocation=ASKED.allocation,
        participants=Participants(preset.scene.sites, preset.scene.recipient),
        channels=16 * preset.scene.base_channels,
        grid=(preset.scene.size // 16,) * 2,
    )
    promise = plan.calibrate().guarantee
    return [penalty(promise, times, plan.delta, "paper", "exact") for times in TIMES]
