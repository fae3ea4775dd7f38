"""Batches from decoded arrays: every step's rows and augmentation follow from seed and step alone.

Nothing random is carried from step to step, so a run that was killed goes on, from any step, with
the very batches that it would have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from canal.errors import InvalidValueError
from canal.learning.deformation import deformed

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from canal.data.cache import Arrays


@dataclass(frozen=True)
class Batch:
    """What one step sees.

    Args:
        images: float `[B, C, *size]`, roughly in [-1, 1].
        masks: float `[B, 1, *size]`, zeros and ones.
        rows: of the arrays.
        orientations: how each image was flipped and turned; the same must be done to any target
            that belongs to it (`turn`).
        step: that it belongs to.
        deformed: images were bent too, which no target can follow.
    """

    images: Tensor
    masks: Tensor
    rows: NDArray[np.int64]
    orientations: NDArray[np.int64]
    step: int = 0
    deformed: bool = False

    def to(self, device: torch.device) -> Batch:
        """The same with images and masks on a device."""
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
        of = self.orientations if places is None else self.orientations[list(places)]
        return orient(targets, of)


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


def augmented(
    images: Tensor, masks: Tensor, rng: np.random.Generator
) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
    """Images flipped, turned and changed in intensity, masks flipped and turned alike, and how.

    Args:
        images: float `[B, C, *size]`.
        masks: `[B, 1, *size]`.
        rng: decides.
    """
    orientations = rng.integers(orientation_count(images.shape[2:]), size=len(images))
    varied = _vary_intensity(orient(images, orientations), rng)
    return varied, orient(masks, orientations), orientations


def to_float(pixels: Tensor) -> Tensor:
    """From bytes to roughly [-1, 1]."""
    return pixels.float().div_(127.5).sub_(1.0)


def orientation_count(size: tuple[int, ...]) -> int:
    """How many ways there are to flip an image and, if it is square, turn it by a quarter."""
    flips: int = 2 ** len(size)
    return 2 * flips if size[-1] == size[-2] else flips


def orient(batch: Tensor, orientations: NDArray[np.int64]) -> Tensor:
    """Flip and turn each item of a batch, exactly; features and masks alike.

    Args:
        batch: `[B, C, *size]`.
        orientations: bit d flips spatial axis d; the bit after them swaps the last two axes.
    """
    import torch

    dims = batch.ndim - 2
    turned = torch.empty_like(batch)
    for row, (item, code) in enumerate(zip(batch, orientations.tolist(), strict=True)):
        if code >> dims & 1:
            item = item.transpose(-1, -2)
        axes = [axis + 1 for axis in range(dims) if code >> axis & 1]
        turned[row] = item.flip(axes) if axes else item
    return turned


def _vary_intensity(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Brightness and contrast of each image; colour of each channel, a little."""
    import torch

    shape = (len(images), *[1] * (images.ndim - 1))
    contrast = torch.from_numpy(rng.uniform(0.75, 1.25, shape).astype(np.float32))
    tint = rng.uniform(-0.08, 0.08, (len(images), images.shape[1], *shape[2:])).astype(np.float32)
    shift = torch.from_numpy(rng.uniform(-0.2, 0.2, shape).astype(np.float32) + tint)
    return images.mul_(contrast).add_(shift)
