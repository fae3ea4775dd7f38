"""The colon through an endoscope: domes on folded mucosa, under glare and bubbles."""

from __future__ import annotations

import numpy as np

from canal.data.synthetic.paint import decoy_texture, lesion_texture, paint, rgb, vignette
from canal.data.synthetic.shapes import Field, Rng, Seen, column, ridge, step, waves


def endoscopy(body: Rng, sight: Rng, grid: Field, lesion: Seen, decoys: list[Seen]) -> Field:
    """Paint mucosa with its lesion and decoys: colour in [3, *size], about 0 to 1.

    Args:
        body: what belongs to the patient and is the same in every view.
        sight: what belongs to this view.
        grid: coordinates from -1 to 1, [dims, *size].
        lesion: as it is seen in this view.
        decoys: what only resembles it, already behind the lesion.
    """
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
