r"""A public basis: the few directions of parameter space in which images of this kind differ.

Noise falls on every coordinate alike, and the gradients of a network live in far fewer dimensions
than it has parameters. With $G$ the gradients of the recipient's own images, each of length one,
the leading eigenvectors U of $G^\top G$ are public; patients' gradients are projected on them
before they are clipped,
$$g \mapsto U^\top g, \qquad \theta = \theta_0 + U z,$$
so k directions carry noise instead of d parameters, and what lies outside of them is not learned.
The idea is that of Yu et al. 2021 and Zhou et al. 2021, with public images at hand.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from canal.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import Tensor


def leading(gradients: Tensor, count: int) -> Tensor:
    """The directions that hold most of some gradients, `[k, d]`, orthonormal, largest first.

    Args:
        gradients: `[n, d]`, of public images; each counts alike, however long it is.
        count: k, at most n.
    """
    import torch

    rows = gradients.double()
    lengths = rows.norm(dim=1, keepdim=True)
    rows = rows[lengths[:, 0] > 0] / lengths[lengths[:, 0] > 0]
    if not 0 < count <= min(rows.shape):
        raise InvalidValueError(
            f"directions = {count} must be at least 1 and at most {min(rows.shape)}: so many are "
            "known from the recipient's images"
        )
    energy, vectors = torch.linalg.eigh(rows @ rows.T)
    energy, vectors = energy.flip(0)[:count], vectors.flip(1)[:, :count]
    if not float(energy[-1]) > 1e-12 * float(energy[0]):
        raise InvalidValueError(
            f"the recipient's images point in fewer than {count} directions; take fewer"
        )
    found = (vectors.T @ rows) / energy.sqrt()[:, None]
    # Orthonormal to the last digits, whatever the spectrum.
    made: Tensor = torch.linalg.qr(found.T).Q.T.contiguous()
    return made.float()


def project(gradients: Tensor, basis: Tensor) -> Tensor:
    """Coordinates of every row in a basis, `[n, k]`.

    One row at a time: what a row becomes must not depend on those beside it, to the last bit.

    Args:
        gradients: `[n, d]`; private, perhaps.
        basis: `[k, d]`; public.
    """
    import torch

    return torch.stack([basis @ row for row in gradients.to(basis.dtype)])


def digest(basis: Tensor) -> str:
    """SHA-256 of the directions."""
    return hashlib.sha256(basis.numpy().tobytes()).hexdigest()
