r"""Augmentation: images flipped, turned and lit another way, and deformed where few must do.

A *deformation* turns, stretches, shifts and bends all images of a batch in one pass, each in
another way. A pixel at x of what comes out was at $\exp(S)\,x + t + u(x)$ in what went in: S a
random matrix whose antisymmetric part turns and whose symmetric part stretches, t a shift, and u a
field that is random on a coarse grid and smooth between its knots. Masks move with their images;
then images get another gamma, and a little noise. A network that is trained for long on few images
goes on learning from those, where with flips alone it learns the images by heart.

MONAI's transforms, image by image, take seven times as long (`python -m bench training`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

# At strength one: the widest turn in radians, and the logarithms of size and of proportions.
_TURN, _SIZE, _STRETCH = 0.5, 0.35, 0.15
# Shares of half an image's side: the widest shift, and the spread of the field at its knots.
_SHIFT, _BEND, _KNOTS = 0.2, 0.05, 5
# The logarithm of gamma, and the most noise, where images span from -1 to 1.
_GAMMA, _NOISE = 0.4, 0.05


def augmented(
    images: Tensor, masks: Tensor, rng: np.random.Generator
) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
    """Flip and turn images with their masks, and change the intensity of the images.

    Args:
        images: float `[B, C, *size]`.
        masks: `[B, 1, *size]`.
        rng: decides.

    Returns:
        Images, masks, and the orientation of each (`orient`).
    """
    orientations = rng.integers(orientation_count(images.shape[2:]), size=len(images))
    varied = _vary_intensity(orient(images, orientations), rng)
    return varied, orient(masks, orientations), orientations


def orientation_count(size: tuple[int, ...]) -> int:
    """Number of ways to flip an image and, if it is square, turn it by a quarter."""
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


def deformed(
    images: Tensor, masks: Tensor, strength: float, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Deform images with their masks, and change gamma and noise of the images.

    Args:
        images: float `[B, C, *size]`, in two dimensions or three.
        masks: zeros and ones, `[B, 1, *size]`.
        strength: of everything at once; 0 moves nothing.
        rng: decides.
    """
    from torch.nn.functional import grid_sample

    places = _places(images, strength, rng)

    def moved(values: Tensor) -> Tensor:
        return grid_sample(values, places, padding_mode="reflection", align_corners=False)

    found = moved(masks).gt(0.5).to(masks.dtype)
    return _lit(moved(images), strength, rng), found


def _places(images: Tensor, strength: float, rng: np.random.Generator) -> Tensor:
    """Where every pixel of the new images was in the old ones, `[B, *size, dims]`, in [-1, 1]."""
    import torch
    from torch.nn.functional import affine_grid, interpolate

    count, size = len(images), images.shape[2:]
    dims = len(size)
    maps = torch.linalg.matrix_exp(_tensor(strength * _generators(count, dims, rng)))
    # Turned in pixels: of an image that is not square, the sides are not of one length.
    sides = torch.tensor(size[::-1], dtype=torch.float32)
    shift = rng.uniform(-_SHIFT, _SHIFT, (count, dims, 1))
    linear = torch.cat([maps * sides / sides[:, None], _tensor(strength * shift)], dim=2)
    knots = rng.normal(scale=_BEND, size=(count, dims, *[_KNOTS] * dims))
    field = interpolate(
        _tensor(strength * knots),
        size=size,
        mode="bicubic" if dims == 2 else "trilinear",
        align_corners=True,
    )
    grid: Tensor = affine_grid(linear, list(images.shape), align_corners=False)
    return grid + field.movedim(1, -1)


def _generators(count: int, dims: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """S of every image at strength one, `[B, dims, dims]`."""
    turn, stretch = (rng.uniform(-most, most, (count, dims, dims)) for most in (_TURN, _STRETCH))
    size = rng.uniform(-_SIZE, _SIZE, (count, 1, 1))
    above = np.triu(np.ones((dims, dims)), 1)
    turns, shears = turn * above, stretch * above
    found: NDArray[np.float64] = (
        turns
        - turns.swapaxes(1, 2)
        + shears
        + shears.swapaxes(1, 2)
        + (stretch + size) * np.eye(dims)
    )
    return found


def _lit(images: Tensor, strength: float, rng: np.random.Generator) -> Tensor:
    """Another gamma between the darkest and the brightest place of each image, and noise."""
    shape = (len(images), *[1] * (images.ndim - 1))
    gamma = _tensor(np.exp(strength * rng.uniform(-_GAMMA, _GAMMA, shape)))
    loud = _tensor(strength * rng.uniform(0, _NOISE, shape))
    axes = tuple(range(1, images.ndim))
    low, high = images.amin(axes, keepdim=True), images.amax(axes, keepdim=True)
    span = (high - low).clamp(min=1e-6)
    lit = ((images - low) / span).clamp(0, 1).pow(gamma) * span + low
    return lit + loud * _tensor(rng.standard_normal(images.shape, dtype=np.float32))


def _tensor(values: NDArray[np.floating]) -> Tensor:
    import torch

    return torch.from_numpy(values.astype(np.float32))
