"""Whether channel c means the same to two teachers, which averaging their bottlenecks supposes.

Two numbers, over the same images. The *cosine* of the flattened bottlenecks is what enters an
average; but features behind a ReLU are non-negative, so even unrelated networks have a positive
one. The *correlation* of each channel over images and positions, averaged over channels, is zero
for networks that have nothing to do with each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from canal.errors import InvalidValueError


@dataclass(frozen=True)
class Alignment:
    """How much two bottlenecks agree.

    Args:
        cosine: of whole bottlenecks, mean over images.
        correlation: of single channels, mean over channels that are not constant.
    """

    cosine: float
    correlation: float


def alignment(ours: Tensor, theirs: Tensor) -> Alignment:
    """Compare two networks' features of the same images, both `[N, C, *]`."""
    if ours.shape != theirs.shape:
        raise InvalidValueError(
            f"features of shapes {tuple(ours.shape)} and {tuple(theirs.shape)} cannot be compared; "
            "give the same images, layer and architecture"
        )

    cosine = F.cosine_similarity(ours.flatten(1), theirs.flatten(1), dim=1).mean()
    a, b = (x.transpose(0, 1).flatten(1).double() for x in (ours, theirs))
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    alive = (a.norm(dim=1) > 1e-9) & (b.norm(dim=1) > 1e-9)
    if not alive.any():
        return Alignment(float(cosine), 0.0)
    correlation = F.cosine_similarity(a[alive], b[alive], dim=1).mean()
    return Alignment(float(cosine), float(torch.nan_to_num(correlation)))
