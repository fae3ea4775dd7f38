r"""Votes on every pixel of the queries, with noise: PATE (Papernot et al. 2018) for segmentation.

Each of K teachers says yes or no of every pixel; the sums get Gaussian noise and the majority is
the label. One patient may change all that one teacher says, so with P pixels of N queries the sums
move by $\sqrt{NP}$ at most, and $\sigma = \sqrt{NP}/\mu$ on votes between 0 and K: with three
teachers, the noise is hundreds of times as large as any majority.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from canal.learning.networks import evaluating, to_float
from canal.privacy.gaussian import mu_from_rho, rho_from_epsilon

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.data.arrays import Arrays

_BATCH = 32


def spread(pixels: int, epsilon: float, delta: float) -> float:
    """Sigma of every vote, for so many pixels of all queries together."""
    return math.sqrt(pixels) / mu_from_rho(rho_from_epsilon(epsilon, delta))


def majority(
    teachers: Sequence[nn.Module],
    queries: Arrays,
    epsilon: float,
    delta: float,
    *,
    seed: int,
) -> Tensor:
    """Noisy labels of all queries, zeros and ones, `[N, 1, *size]`.

    Args:
        teachers: K networks; private.
        queries: that are voted on; public.
        epsilon: of a patient, who is added, removed or replaced.
        delta: of the same.
        seed: of the noise: a research run, which protects nobody.
    """
    import torch

    votes = torch.zeros(queries.masks.shape)
    for teacher in teachers:
        with evaluating(teacher), torch.no_grad():
            pixels = torch.from_numpy(queries.images.copy()).split(_BATCH)
            votes += torch.cat([(teacher(to_float(each)) > 0).float() for each in pixels])
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(votes.shape, generator=generator)
    return (votes + spread(votes.numel(), epsilon, delta) * noise > len(teachers) / 2).float()
