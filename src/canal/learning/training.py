"""The training loop: batches, AdamW, one cycle of the learning rate, and a state to resume from.

Initialisations, teachers and students are trained by the same lines; they differ in the objective.

Guarantees:
    Rows and augmentation of every step follow from seed and step alone. The state (weights,
    moments, step) is written to one safetensors file, atomically. A run that was killed, also by
    `kill -9`, therefore ends on a CPU with the same weights, bit for bit.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.errors import CheckpointError, InvalidValueError
from canal.files import replace_file
from canal.learning.augmentation import augmented, deformed, orient
from canal.learning.networks import best, task_loss, to_float
from canal.learning.settings import TrainingSettings
from canal.plain import plain

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from canal.data.arrays import Arrays


@dataclass(frozen=True)
class Batch:
    """The images and masks of one step.

    Args:
        images: float `[B, C, *size]`, roughly in [-1, 1].
        masks: float `[B, 1, *size]`, zeros and ones.
        rows: their rows in the arrays.
        orientations: how each image was flipped and turned; the same must be done to any target
            that belongs to it (`turn`).
        step: of the training.
        deformed: images were bent too, which no target can follow.
    """

    images: Tensor
    masks: Tensor
    rows: NDArray[np.int64]
    orientations: NDArray[np.int64]
    step: int = 0
    deformed: bool = False

    def to(self, device: torch.device) -> Batch:
        """Move images and masks to a device."""
        return replace(self, images=self.images.to(device), masks=self.masks.to(device))

    def turn(self, targets: Tensor, places: Sequence[int] | None = None) -> Tensor:
        """Flip and turn targets as their images were.

        Args:
            targets: `[n, C, *size]`, of the images as they are in the data.
            places: in the batch, of the images that they belong to; None for all of them.
        """
        if self.deformed:
            raise InvalidValueError(
                "what was released is of images as they are, and cannot be bent with them; leave "
                "deform at 0 to learn from it"
            )
        codes = self.orientations if places is None else self.orientations[list(places)]
        return orient(targets, codes)


class Batches:
    """The endless sequence of batches of one training run.

    Args:
        arrays: decoded cases.
        batch_size: how many a step.
        augment: flips, quarter turns and changes of intensity; or the images as they are.
        seed: of order and augmentation.
        deform: strength of a deformation behind that; 0 for none.
    """

    def __init__(
        self,
        arrays: Arrays,
        *,
        batch_size: int,
        augment: bool,
        seed: int,
        deform: float = 0.0,
    ) -> None:
        if batch_size < 1:
            raise InvalidValueError(f"batch_size = {batch_size!r} must be at least 1")
        if seed < 0:
            raise InvalidValueError(f"seed = {seed!r} must be at least 0")
        if not arrays.ids:
            raise InvalidValueError("there are no images to train on; give at least one")
        self.arrays = arrays
        self.batch_size = batch_size
        self.augment, self.deform = augment, deform
        self.seed = seed
        self._orders: dict[int, NDArray[np.int64]] = {}

    def __getitem__(self, step: int) -> Batch:
        """The batch of a step; any step, in any order."""
        import torch

        rows = self._rows(step)
        images = to_float(torch.from_numpy(np.asarray(self.arrays.images[rows])))
        masks = torch.from_numpy(np.asarray(self.arrays.masks[rows])).float()
        orientations = np.zeros(len(rows), dtype=np.int64)
        if self.augment:
            rng = np.random.default_rng([self.seed, 1, step])
            images, masks, orientations = augmented(images, masks, rng)
        if self.deform:
            rng = np.random.default_rng([self.seed, 2, step])
            images, masks = deformed(images, masks, self.deform, rng)
        return Batch(images, masks, rows, orientations, step, bool(self.deform))

    def _rows(self, step: int) -> NDArray[np.int64]:
        """Rows `step·B … (step+1)·B` of an endless run of shuffled passes."""
        count = len(self.arrays.ids)
        start = step * self.batch_size
        first, last = start // count, (start + self.batch_size - 1) // count
        passes = np.concatenate([self._order(number) for number in range(first, last + 1)])
        offset = start - first * count
        return passes[offset : offset + self.batch_size]

    def _order(self, number: int) -> NDArray[np.int64]:
        if number not in self._orders:
            if len(self._orders) > 64:
                self._orders.clear()
            rng = np.random.default_rng([self.seed, 0, number])
            self._orders[number] = rng.permutation(len(self.arrays.ids))
        return self._orders[number]


STATE = "state.safetensors"
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Args:
        step: steps done.
        steps: of all.
        loss: mean since the last report.
        dice: of the batches' predictions, mean since the last report.
        seconds_left: estimated.
    """

    step: int
    steps: int
    loss: float
    dice: float
    seconds_left: float

    def among(self, number: int, count: int) -> Progress:
        """The progress of `count` runs of this length, of which this one is the `number`-th."""
        pace = self.seconds_left / max(self.steps - self.step, 1)
        done, steps = number * self.steps + self.step, count * self.steps
        left = self.seconds_left + (count - number - 1) * self.steps * pace
        return replace(self, step=done, steps=steps, seconds_left=left)


Objective = Callable[["nn.Module", Batch], tuple["Tensor", "Tensor"]]


def supervised(network: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """The segmentation loss of a batch, and its logits."""
    logits = network(batch.images)
    return task_loss(logits, batch.masks).mean(), logits


def fit(
    network: nn.Module,
    batches: Batches,
    settings: TrainingSettings,
    folder: Path,
    *,
    objective: Objective = supervised,
    report: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Train a network in place, going on from the folder's state if it has one.

    Args:
        network: starts from the weights that it has, unless there is a state.
        batches: of the training images.
        settings: how long and how fast.
        folder: of the run; holds state and metrics.
        objective: what is minimised; gives loss and logits.
        report: called after every `save_every` steps.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    there = best()
    network.to(there)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    done = _resume(folder, network, optimizer, settings)
    metrics, board = _open_metrics(folder, done), _tensorboard(folder, done)
    network.train()
    started, first = time.monotonic(), done
    generator = torch.get_rng_state()
    losses, overlaps = [], []
    try:
        for step in range(done, settings.steps):
            for group in optimizer.param_groups:
                group["lr"] = one_cycle(step, settings.steps, settings.learning_rate)
            # What a network draws itself (dropout) follows from seed and step, too.
            torch.manual_seed(settings.seed + 1_000_003 * step)
            batch = batches[step].to(there)
            optimizer.zero_grad(set_to_none=True)
            loss, logits = objective(network, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            overlaps.append(_dice(logits.detach(), batch.masks))
            if (step + 1) % settings.save_every and step + 1 < settings.steps:
                continue
            mean_loss = float(torch.stack(losses).mean())
            if not math.isfinite(mean_loss) or not _finite(network):
                raise CheckpointError(
                    f"training diverged before step {step + 1}: the loss is {mean_loss}, or a "
                    "weight is not finite; lower learning_rate and train in another folder"
                )
            pace = (time.monotonic() - started) / (step + 1 - first)
            here = Progress(
                step + 1,
                settings.steps,
                mean_loss,
                float(torch.stack(overlaps).mean()),
                pace * (settings.steps - step - 1),
            )
            entry = {"step": here.step, "loss": here.loss, "dice": here.dice}
            metrics.write(json.dumps(entry) + "\n")
            metrics.flush()
            if board is not None:
                for name in ("loss", "dice"):
                    board.add_scalar(name, entry[name], here.step)
            _save_state(folder, network, optimizer, here.step, settings)
            report(here)
            losses, overlaps = [], []
    finally:
        torch.set_rng_state(generator)
        metrics.close()
        if board is not None:
            board.close()
    network.eval()


def one_cycle(step: int, steps: int, peak: float) -> float:
    """Learning rate of a step: up from peak/25 over three tenths, then down to peak/10,000.

    >>> [round(one_cycle(step, 101, 1.0), 3) for step in (0, 30, 100)]
    [0.04, 1.0, 0.0]
    """
    position = step / max(steps - 1, 1)
    if position < 0.3:
        low, high, part = peak / 25, peak, position / 0.3
    else:
        low, high, part = peak, peak / 1e4, (position - 0.3) / 0.7
    return high + (low - high) * (1 + math.cos(math.pi * part)) / 2


def _dice(logits: Tensor, masks: Tensor) -> Tensor:
    predicted, truth = (logits > 0).flatten(1).float(), masks.flatten(1)
    both = (predicted * truth).sum(1)
    return ((2 * both + 1e-6) / (predicted.sum(1) + truth.sum(1) + 1e-6)).mean()


def _finite(network: nn.Module) -> bool:
    import torch

    return all(bool(torch.isfinite(weight).all()) for weight in network.parameters())


def _named(settings: TrainingSettings) -> str:
    """The settings as text; without what came later and is not used, so older states go on."""
    values = ", ".join(f"{name}={value!r}" for name, value in plain(settings).items())
    return f"{type(settings).__name__}({values})"


def _save_state(
    folder: Path, network: nn.Module, optimizer: Any, step: int, settings: TrainingSettings
) -> None:
    import torch
    from safetensors.torch import save

    def copied(tensor: Tensor) -> Tensor:  # tied weights share memory, which safetensors refuses
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    names = {id(parameter): name for name, parameter in network.named_parameters()}
    tensors = {f"weight/{name}": copied(t) for name, t in network.state_dict().items()}
    for parameter, moments in optimizer.state.items():
        for kind, tensor in moments.items():
            tensors[f"{kind}/{names[id(parameter)]}"] = copied(tensor)
    about = {"step": str(step), "settings": _named(settings)}
    replace_file(folder / STATE, save(tensors, metadata=about))


def _resume(folder: Path, network: nn.Module, optimizer: Any, settings: TrainingSettings) -> int:
    """Put back weights and moments; give the number of steps that were done."""
    import torch
    from safetensors import SafetensorError, safe_open

    path = folder / STATE
    if not path.is_file():
        return 0
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); remove it to train from the beginning"
        ) from error
    if about.get("settings") != _named(settings):
        raise CheckpointError(
            f"{path} belongs to a run with other settings; give the same again, or another folder"
        )
    weights = {
        name.removeprefix("weight/"): tensor
        for name, tensor in tensors.items()
        if name.startswith("weight/")
    }
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path} belongs to another network; give the same again, or another folder"
        ) from error
    for name, parameter in network.named_parameters():
        moments = {
            kind: tensors[f"{kind}/{name}"]
            for kind in ("step", "exp_avg", "exp_avg_sq")
            if f"{kind}/{name}" in tensors
        }
        for kind in moments.keys() - {"step"}:  # laid out in memory as the optimizer would
            moments[kind] = torch.empty_like(parameter, requires_grad=False).copy_(moments[kind])
        if moments:
            optimizer.state[parameter] = moments
    return int(about["step"])


def _open_metrics(folder: Path, done: int) -> Any:
    """The metrics file, without lines of steps that will be done again."""
    path = folder / METRICS
    kept = []
    if path.is_file():
        for line in path.read_text().splitlines():
            try:
                if json.loads(line)["step"] <= done:
                    kept.append(line + "\n")
            except ValueError:  # the line that was being written when the process died
                continue
    replace_file(path, "".join(kept).encode())
    return path.open("a")


def _tensorboard(folder: Path, done: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=done)
