"""Blobs with an irregular outline, and the smooth random fields that fill them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.floating]
Rng = np.random.Generator


@dataclass(frozen=True)
class Seen:
    """A blob in one view: its own coordinates, how deep inside a point lies, and how opaque."""

    centre: Field
    local: Field
    level: Field
    cover: Field


@dataclass(frozen=True)
class Blob:
    """A shape with a smooth irregular outline; star-shaped, so always in one piece."""

    radius: float
    axes: NDArray[np.float64]
    wobble: float
    outline: Callable[[Field], Field]
    softness: float

    @classmethod
    def draw(cls, rng: Rng, dims: int, radius: tuple[float, float]) -> Blob:
        """A blob of a radius between these two, where 1 is half of the image."""
        return cls(
            radius=rng.uniform(*radius),
            axes=np.exp(rng.uniform(-0.22, 0.22, dims)),
            wobble=rng.uniform(0.06, 0.2),
            outline=waves(rng, dims, frequency=rng.uniform(1.5, 3.5)),
            softness=rng.uniform(0.015, 0.06),
        )

    def seen(self, rng: Rng, grid: Field, reach: float, beside: Seen | None = None) -> Seen:
        """Turned, moved by at most `reach` along each axis, and a little nearer or farther.

        Of two places it takes the one that is farther from the blob it should lie `beside`.
        """
        dims = len(grid)
        turn, _ = np.linalg.qr(rng.normal(size=(dims, dims)))
        turn[:, 0] *= np.sign(np.linalg.det(turn))  # a lesion is never seen from behind
        places = rng.uniform(-reach, reach, (2, dims))
        gaps = [0.0, 0.0] if beside is None else np.linalg.norm(places - beside.centre, axis=1)
        centre = places[np.argmax(gaps)]
        pose = (turn / (self.axes * rng.uniform(0.9, 1.1))).T.astype(np.float32)
        local = np.tensordot(pose, grid - column(centre), 1)
        distance = np.sqrt(np.square(local).sum(0)) + 1e-6
        edge = self.radius * np.clip(1 + self.wobble * self.outline(local / distance), 0.7, 1.5)
        level = edge - distance
        return Seen(centre, local, level, step(level / self.softness))


def waves(rng: Rng, dims: int, frequency: float, count: int = 14) -> Callable[[Field], Field]:
    """A smooth random field of unit variance, to be asked anywhere: a sum of plane waves.

    Unlike filtered noise it lives in coordinates, not in pixels: it turns with the patient and
    looks the same at every size.
    """
    vectors = rng.normal(size=(count, dims))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors *= frequency * np.exp(rng.normal(0, 0.3, (count, 1)))
    phases = rng.uniform(0, 2 * np.pi, count).astype(np.float32)

    def field(where: Field) -> Field:
        total = np.zeros(where.shape[1:], np.float32)
        for vector, phase in zip(vectors.astype(np.float32), phases, strict=True):
            total += np.cos(np.tensordot(vector, where, 1) + phase)
        return total * np.float32(np.sqrt(2 / count))

    return field


def step(x: Field) -> Field:
    """From 0 to 1, smoothly, where a field changes sign."""
    return (0.5 + 0.5 * np.tanh(x)).astype(np.float32)


def ridge(x: Field, width: float) -> Field:
    """Thin lines where a field changes sign: vessels, or the meshes of a network."""
    line: Field = np.exp(-np.square(x / width))
    return line


def smooth(field: Field, width: list[float]) -> Field:
    """Blur by a Gaussian of this many pixels along each axis."""
    from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]

    smooth: Field = gaussian_filter(field, width)
    return smooth


def column(values: Field, dims: int | None = None) -> Field:
    """One value an axis (or a channel), in a shape that spreads over the grid."""
    return values.astype(np.float32).reshape(-1, *[1] * (dims or len(values)))
