"""Second moments of public gradients, layer by layer, and the basis that follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from canal.errors import InvalidValueError
from canal.gradients.basis import Basis, Factors

if TYPE_CHECKING:
    from torch import Tensor

# Coordinates of next to no energy would else be blown up without limit: a share of the mean.
_DAMPING = 1e-3
# Of a parameter's energy: less of it in a direction is the rounding of 32-bit gradients.
_ROUNDING = 1e-10


class Moments:
    """Second moments of gradients, on both sides of every parameter.

    Args:
        shapes: of the parameters, in order.
    """

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        import torch

        self.shapes = [
            (shape[0], int(np.prod(shape[1:]))) if len(shape) > 1 else (1, *shape)
            for shape in shapes
        ]
        self.left = [torch.zeros(m, m, dtype=torch.float64) for m, _ in self.shapes]
        # Of a vector every entry is on its own: there is nothing to be turned.
        self.right = [
            torch.zeros((n, n) if m > 1 else (n,), dtype=torch.float64) for m, n in self.shapes
        ]
        self.count = 0

    def add(self, gradients: Tensor) -> None:
        """Take some rows in, `[n, d]`; each counts alike, however long it is."""
        lengths = gradients.norm(dim=1, keepdim=True)
        rows = gradients[lengths[:, 0] > 0] / lengths[lengths[:, 0] > 0]
        sizes = [m * n for m, n in self.shapes]
        for place, ((m, n), part) in enumerate(
            zip(self.shapes, rows.split(sizes, dim=1), strict=True)
        ):
            if m == 1:
                self.right[place] += part.double().square().sum(0)
                continue
            matrices = part.reshape(len(rows), m, n).double()
            self.left[place] += (matrices @ matrices.mT).sum(0)
            flat = matrices.reshape(-1, matrices.shape[2])
            self.right[place] += flat.T @ flat
        self.count += len(rows)

    def basis(self, count: int, *, power: float = 0.5) -> Basis:
        """The directions that hold most of each parameter's energy; fewer, if no more are known.

        Args:
            count: k, at most. Every parameter has those that hold the largest shares of its own
                energy; what no public image moved, up to rounding, is not known.
            power: p; 0 leaves coordinates at the scale that they have.
        """
        import torch

        factors, shares, energies = [], [], []
        for (m, n), left, right in zip(self.shapes, self.left, self.right, strict=True):
            total = float(right.sum() if m == 1 else right.trace())
            first, across = (
                (torch.ones(1, dtype=torch.float64), torch.eye(1)) if m == 1 else _leading(left)
            )
            second, along = (right, torch.eye(n)) if m == 1 else _leading(right)
            energy = first[:, None] * second / (first.sum() or 1.0)
            factors.append((across, along, (len(first), len(second))))
            energies.append(energy.reshape(-1) / max(1, self.count))
            shares.append(energy.reshape(-1) / (total or 1.0))
        energy, share = torch.cat(energies), torch.cat(shares)
        known = int((share > _ROUNDING).sum())
        if count < 1 or not known:
            raise InvalidValueError(
                f"directions = {count} must be at least 1, of the {known} that are known from the "
                "recipient's images"
            )
        chosen = share.argsort(descending=True, stable=True)[: min(count, known)].sort().values
        return _trimmed(factors, chosen, self.scale(energy[chosen], power).float())

    @staticmethod
    def scale(energy: Tensor, power: float) -> Tensor:
        """A of every coordinate that is kept, from its energy."""
        return (energy / energy.mean() + _DAMPING) ** (-power / 2)


def _leading(moment: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, largest first, and their vectors."""
    import torch

    values, vectors = torch.linalg.eigh(moment)
    return values.flip(0).clamp(min=0), vectors.flip(1).float()


def _trimmed(
    factors: Iterable[tuple[Tensor, Tensor, tuple[int, int]]], chosen: Tensor, scale: Tensor
) -> Basis:
    """Without the directions of which no coordinate is kept."""
    import torch

    made, kept, start, free = [], [], 0, 0
    for across, along, (rows, columns) in factors:
        mine = chosen[(chosen >= start) & (chosen < start + rows * columns)] - start
        start += rows * columns
        r, s = (
            (int(axis.max()) + 1 if len(mine) else 0) for axis in (mine // columns, mine % columns)
        )
        made.append(Factors(across[:, :r].contiguous(), along[:, :s].contiguous()))
        kept.append(free + (mine // columns) * s + mine % columns)
        free += r * s
    return Basis(tuple(made), torch.cat(kept), scale)
