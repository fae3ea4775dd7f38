"""Training a student: its own labels, and whatever else there is for it to match.

What a release says reaches a student in one of two ways: as the weights that it starts from, or as
a `Target` beside its labels. Which release gives which is the business of the mechanisms
(`canal.features`, `canal.gradients`); the loop here reads no release, and knows none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from canal.learning import checkpoint
from canal.learning.checkpoint import Checkpoint
from canal.learning.networks import task_loss
from canal.learning.runs import Report, RunFolder, provenance
from canal.learning.settings import TrainingSettings
from canal.learning.training import Batch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.data.arrays import Arrays


class Target(Protocol):
    """Something that a student matches beside its own labels."""

    def attach(self, network: nn.Module) -> nn.Module:
        """The module to train: the network, with the layers that only training needs."""

    def forward(self, learner: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and what is matched; one pass."""

    def loss(self, matched: Tensor, batch: Batch) -> Tensor:
        """The loss to add to that of the labels."""


class Predictions:
    """Probabilities for every pixel, whatever they come from; matched by cross-entropy.

    A label is not needed for that, so any number of images will do.

    Args:
        predict: probabilities, for the very view of the images that a batch has.
    """

    def __init__(self, predict: Callable[[Batch], Tensor]) -> None:
        self.predict = predict

    def attach(self, network: nn.Module) -> nn.Module:
        """The network alone."""
        return network

    def forward(self, learner: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits are what is matched."""
        logits = learner(images)
        return logits, logits

    def loss(self, matched: Tensor, batch: Batch) -> Tensor:
        """The cross-entropy of the logits with the probabilities."""
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

        with torch.no_grad():
            wanted = self.predict(batch).to(matched.device)
        return binary_cross_entropy_with_logits(matched, wanted)


def mean_prediction(networks: Sequence[nn.Module]) -> Callable[[Batch], Tensor]:
    """The mean of the probabilities that some networks give a batch; they are not trained."""
    import torch

    members = [network.eval() for network in networks]

    def predict(batch: Batch) -> Tensor:
        found: list[Tensor] = [network(batch.images).sigmoid() for network in members]
        return torch.stack(found).mean(0)

    return predict


class StudentLoss:
    """The loss of the labels that there are, and that of the target.

    Args:
        arrays: whose rows the batches are of.
        target: what is matched; None for the labels alone.
    """

    def __init__(self, arrays: Arrays, target: Target | None = None) -> None:
        self.arrays = arrays
        self.target = target

    def __call__(self, learner: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and logits of a batch."""
        import torch

        if self.target is None:
            logits, matched = learner(batch.images), None
        else:
            logits, matched = self.target.forward(learner, batch.images)
        labelled = torch.from_numpy(self.arrays.labelled[batch.rows]).to(batch.images.device)
        losses = task_loss(logits, batch.masks) * labelled
        # Zero, with a gradient, where no image of the batch has a label.
        supervised = losses.sum() / max(1, int(labelled.sum()))
        if self.target is None or matched is None:
            return supervised, logits
        return supervised + self.target.loss(matched, batch), logits


def train_student(
    folder: Path,
    network: nn.Module,
    start: Checkpoint,
    arrays: Arrays,
    settings: TrainingSettings,
    target: Target | None = None,
    *,
    origin: dict[str, Any],
    notes: dict[str, Any],
    report: Report = lambda progress: None,
) -> Checkpoint:
    """Train a network, in place, unless the folder has it already.

    Args:
        folder: of the run.
        network: to start from.
        start: the description of the shared initialisation.
        arrays: the recipient's images; one without a label has the target alone.
        settings: how long and how fast.
        target: what is matched beside the labels.
        origin: what determines the run, beside images and settings.
        notes: for the checkpoint.
        report: of progress.
    """
    run = RunFolder(folder)
    with run.claim({**origin, **provenance(arrays, settings)}):
        if run.is_finished:
            return checkpoint.describe(folder)
        learner = network if target is None else target.attach(network)
        run.train(learner, arrays, settings, report, StudentLoss(arrays, target))
        description = replace(start, data=arrays.digest, notes=notes)
        run.finish(network, description)
        return description
