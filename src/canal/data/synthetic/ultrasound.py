"""Soft tissue by ultrasound: masses and cysts between layers, under speckle."""

from __future__ import annotations

import numpy as np

from canal.data.synthetic.paint import decoy_texture, lesion_texture
from canal.data.synthetic.shapes import Field, Rng, Seen, smooth, waves


def ultrasound(body: Rng, sight: Rng, grid: Field, lesion: Seen, decoys: list[Seen]) -> Field:
    """Paint tissue with its lesion and decoys: grey, repeated to [3, *size], about 0 to 1.

    Args:
        body: what belongs to the patient and is the same in every view.
        sight: what belongs to this view.
        grid: coordinates from -1 to 1, [dims, *size].
        lesion: as it is seen in this view.
        decoys: what only resembles it, already behind the lesion.
    """
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
