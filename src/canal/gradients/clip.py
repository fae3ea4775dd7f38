r"""One patient's part: rescaled, clipped, truncated.

A gradient g is divided into blocks b of coordinates, each with a bound $C_b$; every coordinate has
a public scale a. What a patient adds is
$$\mathrm{clip}(g)_b = \frac{a g_b}{C_b} \min\Bigl(1, \frac{C_b}{\lVert a g_b \rVert}\Bigr),$$
a point of the unit ball in every block. One block and a = 1 is the clip of DP-SGD; one block and
other scales clip to an *ellipsoid*; a block for each channel is the paper's clip.

Guarantees:
    For every input, NaN and infinity included, the integers of a block have
    $\sum n^2 \le \gamma^{-2}$, seen in exact arithmetic. Adding or removing a patient therefore
    moves a block of the sum by at most 1, and replacing one by at most 2.

==================  ==========================================================
input               becomes
==================  ==========================================================
all zero            zero
norm up to C        a g / C
beyond C            length one, the same direction
NaN or infinity     zero for the whole patient
==================  ==========================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from canal.errors import InvalidValueError
from canal.privacy.lattice import Lattice

if TYPE_CHECKING:
    from torch import Tensor

# Takes up every rounding of 32-bit floats on the way to the lattice.
_LESS = 1 - 2.0**-20


@dataclass(frozen=True, eq=False)
class Clip:
    """How one patient's gradient is bounded; all of it public.

    Args:
        scale: a of every coordinate, above 0.
        blocks: the block of every coordinate, counted from 0.
        bounds: $C_b$ of every block.
        length: C, the unit of a step.
    """

    scale: NDArray[np.float64]
    blocks: NDArray[np.int64]
    bounds: NDArray[np.float64]
    length: float

    def __post_init__(self) -> None:
        for name in ("scale", "bounds"):
            values = getattr(self, name)
            if not values.size or not (np.isfinite(values) & (values > 0)).all():
                raise InvalidValueError(f"{name} of a clip must be above 0 and finite everywhere")
        if self.scale.shape != self.blocks.shape or self.blocks.min() < 0:
            raise InvalidValueError("a clip needs a scale and a block for every coordinate")
        if self.blocks.max() >= len(self.bounds):
            raise InvalidValueError("a clip needs a bound for every block")
        if not 0 < self.length < np.inf:
            raise InvalidValueError(f"length = {self.length!r} must be above 0 and finite")

    @property
    def unit(self) -> NDArray[np.float64]:
        """What one unit of a sum is worth as a gradient, coordinate by coordinate: C / a."""
        return self.bounds[self.blocks] / self.scale

    @property
    def direction(self) -> NDArray[np.float64]:
        """The same in units of C: what it is worth as a step."""
        return self.unit / self.length

    def apply(self, gradients: Tensor, lattice: Lattice) -> Tensor:
        """What each patient adds to the sum, `[P, d]` integers; private.

        Args:
            gradients: `[P, d]`, one row a patient; private.
            lattice: with a step of at most 1.
        """
        import torch

        if lattice.step > 1:
            raise InvalidValueError(f"a lattice step of {lattice.step:g} must be at most 1")
        longest = round(1 / lattice.step)
        # In units of the lattice, where a block of length one has this many steps.
        ready = gradients.double() * torch.from_numpy(longest / self.unit)
        ready[~torch.isfinite(ready).all(dim=1)] = 0.0
        lengths = self._squares(ready).sqrt()
        factor = longest / lengths.clamp(min=longest) * _LESS
        while True:
            integers = (ready * self._spread(factor)).trunc()
            # Whole numbers below 2^53, so their squares and sums are exact in any order.
            outside = self._squares(integers) > float(longest) ** 2
            if not outside.any():
                return integers.long()
            factor = torch.where(outside, factor * _LESS, factor)

    def _squares(self, values: Tensor) -> Tensor:
        """Sums of squares of every block, `[P, blocks]`."""
        import torch

        if len(self.bounds) == 1:
            # One by one: torch adds up many rows in another order than one, and it shows.
            return torch.stack([row.square().sum() for row in values])[:, None]
        found = torch.zeros(len(values), len(self.bounds), dtype=values.dtype)
        return found.index_add_(1, torch.from_numpy(self.blocks), values.square())

    def _spread(self, factor: Tensor) -> Tensor:
        """A factor of every block, for every coordinate."""
        import torch

        if len(self.bounds) == 1:
            return factor
        return factor[:, torch.from_numpy(self.blocks)]
