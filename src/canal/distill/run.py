"""Training a student: the supervised loss on its own labels, the feature loss on a release.

The inner loop reads the release and the recipient's images; there is no teacher in it, and no fresh
noise. Controls are modes of the same run, so that arms differ in one thing only:

============  ===================================================================
`release`     the targets are what was released
`noiseless`   the same, of a release that was made with allocation none
`noise-only`  the targets are noise of the same sigma, and nothing else
`alone`       no targets
`pooled`      no targets, and the images are everybody's
============  ===================================================================
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from canal.distill.student import Student
from canal.distill.targets import Targets
from canal.errors import InvalidValueError
from canal.models import checkpoint
from canal.models.checkpoint import Checkpoint
from canal.models.loss import task_loss
from canal.models.unet import UNetArchitecture
from canal.release.per_iteration import PerIterationRelease
from canal.release.store import Release
from canal.teachers.batches import Batch, orient
from canal.teachers.folder import Report, RunFolder, provenance
from canal.teachers.run import check_fit
from canal.teachers.settings import DistillSettings, TrainingSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.data.cache import Arrays

Mode = Literal["release", "noiseless", "noise-only", "alone", "pooled"]
WITHOUT_TARGETS: tuple[Mode, ...] = ("alone", "pooled")


def train(
    folder: Path | str,
    init: Path | str,
    arrays: Arrays,
    training: TrainingSettings | None = None,
    distill: DistillSettings | None = None,
    *,
    release: Release | PerIterationRelease | None = None,
    mode: Mode = "release",
    report: Report = lambda progress: None,
) -> Checkpoint:
    """Train a student from the shared initialisation.

    Args:
        folder: of the run.
        init: folder of the initialisation, public.
        arrays: the recipient's images; a query without a label has the feature loss alone.
        training: how long and how fast.
        distill: how the release is listened to.
        release: what was published, or the baseline that answers with fresh noise; not needed
            alone.
        mode: see above.
        report: of progress.
    """
    import torch

    folder, init = Path(folder), Path(init)
    training = TrainingSettings() if training is None else training
    distill = DistillSettings() if distill is None else distill
    network, start = checkpoint.load(init)
    architecture = UNetArchitecture.from_json(start.architecture)
    check_fit(architecture, start.size, arrays, str(init))
    targets = None
    if mode not in WITHOUT_TARGETS:
        if release is None:
            raise InvalidValueError(f"mode {mode} needs a release; give one, or take mode alone")
        if mode == "noiseless" and release.plan.allocation != "none":
            raise InvalidValueError(
                "mode noiseless wants a release that was made with --allocation none --not-private"
            )
        if not any(name in release for name in arrays.ids):
            raise InvalidValueError(
                f"none of the {len(arrays.ids)} images is in the release; give the images that it "
                "was asked about"
            )
        seed = training.seed if mode == "noise-only" else None
        targets = Targets(release, distill, seed)
    if targets is None and not arrays.labelled.any():
        raise InvalidValueError("no image has a label, and there is no release to learn from")
    source = release.digest if targets and release else None
    run = RunFolder(folder)
    run.claim(
        {
            "init": start.initialisation,
            "mode": mode,
            "release": source,
            "distill": asdict(distill) if targets else None,
            **provenance(arrays, training),
        }
    )
    if run.is_finished:
        return checkpoint.describe(folder)
    description = replace(
        start,
        data=arrays.digest,
        notes={
            "role": "student",
            "mode": mode,
            "images": len(arrays.ids),
            "labelled": int(arrays.labelled.sum()),
            "release": source,
        },
    )
    if targets is None:
        objective = Objective(arrays, None, distill, training.steps)
        run.train(network, arrays, training, report, objective)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(training.seed)
            dims = architecture.spatial_dims
            student = Student(network, start.tap, architecture.channels, targets.channels, dims)
        objective = Objective(arrays, targets, distill, training.steps)
        run.train(student, arrays, training, report, objective)
    run.finish(network, description)
    return description


class Objective:
    """What a student minimises, step after step.

    Args:
        arrays: whose rows the batches are of.
        targets: of the queries among them; None for none.
        settings: weight and schedule.
        steps: of the whole training.
    """

    def __init__(
        self, arrays: Arrays, targets: Targets | None, settings: DistillSettings, steps: int
    ) -> None:
        self.arrays = arrays
        self.targets = targets
        self.settings = settings
        self.steps = steps

    def __call__(self, network: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and logits of a batch."""
        import torch

        labelled = torch.from_numpy(self.arrays.labelled[batch.rows]).to(batch.images.device)
        if self.targets is None:
            logits = network(batch.images)
            return _over(task_loss(logits, batch.masks), labelled), logits
        assert isinstance(network, Student)  # noqa: S101
        logits, ours = network.matched(batch.images)
        supervised = _over(task_loss(logits, batch.masks), labelled)
        return supervised + self._weight(batch.step) * self._distance(ours, batch), logits

    def _distance(self, ours: Tensor, batch: Batch) -> Tensor:
        """Mean distance of the queries of a batch to their targets, turned as the images are."""
        import torch

        assert self.targets is not None  # noqa: S101
        names = [self.arrays.ids[row] for row in batch.rows.tolist()]
        asked = [place for place, name in enumerate(names) if name in self.targets.release]
        if not asked:
            return ours.sum() * 0
        found = self.targets.batch([names[place] for place in asked])
        turned = orient(found, batch.orientations[asked]).to(ours.device)
        return self.targets.distance(ours[torch.tensor(asked, device=ours.device)], turned).mean()

    def _weight(self, step: int) -> float:
        weight = self.settings.feature_weight
        if self.settings.schedule == "decay":
            weight *= 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return weight


def _over(losses: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the chosen ones; zero, with a gradient, where there are none."""
    return (losses * chosen).sum() / max(1, int(chosen.sum()))
