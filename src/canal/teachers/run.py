"""A run folder: resolved settings, log, metrics and checkpoint.

`initialise` makes the weights that all teachers start from: random from a public seed, or trained
on the recipient's own, non-private images. `train` makes a teacher from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canal.errors import CheckpointError
from canal.files import replace_file
from canal.models import checkpoint
from canal.models.checkpoint import Checkpoint
from canal.models.unet import UNetArchitecture, weights_digest
from canal.teachers.batches import Batches
from canal.teachers.training import STATE, Progress, TrainingSettings, fit

if TYPE_CHECKING:
    from torch import nn

    from canal.data.cache import Arrays

SETTINGS = "settings.json"
LOG = "log.txt"
Report = Callable[[Progress], None]


def initialise(
    folder: Path,
    architecture: UNetArchitecture,
    *,
    seed: int,
    size: tuple[int, ...],
    arrays: Arrays | None = None,
    settings: TrainingSettings | None = None,
    report: Report = lambda progress: None,
) -> Checkpoint:
    """Make the shared initialisation, public by construction.

    Args:
        folder: of the run.
        architecture: of the network.
        seed: public.
        size: of the images.
        arrays: the recipient's non-private images, to train on; None leaves the random weights.
        settings: of that training.
        report: of progress.
    """
    architecture.check_size(size)
    network = architecture.build(seed)
    settings = TrainingSettings() if settings is None else settings
    origin = {"seed": seed, "size": list(size), "architecture": architecture.to_json()}
    if arrays is not None:
        _check_fit(architecture, size, arrays, "the initialisation")
        origin |= _how(arrays, settings)
    _claim(folder, origin)
    if is_finished(folder):
        return checkpoint.describe(folder)
    if arrays is not None:
        _train(folder, network, arrays, settings, report)
    description = Checkpoint(
        architecture=architecture.to_json(),
        initialisation=weights_digest(network),
        data=arrays.digest if arrays is not None else "",
        size=size,
        notes={"role": "initialisation", "seed": seed, "trained": arrays is not None},
    )
    _finish(folder, network, description)
    return description


def train(
    folder: Path,
    init: Path,
    arrays: Arrays,
    settings: TrainingSettings,
    *,
    name: str = "",
    report: Report = lambda progress: None,
) -> Checkpoint:
    """Train a teacher from a shared initialisation on one site's cohort.

    Args:
        folder: of the run.
        init: folder of the initialisation.
        arrays: the site's private images.
        settings: of the training.
        name: of the site.
        report: of progress.
    """
    network, start = checkpoint.load(init)
    architecture = UNetArchitecture.from_json(start.architecture)
    _check_fit(architecture, start.size, arrays, str(init))
    if start.initialisation != weights_digest(network):
        raise CheckpointError(
            f"{init} is itself trained from another initialisation; give the initialisation"
        )
    _claim(folder, {"init": start.initialisation, **_how(arrays, settings)})
    if is_finished(folder):
        return checkpoint.describe(folder)
    _train(folder, network, arrays, settings, report)
    description = Checkpoint(
        architecture=start.architecture,
        tap=start.tap,
        initialisation=start.initialisation,
        data=arrays.digest,
        size=start.size,
        notes={"role": "teacher", "site": name, "images": len(arrays.ids)},
    )
    _finish(folder, network, description)
    return description


def _check_fit(
    architecture: UNetArchitecture, size: tuple[int, ...], arrays: Arrays, what: str
) -> None:
    if size != arrays.images.shape[2:]:
        raise CheckpointError(
            f"{what} is for images of size {size}, the data have {arrays.images.shape[2:]}; "
            "give the same --size"
        )
    if architecture.in_channels != arrays.images.shape[1]:
        raise CheckpointError(
            f"{what} is for images of {architecture.in_channels} channels, the data have "
            f"{arrays.images.shape[1]}; give the same --channels"
        )


def is_finished(folder: Path) -> bool:
    """Whether a run has come to its end; asking for it again then does nothing."""
    return (folder / checkpoint.DESCRIPTION).is_file()


def _how(arrays: Arrays, settings: TrainingSettings) -> dict[str, Any]:
    return {"training": asdict(settings), "data": arrays.digest}


def _claim(folder: Path, resolved: dict[str, Any]) -> None:
    """Write down what this folder is for, or see that it is for the same."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SETTINGS
    content = (json.dumps(resolved, indent=1) + "\n").encode()
    if path.is_file() and path.read_bytes() != content:
        raise CheckpointError(
            f"{folder} holds a run with other settings or data; give another folder, or remove it"
        )
    replace_file(path, content)


def _train(
    folder: Path,
    network: nn.Module,
    arrays: Arrays,
    settings: TrainingSettings,
    report: Report,
) -> None:
    batches = Batches(
        arrays, batch_size=settings.batch_size, augment=settings.augment, seed=settings.seed
    )
    log = _logger(folder / LOG)
    log(f"training on {len(arrays.ids)} images for {settings.steps} steps")

    def told(progress: Progress) -> None:
        log(
            f"step {progress.step} of {progress.steps}: loss {progress.loss:.4f}, "
            f"Dice {progress.dice:.4f}, {progress.seconds_left:.0f} s left"
        )
        report(progress)

    fit(network, batches, settings, folder, report=told)
    log("done")


def _logger(path: Path) -> Callable[[str], None]:
    def write(line: str) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        with path.open("a") as file:
            file.write(f"{at} {line}\n")

    return write


def _finish(folder: Path, network: nn.Module, description: Checkpoint) -> None:
    checkpoint.save(folder, network, description)
    (folder / STATE).unlink(missing_ok=True)
