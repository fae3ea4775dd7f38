r"""A public subspace: the few dimensions in which gradients of images of this kind differ.

Noise falls on every coordinate alike, and the gradients of a network live in far fewer dimensions
than it has parameters. A layer's gradient is a matrix $G = \sum_p g_p x_p^\top$ of what comes back
at its outputs and what went into it, and both of these vary in a few ways only. With
$L = \mathbb E\, G G^\top$ and $R = \mathbb E\, G^\top G$ of the recipient's own images (`Moments`),
the leading eigenvectors $U$ of L and $V$ of R are public, layer by layer (as in K-FAC and Shampoo,
whose statistics are those of the training images). Patients' gradients are projected onto them
before they are clipped, the largest at a smaller scale (`Basis`):
$$g \mapsto z = a \cdot (U^\top G V), \qquad \theta = \theta_0 + U (a \cdot z) V^\top,$$
so k coordinates carry noise instead of d parameters, and what lies outside is not learned. With
$v = \lambda_U \lambda_V / \mathrm{tr}\,L$, the expected energy of a coordinate, $a^2 = v^{-p}$; at
p = 1/2 steps are those of Adam, as far as public images know them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import InvalidValueError, ReleaseError
from canal.files import replace_file

if TYPE_CHECKING:
    from torch import Tensor


BASIS = "basis.safetensors"


@dataclass(frozen=True, eq=False)
class Factors:
    """The directions of one parameter, seen as a matrix.

    Args:
        left: `[m, r]`, of its first axis, orthonormal.
        right: `[n, s]`, of all other axes together, orthonormal.
    """

    left: Tensor
    right: Tensor

    @property
    def size(self) -> tuple[int, int]:
        """How many coordinates, as a matrix."""
        return self.left.shape[1], self.right.shape[1]


@dataclass(frozen=True, eq=False)
class Basis:
    r"""A linear map from gradients to coordinates, and back; all of it public.

    Args:
        factors: of every parameter, in order.
        kept: which of all their coordinates are used, in order.
        scale: a of every one of those.
    """

    factors: tuple[Factors, ...]
    kept: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        import torch

        every = sum(each.size[0] * each.size[1] for each in self.factors)
        kept, scale = self.kept, self.scale
        if (
            kept.ndim != 1
            or kept.shape != scale.shape
            or not len(kept)
            or kept.dtype != torch.int64
        ):
            raise InvalidValueError("a basis has a place and a scale for every direction")
        if int(kept.min()) < 0 or int(kept.max()) >= every or bool((kept.diff() <= 0).any()):
            raise InvalidValueError("a basis has its directions in order, each of them once")
        if not bool((torch.isfinite(scale) & (scale > 0)).all()):
            raise InvalidValueError("the scales of a basis must be above 0 and finite")

    def __len__(self) -> int:
        """K."""
        return len(self.kept)

    @property
    def parameters(self) -> int:
        """D."""
        return sum(each.left.shape[0] * each.right.shape[0] for each in self.factors)

    def check(self, directions: int, parameters: int) -> None:
        """See that it is of so many directions, and of so many parameters."""
        if (len(self), self.parameters) != (directions, parameters):
            raise InvalidValueError(
                f"this basis has {len(self)} directions of {self.parameters} parameters, and there "
                f"are to be {directions} of {parameters}"
            )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All of it, by name."""
        found = {"kept": self.kept.numpy(), "scale": self.scale.numpy()}
        for number, each in enumerate(self.factors):
            found[f"left {number}"] = each.left.contiguous().numpy()
            found[f"right {number}"] = each.right.contiguous().numpy()
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Basis:
        """The reverse of `to_arrays`.

        Raises:
            InvalidValueError: this is no basis.
        """
        import torch

        numbers = range((len(arrays) - 2) // 2)
        try:
            sides = [
                [
                    torch.from_numpy(np.array(arrays[f"{side} {number}"]))
                    for side in ("left", "right")
                ]
                for number in numbers
            ]
            kept, scale = (torch.from_numpy(np.array(arrays[name])) for name in ("kept", "scale"))
        except (KeyError, TypeError) as error:
            raise InvalidValueError(f"this is no basis: {error} is missing or strange") from error
        flat = [each for pair in sides for each in pair]
        if not flat or any(
            each.ndim != 2 or each.dtype != torch.float32 for each in (*flat, scale[None])
        ):
            raise InvalidValueError("a basis has matrices of 32-bit floats, two for each parameter")
        return cls(tuple(Factors(*pair) for pair in sides), kept, scale)

    def project(self, gradients: Tensor) -> Tensor:
        """Coordinates of every row, `[n, k]`.

        One row at a time: what a row becomes must not depend on those beside it, to the last bit.

        Args:
            gradients: `[n, d]`; private, perhaps.
        """
        import torch

        sizes = [len(each.left) * len(each.right) for each in self.factors]
        rows = []
        for gradient in gradients.to(self.scale.dtype):
            parts = [
                each.left.T @ part.reshape(len(each.left), -1) @ each.right
                for each, part in zip(self.factors, gradient.split(sizes), strict=True)
            ]
            rows.append(self.select([part[None] for part in parts])[0])
        return torch.stack(rows)

    def select(self, parts: Sequence[Tensor]) -> Tensor:
        """The coordinates that are kept, at their scale, `[B, k]`.

        Args:
            parts: all coordinates of every parameter, `[B, r, s]`.
        """
        import torch

        together = torch.cat([part.flatten(1) for part in parts], dim=1)
        return together[:, self.kept] * self.scale

    def expand(self, coordinates: Tensor) -> Tensor:
        """Where coordinates `[k]` lead, `[d]`: the transpose of `project`."""
        import torch

        every = [each.size[0] * each.size[1] for each in self.factors]
        found = torch.zeros(sum(every), dtype=coordinates.dtype)
        found[self.kept] = coordinates * self.scale.to(coordinates.dtype)
        parts = [
            (
                each.left.to(coordinates.dtype)
                @ part.reshape(each.size)
                @ each.right.to(coordinates.dtype).T
            ).reshape(-1)
            for each, part in zip(self.factors, found.split(every), strict=True)
        ]
        return torch.cat(parts)


def digest(basis: Basis) -> str:
    """SHA-256 of everything."""
    found = hashlib.sha256()
    for name, each in sorted(basis.to_arrays().items()):
        found.update(repr((name, each.shape, str(each.dtype))).encode())
        found.update(each.tobytes())
    return found.hexdigest()


def write_basis(folder: Path, basis: Basis) -> None:
    """Put the directions beside the rounds; the file appears whole or not at all."""
    from safetensors.numpy import save

    replace_file(folder / BASIS, save(basis.to_arrays()))


def read_basis(folder: Path) -> Basis:
    """The directions of a release; whether they are the right ones, their digest says."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return Basis.from_arrays(load((folder / BASIS).read_bytes()))
    except (OSError, SafetensorError, InvalidValueError) as error:
        raise ReleaseError(
            f"{folder / BASIS} cannot be read ({error}); ask for it again"
        ) from error


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
