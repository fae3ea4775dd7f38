"""Skin through a dermoscope: pigment in a fine pattern, stains, and hair in front of it."""

from __future__ import annotations

import numpy as np

from canal.data.synthetic.paint import decoy_texture, lesion_texture, paint, rgb, vignette
from canal.data.synthetic.shapes import Field, Rng, Seen, column, ridge, step, waves


def dermoscopy(body: Rng, sight: Rng, grid: Field, lesion: Seen, decoys: list[Seen]) -> Field:
    """Paint skin with its lesion and decoys: colour in [3, *size], about 0 to 1.

    Args:
        body: what belongs to the patient and is the same in every view.
        sight: what belongs to this view.
        grid: coordinates from -1 to 1, [dims, *size].
        lesion: as it is seen in this view.
        decoys: what only resembles it, already behind the lesion.
    """
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
