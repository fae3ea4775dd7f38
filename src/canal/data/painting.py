"""Paints synthetic images: blobs, textures and light, and how each instrument shows them.

A painter (`dermoscopy`, `endoscopy`, `ultrasound`) returns an image in [3, *size], about 0 to 1. It
takes random numbers of the patient (`body`: the same in every view) and of the view (`sight`), the
coordinates from -1 to 1 in [dims, *size], the lesion as this view sees it, and the decoys, which
only resemble a lesion and lie behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.floating]
Rng = np.random.Generator


@dataclass(frozen=True)
class BlobView:
    """A blob in one view.

    Args:
        centre: where it lies.
        local: its own coordinates of every point, `[dims, *size]`.
        level: how deep inside a point lies; negative outside.
        cover: how opaque it is there.
    """

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

    def view(self, rng: Rng, grid: Field, reach: float, beside: BlobView | None = None) -> BlobView:
        """Turn it, move it by at most `reach` along each axis, bring it a little nearer or farther.

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
        return BlobView(centre, local, level, step(level / self.softness))


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


def dermoscopy(
    body: Rng, sight: Rng, grid: Field, lesion: BlobView, decoys: list[BlobView]
) -> Field:
    """Skin through a dermoscope: pigment in a fine pattern, stains, and hair in front of it."""
    dims = len(grid)
    tan = body.uniform()
    skin = (1 - tan) * rgb(0.94, 0.76, 0.69) + tan * rgb(0.70, 0.48, 0.36)
    # From brown to a bruised red: how much of each colour the pigment swallows.
    red = body.uniform()
    swallowed = (1 - red) * rgb(0.65, 0.95, 1.1) + red * rgb(0.25, 0.95, 0.8)
    pigment, depth = body.uniform(0.35, 0.75), body.uniform(0.5, 0.75)
    texture = lesion_texture(body, dims)

    canvas = np.ones_like(grid[:1]) * column(skin, dims)
    canvas *= 1 + 0.04 * waves(sight, dims, 5)(grid) + 0.012 * waves(sight, dims, 50, 30)(grid)

    def stained(amount: float, inside: Field) -> Field:
        passed: Field = np.exp(-np.multiply.outer(swallowed, amount * (1 + inside)))
        return canvas * passed

    for decoy in decoys:
        inside = sight.uniform(0.5, 0.75) * decoy_texture(sight, dims)(decoy.local)
        paint(canvas, stained(pigment * sight.uniform(0.7, 1.3), inside), decoy.cover)
    paint(canvas, stained(pigment, depth * texture(lesion.local)), lesion.cover)

    for _ in range(sight.integers(0, 7)):
        paint(canvas, rgb(0.16, 0.10, 0.08), 0.8 * _hair(sight, grid))
    return canvas * vignette(sight, grid, sight.uniform(0.1, 0.6))


def _hair(rng: Rng, grid: Field) -> Field:
    """A bent thread of random direction, and how much of it covers each point."""
    dims = len(grid)
    turn = np.linalg.qr(rng.normal(size=(dims, dims)))[0].astype(np.float32)
    root = column(rng.uniform(-0.9, 0.9, dims))
    along, *across = np.tensordot(turn, grid - root, 1)
    across[0] = across[0] - np.float32(rng.uniform(-0.35, 0.35)) * np.square(along)
    squared = np.sum(np.square(across), axis=0)
    length, width = rng.uniform(0.5, 1.3), rng.uniform(0.012, 0.024)
    return step((length - np.abs(along)) / 0.05) * ridge(np.sqrt(squared), width)


def endoscopy(
    body: Rng, sight: Rng, grid: Field, lesion: BlobView, decoys: list[BlobView]
) -> Field:
    """The colon through an endoscope: domes on folded mucosa, under glare and bubbles."""
    dims = len(grid)
    pale = body.uniform()
    mucosa = (1 - pale) * rgb(0.74, 0.34, 0.27) + pale * rgb(0.90, 0.60, 0.48)
    flush = mucosa * (1 + body.uniform(-0.2, 0.15)) * rgb(1.0, body.uniform(0.72, 1.05), 0.92)
    depth, texture = body.uniform(0.18, 0.28), lesion_texture(body, dims)
    lamp = sight.normal(size=dims)
    lamp = (lamp / np.linalg.norm(lamp)).astype(np.float32)

    canvas = np.ones_like(grid[:1]) * column(mucosa, dims)
    folds = waves(sight, dims, 3.5)(grid)
    canvas *= 1 + 0.16 * np.tanh(folds)
    paint(canvas, canvas * 0.55, ridge(folds - 0.8, 0.22) * 0.5)
    paint(canvas, rgb(0.62, 0.14, 0.13), 0.4 * ridge(waves(sight, dims, 7)(grid), 0.09))

    def dome(tone: Field, inside: Field, local: Field) -> Field:
        # Lit on the side that faces the lamp, in shade on the other.
        slope = np.clip(np.tensordot(lamp, local, 1) / 0.4, -1.5, 1.5)
        return np.multiply.outer(tone, 1 + 0.13 * slope + inside)

    for decoy in decoys:
        inside = sight.uniform(0.18, 0.28) * decoy_texture(sight, dims)(decoy.local)
        tone = flush * np.float32(sight.uniform(0.92, 1.08))
        paint(canvas, dome(tone, inside, decoy.local), 0.85 * decoy.cover)
    inside = depth * texture(lesion.local)
    paint(canvas, dome(flush, inside, lesion.local), 0.85 * lesion.cover)

    canvas *= vignette(sight, grid, sight.uniform(0.35, 0.65))
    glare = waves(sight, dims, 13)(grid) + 0.5 * folds
    paint(canvas, rgb(1.0, 0.97, 0.94), 0.95 * step((glare - sight.uniform(2.2, 3.0)) / 0.15))
    for _ in range(sight.integers(0, 6)):
        _bubble(canvas, sight, grid)
    return canvas


def _bubble(canvas: Field, rng: Rng, grid: Field) -> None:
    """A bright rim around a slightly clearer inside, and one glint."""
    dims = len(grid)
    centre = column(rng.uniform(-0.95, 0.95, dims))
    radius = np.float32(rng.uniform(0.05, 0.13))
    distance = np.sqrt(np.square(grid - centre).sum(0))
    paint(canvas, canvas * 1.15, step((radius - distance) / 0.02))
    paint(canvas, rgb(0.97, 0.9, 0.86), 0.55 * ridge(distance - radius, 0.022))
    glint = np.square(grid - centre + 0.4 * radius).sum(0)
    paint(canvas, rgb(1, 1, 1), np.exp(-glint / 0.025**2))


def ultrasound(
    body: Rng, sight: Rng, grid: Field, lesion: BlobView, decoys: list[BlobView]
) -> Field:
    """Soft tissue by ultrasound, grey: masses and cysts between layers, under speckle."""
    dims, size = len(grid), grid.shape[1:]
    gain = sight.uniform(0.35, 0.65)
    # Most lesions return less than the tissue around them, some return more.
    tone = body.uniform(0.3, 0.6) if body.uniform() < 0.75 else body.uniform(1.4, 1.8)
    depth, texture = body.uniform(0.55, 0.8), lesion_texture(body, dims)

    # Layers of tissue lie across the beam and are a little wavy.
    layer = grid[:1] + 0.10 * waves(sight, dims, 3)(grid)
    echo = 1 + 0.2 * waves(sight, 1, 9)(layer) + 0.10 * waves(sight, dims, 5)(grid)
    for decoy in decoys:
        inside = sight.uniform(0.55, 0.8) * decoy_texture(sight, dims)(decoy.local)
        echo *= 1 + sight.uniform(-0.35, 0.35) * _below(decoy.cover)
        echo += (tone * sight.uniform(0.8, 1.2) * (1 + inside) - echo) * decoy.cover
    echo *= 1 + sight.uniform(-0.35, 0.35) * _below(lesion.cover)
    echo += (tone * (1 + depth * texture(lesion.local)) - echo) * lesion.cover

    # Speckle: the length of a complex Gaussian, finer along the beam than across it.
    grain = [(0.55 if axis == 0 else 1.1) * n / 64 for axis, n in enumerate(size)]
    parts = [smooth(sight.normal(size=size), grain) for _ in range(2)]
    speckle = np.hypot(*(part / part.std() for part in parts)) / np.sqrt(2)
    seen = gain * np.maximum(echo, 0.02) * (0.6 + 0.4 * speckle)
    seen = np.log1p(9 * seen) / np.log(10) - 0.12 - 0.1 * (grid[0] + 1)
    return np.repeat(seen[None].astype(np.float32), 3, axis=0)


def _below(cover: Field) -> Field:
    """Where the beam has passed a blob: nowhere at its top, all of it underneath."""
    passed: Field = np.clip(np.cumsum(cover, 0) / (0.2 * len(cover)), 0, 1)
    return passed
