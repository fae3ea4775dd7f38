"""A student of what a rival says about the recipient's images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canal.learning import checkpoint
from canal.learning.distillation import Predictions, StudentLoss
from canal.learning.runs import Report, RunFolder, provenance
from canal.learning.settings import TrainingSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.data.arrays import Arrays
    from canal.learning.training import Batch


def train(
    folder: Path,
    init: Path,
    arrays: Arrays,
    training: TrainingSettings,
    say: Callable[[Batch], Tensor],
    source: dict[str, Any],
    *,
    report: Report = lambda progress: None,
) -> nn.Module:
    """Train from the shared initialisation on one's own labels and on what is said.

    Args:
        folder: of the run.
        init: folder of the initialisation.
        arrays: the recipient's images.
        training: how long and how fast.
        say: probabilities of every pixel of a batch.
        source: what determines that.
        report: of progress.
    """
    network, start = checkpoint.load(init)
    run = RunFolder(folder)
    with run.claim({"init": start.initialisation, "said": source, **provenance(arrays, training)}):
        if run.is_finished:
            return checkpoint.load(folder)[0]
        run.train(network, arrays, training, report, StudentLoss(arrays, Predictions(say)))
        run.finish(network, replace(start, data=arrays.digest, notes={"role": "student"}))
        return network
