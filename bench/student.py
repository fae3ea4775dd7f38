"""The student: a step with a release, and what prior work pays for fresh noise instead."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from bench.ratio import Ratio, compare
from bench.release import _ensemble, _plan
from canal.data.arrays import Arrays
from canal.data.synthetic import generate
from canal.features.distillation import FeatureMatching, Projected, Targets
from canal.features.mechanism import TeacherSum
from canal.features.per_iteration import PerIterationRelease
from canal.features.queries import Queries
from canal.features.release import create
from canal.features.statistics import Statistics
from canal.learning.checkpoint import Checkpoint
from canal.learning.distillation import StudentLoss
from canal.learning.networks import BOTTLENECK, Tap, UNetArchitecture, evaluating
from canal.learning.settings import DistillSettings, TrainingSettings
from canal.learning.training import Batches
from canal.privacy.randomness import Secret

STEPS = 8


def ratios() -> Iterator[Ratio]:
    """Every comparison of the student."""
    made = generate(64, size=(64, 64))
    arrays = Arrays(made.ids, made.images, made.masks, "bench")
    queries = Queries.of(arrays)
    ensemble = _ensemble([UNetArchitecture().build(seed) for seed in range(3)], BOTTLENECK)
    plan = _plan(ensemble, queries)
    with tempfile.TemporaryDirectory() as name:
        release = create(Path(name) / "release", ensemble, queries, plan, seed=0)
        settings = DistillSettings()
        targets = Targets(release, settings)
        batches = Batches(arrays, batch_size=16, augment=True, seed=0)

        def student() -> Projected:
            return Projected(UNetArchitecture().build(9), BOTTLENECK, 256, targets.channels, 2)

        matching = FeatureMatching(targets, arrays, Checkpoint({}), TrainingSettings(steps=STEPS))
        distilled = _steps(student(), batches, StudentLoss(arrays, matching))
        alone = _steps(UNetArchitecture().build(9), batches, StudentLoss(arrays))
        yield compare(
            f"{STEPS} student steps with a release, 16 images of 64 px",
            distilled,
            "the same steps without distillation",
            alone,
            target=1 / 1.05,
            rounds=6,
        )
        often = replace(plan, releases=10**6)
        statistics = Statistics.from_json(release.manifest.statistics)
        mechanism = TeacherSum.of(often.calibrate(statistics.weights(often)), statistics)
        whole = replace(
            ensemble,
            teachers=tuple(
                replace(teacher, tap=_WholePass(teacher.tap.network, teacher.tap.layer))
                for teacher in ensemble.teachers
            ),
        )
        # A training step is about three forward passes, so three encoders more cannot double it.
        for rival, name, target in (
            (whole, "per-iteration release: three teachers' passes and noise at every step", 2),
            (ensemble, "the same, made faster: each pass stops at the tap", 1.3),
        ):
            fresh = PerIterationRelease(mechanism, rival, queries, Secret.seeded(0))
            asking = FeatureMatching(
                Targets(fresh, settings), arrays, matching.start, matching.training
            )
            yield compare(
                "student epoch with a release, K = 3",
                distilled,
                name,
                _steps(student(), batches, StudentLoss(arrays, asking)),
                target=target,
                rounds=4,
            )


class _WholePass(Tap):
    """A teacher that is run to its end, as prior work runs it."""

    def features(self, images: torch.Tensor) -> torch.Tensor:
        caught: list[torch.Tensor] = []
        hook = self._module.register_forward_hook(lambda m, i, output: caught.append(output))
        with evaluating(self.network), torch.no_grad():
            self.network(images)
        hook.remove()
        return caught[0]


def _steps(
    network: torch.nn.Module, batches: Batches, objective: StudentLoss
) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)

    def run() -> None:
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            loss, _ = objective(network, batches[step])
            loss.backward()
            optimizer.step()

    return run
