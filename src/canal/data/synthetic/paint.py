"""What the hospitals paint with: tones, light, and the textures of lesions and decoys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from canal.data.synthetic.shapes import Field, Rng, column, ridge, step, waves


def lesion_texture(rng: Rng, dims: int) -> Callable[[Field], Field]:
    """What is inside a lesion, about -1 to 1: fine, alike in all directions, patchy."""
    fine, patches = waves(rng, dims, rng.uniform(19, 27), 28), waves(rng, dims, 5)
    kind = rng.integers(3)

    def texture(where: Field) -> Field:
        field = fine(where)
        if kind == 0:  # the meshes of a network
            field = 1.6 * ridge(field, 0.7) - 0.9
        elif kind == 1:  # globules
            field = 1.8 * step((field - 0.6) / 0.4) - 0.6
        return field * (0.7 + 0.3 * np.tanh(patches(where))) + 0.2 * patches(where)

    return texture


def decoy_texture(rng: Rng, dims: int) -> Callable[[Field], Field]:
    """What is inside a decoy, about -1 to 1: coarse, or striped, or next to nothing."""
    coarse, fine = waves(rng, dims, rng.uniform(4, 8)), waves(rng, 1, rng.uniform(16, 26))
    kind = rng.integers(3)

    def texture(where: Field) -> Field:
        field = coarse(where)
        if kind == 0:
            return 0.8 * field
        if kind == 1:
            return 0.5 * fine(where[:1] + 0.06 * field) + 0.2 * field
        return 0.15 * field

    return texture


def rgb(*tone: float) -> Field:
    """Red, green and blue from 0 to 1."""
    return np.array(tone, np.float32)


def paint(canvas: Field, tone: Field, cover: Field) -> None:
    """Lay a tone over the canvas, where it covers."""
    tone = column(tone, cover.ndim) if tone.ndim == 1 else tone
    canvas += (tone - canvas) * cover


def vignette(rng: Rng, grid: Field, depth: float) -> Field:
    """A lamp of any white, off the middle: bright near it, dark towards the corners."""
    lamp = column(rng.uniform(-0.35, 0.35, len(grid)))
    fall = np.square(grid - lamp).sum(0) / len(grid)
    white = rng.uniform(0.92, 1.1) * np.exp(rng.normal(0, 0.035, 3))
    light: Field = column(white, len(grid)) * (1 - depth * np.minimum(fall, 1.6))
    return light
