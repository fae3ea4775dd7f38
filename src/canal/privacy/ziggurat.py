r"""Standard normal draws from random words: the ziggurat (Marsaglia & Tsang 2000), vectorised.

The area under $f(x) = e^{-x^2/2}$, $x \ge 0$, is covered by 256 layers of equal area v. A layer is
picked by eight bits and a point in it by 54; nearly all (98.8 %) lie under the curve for sure, the
others are decided by comparing with f, or come from the tail beyond r.

Why our own: the stream is ours to freeze (a release must come out the same after a crash, and after
an upgrade of NumPy), its precision can be bounded on one page, and over ChaCha20 it is faster than
NumPy's over PCG64.

Precision. Layer widths are correctly rounded doubles (computed here with 30 digits), points are odd
multiples of $2^{-53}$ of a width, and the tail draws its exponentials from 128 bits. With
displacements by rounding, the density of a draw is within a factor $1 \pm 2^{-45}$ of the normal's
for $|x| \le 12$, once smoothed over $2^{-46}$ (`canal.privacy.lattice` does that); all of the
probability beyond 12 is less than 4e-33.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from canal.privacy.randomness import Stream

LAYERS = 256
# The one r for which 256 layers of area v close at the top; tests/privacy solves for both again.
TAIL_START = Decimal("3.6541528853610087716454297203995157629748546")
LAYER_AREA = Decimal("0.0049286732339746553473617754023360280691353847")
_BLOCK = 1 << 16

Floats = NDArray[np.float64]


class _Tables(NamedTuple):
    scale: Floats  # [256] width of a layer, over 2^53
    edge: Floats  # [256] below it, a point of the layer is under the curve for sure
    floor: Floats  # [256] f at the bottom of a layer
    height: Floats  # [256] f at its top less f at its bottom


@cache
def _tables() -> _Tables:
    with localcontext() as context:
        context.prec = 30

        def f(x: Decimal) -> Decimal:
            return (-x * x / 2).exp()

        # Layer 0 is the base: its rectangle reaches to r, and its width makes up for the tail.
        width = [LAYER_AREA / f(TAIL_START), TAIL_START]
        while len(width) < LAYERS:
            top = LAYER_AREA / width[-1] + f(width[-1])
            width.append((-2 * top.ln()).sqrt())
        width.append(Decimal(0))
        value = [Decimal(0), *(f(x) for x in width[1:])]
        return _Tables(
            scale=np.array([float(x) for x in width[:-1]]) * 2.0**-53,
            edge=np.array([float(x) for x in width[1:]]),
            floor=np.array([float(y) for y in value[:-1]]),
            height=np.array([float(b - a) for a, b in pairwise(value)]),
        )


def standard_normal(stream: Stream, count: int) -> Floats:
    """Draw standard normals; the same stream gives the same values."""
    values = np.empty(count)
    undecided: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
    for start in range(0, count, _BLOCK):
        part = values[start : start + _BLOCK]
        layer, above = _points(stream, part)
        undecided.append((above + start, layer[above]))
    where = np.concatenate([w for w, _ in undecided]) if undecided else np.empty(0, np.intp)
    layer = np.concatenate([i for _, i in undecided]) if undecided else where
    while where.size:
        values[where], rejected = _decide(stream, values[where], layer)
        where = where[rejected]
        again = np.empty(where.size)
        layer, above = _points(stream, again)
        values[where] = again
        where, layer = where[above], layer[above]
    return values


def _points(stream: Stream, out: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Fill `out` with points of random layers; give the layers and who may be above the curve."""
    table = _tables()
    words = stream.words(out.size)
    layer = (words & np.uint64(LAYERS - 1)).astype(np.intp, copy=False)
    # The upper 54 bits, signed and odd: symmetric about zero, and exact as a double.
    signed = words.view(np.int64)
    signed >>= 10
    signed |= 1
    np.multiply(signed, table.scale.take(layer), out=out)
    return layer, np.flatnonzero(np.abs(out) >= table.edge.take(layer))


def _decide(
    stream: Stream, points: Floats, layer: NDArray[np.intp]
) -> tuple[Floats, NDArray[np.intp]]:
    """Settle points that may lie above the curve; give the values and which to draw again."""
    table = _tables()
    height = (stream.words(points.size) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    under = table.floor[layer] + height * table.height[layer] < np.exp(-0.5 * points * points)
    tail = np.flatnonzero(layer == 0)
    points[tail] = np.copysign(_tail(stream, tail.size), points[tail])
    under[tail] = True
    return points, np.flatnonzero(~under)


def _tail(stream: Stream, count: int) -> Floats:
    """Draw |x| beyond r: r + e/r with e exponential, kept with probability exp(-(e/r)²/2)."""
    start = float(TAIL_START)
    values = np.empty(count)
    where = np.arange(count)
    while where.size:
        excess = _exponential(stream, where.size) / start
        kept = 2 * _exponential(stream, where.size) > excess * excess
        values[where[kept]] = start + excess[kept]
        where = where[~kept]
    return values


def _exponential(stream: Stream, count: int) -> Floats:
    """Draw -log(u) for u uniform in (0, 1) with full precision however small: 128 bits."""
    high, low = stream.words(2 * count).reshape(2, count).astype(np.float64)
    return -np.log((high + (low + 0.5) * 2.0**-64) * 2.0**-64)
