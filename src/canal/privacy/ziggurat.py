r"""Standard normal draws from random words: the ziggurat (Marsaglia & Tsang 2000), vectorised.

The area under $f(x) = e^{-x^2/2}$, $x \ge 0$, is covered by 256 layers of equal area v. A layer is
picked by eight bits and a point in it by 54, sign included; nearly all (98.8 %) lie under the curve
for sure, the others are decided by comparing with f, or come from the tail beyond r.

Why our own: the stream is ours to freeze (a release must come out the same after a crash, and after
an upgrade of NumPy), over ChaCha20 it is faster than NumPy's over PCG64, and a draw can be made
*exact*. A double is only the middle of a tiny interval; `Normals.exact` draws the bits that the
double left out, so that whoever rounds to a lattice can decide every case as the real number would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
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
# How far a double may be from the real number that it stands for: half a point's interval
# (2^-51), the rounding of a product, and in the tail of a logarithm (2^-48).
UNCERTAINTY = 2.0**-47
_BLOCK = 1 << 16

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Indices = NDArray[np.intp]


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


@dataclass(frozen=True)
class Normals:
    """Draws, and what it takes to make any of them exact.

    Args:
        values: the draws as doubles.
        layers: of the ziggurat, one a draw.
        tail: for draws beyond r, the 128 bits of the exponential behind them, by index.
    """

    values: Floats
    layers: NDArray[np.uint8]
    tail: dict[int, int]

    def exact(self, index: int, word: int) -> Fraction:
        """The real number that one double stands for, given 64 more random bits.

        Guarantees:
            Within `UNCERTAINTY` of the double. Over random words, uniform on the interval of the
            layer that the double is the middle of; in the tail, a logarithm to 50 digits.
        """
        value = float(self.values[index])
        if index in self.tail:
            with localcontext() as context:
                context.prec = 50
                uniform = (Decimal(self.tail[index]) + Decimal("0.5")) / Decimal(2**128)
                exact = Fraction(TAIL_START - uniform.ln() / TAIL_START)
            return exact if value > 0 else -exact
        scale = Fraction(float(_tables().scale[self.layers[index]]))
        # The double is an odd multiple of the scale, rounded by less than one scale.
        odd = 2 * math.floor(Fraction(value) / scale / 2) + 1
        return scale * (odd + Fraction(2 * word + 1 - 2**64, 2**64))


def standard_normal(stream: Stream, count: int) -> Normals:
    """Draw standard normals; the same stream gives the same values."""
    values, layers = np.empty(count), np.empty(count, dtype=np.uint8)
    above = []
    for start in range(0, count, _BLOCK):
        part = slice(start, start + _BLOCK)
        above.append(_points(stream, values[part], layers[part]) + start)
    where = np.concatenate(above) if above else np.empty(0, dtype=np.intp)
    tail: dict[int, int] = {}
    while where.size:
        layer, point = layers[where], values[where]
        base = np.flatnonzero(layer == 0)
        values[where[base]] = np.copysign(
            _tail(stream, where[base], tail), point[base], dtype=np.float64
        )
        where = where[~_is_under(stream, point, layer)]
        again, layer = np.empty(where.size), np.empty(where.size, dtype=np.uint8)
        out = _points(stream, again, layer)
        values[where], layers[where] = again, layer
        where = where[out]
    return Normals(values, layers, tail)


def _points(stream: Stream, values: Floats, layers: NDArray[np.uint8]) -> Indices:
    """Fill in points of random layers; give those that may lie above the curve."""
    table = _tables()
    words = stream.words(values.size)
    layers[:] = words  # the lowest eight bits
    # The upper 54 bits, signed and made odd: the middle of an interval, symmetric about zero.
    signed = words.view(np.int64)
    signed >>= 10
    signed |= 1
    np.multiply(signed, table.scale.take(layers), out=values)
    return np.flatnonzero(np.abs(values) >= table.edge.take(layers))


def _is_under(stream: Stream, points: Floats, layer: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether points, at random heights of their layers, lie under the curve; the base always."""
    table = _tables()
    height = (stream.words(points.size) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    under: NDArray[np.bool_] = table.floor[layer] + height * table.height[layer] < np.exp(
        -0.5 * points * points
    )
    base: NDArray[np.bool_] = layer == 0
    return under | base


def _tail(stream: Stream, where: Indices, tail: dict[int, int]) -> Floats:
    """Draw |x| beyond r: r + e/r with e exponential, kept with probability exp(-(e/r)²/2)."""
    start = float(TAIL_START)
    values = np.empty(where.size)
    open_ = np.arange(where.size)
    while open_.size:
        high, low = stream.words(2 * open_.size).reshape(2, -1)
        excess = _exponential(high, low) / start
        kept = 2 * _exponential(*stream.words(2 * open_.size).reshape(2, -1)) > excess * excess
        values[open_[kept]] = start + excess[kept]
        bits = zip(high[kept].tolist(), low[kept].tolist(), strict=True)
        tail.update(
            (index, upper << 64 | lower)
            for index, (upper, lower) in zip(where[open_[kept]].tolist(), bits, strict=True)
        )
        open_ = open_[~kept]
    return values


def _exponential(high: Words, low: Words) -> Floats:
    """-log(u) for u uniform in (0, 1), of full precision however small: 128 bits."""
    return -np.log((high.astype(np.float64) + (low.astype(np.float64) + 0.5) * 2.0**-64) * 2.0**-64)
