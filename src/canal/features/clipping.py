r"""Clip, normalise, put on the lattice: what makes the sensitivity true whatever a teacher does.

For a block v of one image (a channel's H·W values, or a vector of statistics) and its cap,
$$\mathrm{norm}(v) = v / \max(\hat c, \lVert v \rVert)$$
lies in the unit ball (Alg. precompute, line 4). Truncation toward zero keeps it there.

Guarantees:
    For every input, the integers of a block have $\sum n^2 \le \gamma^{-2}$, checked in integer
    arithmetic, and are not negative where that was asked for. So two of them are at most 2, or
    $\sqrt 2$, apart, and no rounding of a float can matter.

==================  ============================================================
input               becomes
==================  ============================================================
all zero            zero
norm up to the cap  v / cap
beyond the cap      v / norm: length one, the same direction
subnormal numbers   the same; squares are taken after division by the largest
cap 0               v / norm: always of length one
NaN or infinity     zero for the *whole image*: a broken teacher says nothing
==================  ============================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError
from canal.privacy.lattice import Lattice


@dataclass(frozen=True)
class Clipped:
    """What one teacher contributes for a batch of images.

    Args:
        integers: `[B, M, *grid]`, private.
        broken: `[B]`, where the input held NaN or infinity and the contribution is zero; private.
    """

    integers: NDArray[np.int64]
    broken: NDArray[np.bool_]


def clip(blocks: ArrayLike, caps: ArrayLike, lattice: Lattice, *, nonnegative: bool) -> Clipped:
    r"""Bring every block into the unit ball and onto the lattice.

    Args:
        blocks: private, `[B, M, *grid]`; a block is all but the first two axes.
        caps: $\hat c_c \ge 0$ of the M blocks, public or already released.
        lattice: $\gamma\mathbb Z$, with a step of at most 1.
        nonnegative: clamp first.

    >>> clip([[[3.0, 4.0]]], [10.0], Lattice(0.25), nonnegative=False).integers
    array([[[1, 1]]])
    """
    lengths = np.asarray(caps, dtype=np.float64)
    if not (lengths >= 0).all():
        raise InvalidValueError("a cap is a length, and cannot be negative")
    lengths = np.abs(lengths)  # there is a zero with a sign, and division keeps it
    given = np.asarray(blocks, dtype=np.float64)
    values = given.reshape(*given.shape[:2], -1)
    # The sum of finite numbers may overflow; the largest of them cannot.
    peak = np.abs(values).max(axis=2, initial=0.0)
    broken = ~np.isfinite(peak).all(axis=1)
    if broken.any():
        values = np.where(broken[:, None, None], 0.0, values)
        peak = np.where(broken[:, None], 0.0, peak)
    if nonnegative:
        values = np.maximum(values, 0.0)
        peak = values.max(axis=2, initial=0.0)
    unit = values / np.where(peak > 0, peak, 1.0)[..., None]
    length = np.sqrt(np.square(unit).sum(axis=2))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        below_cap = peak / lengths
        factor = np.fmin(below_cap, 1 / length)
    unit *= np.where(peak > 0, factor, 0.0)[..., None]
    return Clipped(_inside(unit, lattice).reshape(given.shape), broken)


def _inside(unit: NDArray[np.float64], lattice: Lattice) -> NDArray[np.int64]:
    """Lattice points of blocks whose length is one up to rounding; exactly one at most."""
    integers = lattice.truncate(unit)
    longest = round(1 / lattice.step)
    shrink = 1 - 2.0**-40
    while (outside := _is_longer(integers, longest)).any():
        integers[outside] = lattice.truncate(unit[outside] * shrink)
        shrink -= 1 - shrink
    return integers


def _is_longer(integers: NDArray[np.int64], longest: int) -> NDArray[np.bool_]:
    """Of each block, whether it is outside of the ball; no square of a large number can wrap."""
    within = np.clip(integers, -longest - 1, longest + 1)
    return np.asarray(np.square(within).sum(axis=2) > longest**2)
