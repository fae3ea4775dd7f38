"""What a student minimises: its own labels, and its distance to what a release has to say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from canal.distill.student import Student
from canal.distill.targets import Targets
from canal.learning.networks import task_loss
from canal.learning.settings import DistillSettings
from canal.learning.training import Batch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.data.arrays import Arrays


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
            return over(task_loss(logits, batch.masks), labelled), logits
        assert isinstance(network, Student)  # noqa: S101
        logits, ours = network.matched(batch.images)
        supervised = over(task_loss(logits, batch.masks), labelled)
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
        turned = batch.turn(found, asked).to(ours.device)
        return self.targets.distance(ours[torch.tensor(asked, device=ours.device)], turned).mean()

    def _weight(self, step: int) -> float:
        weight = self.settings.feature_weight
        if self.settings.schedule == "decay":
            weight *= 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return weight


class Predictions:
    """What a student of others minimises: its own labels, and what they say of every pixel.

    A label is not needed for that, so any number of images will do.

    Args:
        arrays: whose rows the batches are of.
        say: probabilities, for the very view of the images that a batch has.
    """

    def __init__(self, arrays: Arrays, say: Callable[[Batch], Tensor]) -> None:
        self.arrays = arrays
        self.say = say

    def __call__(self, network: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and logits of a batch."""
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

        labelled = torch.from_numpy(self.arrays.labelled[batch.rows]).to(batch.images.device)
        logits = network(batch.images)
        with torch.no_grad():
            said = self.say(batch).to(logits.device)
        supervised = over(task_loss(logits, batch.masks), labelled)
        return supervised + binary_cross_entropy_with_logits(logits, said), logits


def opinion(networks: Sequence[nn.Module]) -> Callable[[Batch], Tensor]:
    """What some networks say of a batch: the mean of their probabilities. They stay as they are."""
    import torch

    members = [network.eval() for network in networks]

    def say(batch: Batch) -> Tensor:
        said: list[Tensor] = [network(batch.images).sigmoid() for network in members]
        return torch.stack(said).mean(0)

    return say


def over(losses: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the chosen ones; zero, with a gradient, where there are none."""
    return (losses * chosen).sum() / max(1, int(chosen.sum()))
