r"""Noise that no floating-point trick undoes: integers in, integer noise, integers out.

A clipped tensor is truncated *toward zero* onto the lattice $\gamma\mathbb Z$, so no norm can grow;
tensors are summed as integers; the noise is an integer too, a Gaussian rounded to the lattice and
drawn without a look at the data. For integers a, $a + \mathrm{round}(g) = \mathrm{round}(a + g)$:
what is published is a post-processing of the continuous Gaussian mechanism, and its exact
accounting holds. No float is ever added to private data, so there are no low-order bits to read
(Mironov 2012).

Exactness of the rounding. A float draw g stands for $g + \tau v$ with v another normal and
$\tau = 2^{-46}$, wide enough to smooth the grid of doubles away and too narrow to change anything
else. Where $\tau v$ could move the rounded value, v is drawn and the sum is rounded in exact
rational arithmetic; everywhere else it need not be known. A lattice point's probability is then
within a factor $1 \pm 2^{-45}$ of the ideal (`canal.privacy.ziggurat`), which can add at most
$2^{-44}$ to epsilon for every coordinate drawn. That, too, is charged
(`canal.privacy.events.PRECISION_PER_DRAW`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError, LatticeOverflowError
from canal.privacy.randomness import Stream
from canal.privacy.ziggurat import standard_normal

Storage = Literal["int16", "int32"]
STORAGES: dict[str, int] = {"int16": 2**15 - 1, "int32": 2**31 - 1}
# Noise beyond ten sigma has probability 2e-23 a draw; it is then saturated, never wrapped.
TAIL_SIGMAS = 10.0
# Names how bits become noise. Changing the sampler changes this, and with it every key.
SAMPLER = "rounded-gaussian/ziggurat-256/chacha20/1"

_JITTER = 2.0**-46
_DOUBT = 2.0**-42  # |tau * v| and the rounding of std * g stay below this, in units of std
_BLOCK = 1 << 16

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Lattice:
    r"""The grid $\gamma\mathbb Z$ on which everything private is added up.

    Args:
        step: $\gamma$, a power of two, so that dividing by it is exact.

    >>> Lattice(0.25).truncate([0.3, -0.3, 1.0])
    array([ 1, -1,  4])
    """

    step: float

    def __post_init__(self) -> None:
        if not 0 < self.step < math.inf or math.frexp(self.step)[0] != 0.5:
            raise InvalidValueError(
                f"lattice step = {self.step!r} must be a power of two, such as 2**-12"
            )

    def truncate(self, values: ArrayLike) -> Integers:
        """The lattice point next to each value on the side of zero; no magnitude grows.

        Args:
            values: private, finite; any shape.
        """
        scaled = np.asarray(values, dtype=np.float64) / self.step
        # NaN fails the comparison too.
        if not (np.abs(scaled) < 2.0**53).all():
            raise InvalidValueError(
                f"values must be finite and below {2.0**53 * self.step:.3g} to be put on the "
                "lattice; a teacher that returns NaN contributes zero instead"
            )
        return np.trunc(scaled).astype(np.int64)

    def check(self, bound: float, sigma: ArrayLike, storage: Storage) -> None:
        r"""Refuse, before anything is drawn, a storage type that could not hold the result.

        Args:
            bound: the largest magnitude of the noiseless sum, in the unit of the values; public.
            sigma: standard deviation of the noise, in the unit of the values.
            storage: `int16` or `int32`.
        """
        if storage not in STORAGES:
            raise InvalidValueError(f"storage = {storage!r} is unknown; choose int16 or int32")
        if not 0 <= bound < math.inf:
            raise InvalidValueError(f"bound = {bound!r} must be finite and at least 0")
        needed = (bound + TAIL_SIGMAS * float(np.max(_stds(sigma)))) / self.step
        limit = STORAGES[storage]
        if needed > limit:
            exponent = math.ceil(math.log2(needed * self.step / limit))
            raise LatticeOverflowError(
                f"{storage} holds values up to {limit}, but the sum and {TAIL_SIGMAS:g} sigma of "
                f"noise need {needed:.4g} lattice steps; take a step of at least 2**{exponent}"
                + (", or int32" if storage == "int16" else "")
            )

    def perturb(
        self, total: ArrayLike, sigma: ArrayLike, stream: Stream, *, bound: float, storage: Storage
    ) -> NDArray[np.signedinteger]:
        r"""Add integer noise once to a sum of lattice points.

        Guarantees:
            Integer arithmetic only. A result beyond the storage type (probability below 2e-23 a
            draw once `check` has passed) is saturated: post-processing, not a wrap.

        Args:
            total: private integers, any shape.
            sigma: standard deviation in the unit of the values; broadcast to the shape of total.
            stream: the noise of this one release.
            bound: public bound on the magnitude of the noiseless sum, in the unit of the values.
            storage: integer type of the result.
        """
        integers = np.asarray(total)
        if not np.issubdtype(integers.dtype, np.integer):
            raise InvalidValueError(f"the sum must be integers, not {integers.dtype}")
        self.check(bound, sigma, storage)
        stds = _stds(sigma) / self.step
        noisy = rounded_gaussian(stds, integers.shape, stream)
        noisy += integers
        limit = STORAGES[storage]
        return np.clip(noisy, -limit, limit).astype(storage)


def rounded_gaussian(std: ArrayLike, shape: tuple[int, ...], stream: Stream) -> Integers:
    r"""Integers distributed as $\mathrm{round}(\mathcal N(0, \mathrm{std}^2))$.

    Args:
        std: in lattice steps, above 0 and at most $2^{40}$; broadcast to the shape.
        shape: of the result.
        stream: random words; the same stream gives the same integers.

    >>> from canal.privacy import Secret
    >>> stream = Stream(Secret.seeded(7).key(b"docs"))
    >>> rounded_gaussian(1000.0, (4,), stream)
    array([-678,  935, 2190, -596])
    """
    stds = _stds(std)
    if stds.max() > 2.0**40:
        raise LatticeOverflowError(
            f"std = {float(stds.max()):.4g} lattice steps is more than 2**40; take a coarser one"
        )
    normal = standard_normal(stream, math.prod(shape))
    spread = stds.reshape(-1) if stds.size == 1 else np.broadcast_to(stds, shape).reshape(-1)
    result = normal.view(np.int64)  # the same memory: each block is read, then replaced
    doubtful: list[tuple[int, float]] = []
    for start in range(0, normal.size, _BLOCK):  # blocks stay in the cache
        part = slice(start, start + _BLOCK)
        part_std = spread if spread.size == 1 else spread[part]
        scaled = normal[part] * part_std
        integers = np.rint(scaled)
        distance = np.abs(np.subtract(scaled, integers, out=scaled), out=scaled)
        doubt = np.flatnonzero(distance > 0.5 - part_std * _DOUBT) + start
        doubtful += zip(doubt.tolist(), normal[doubt].tolist(), strict=True)
        result[part] = integers
    jitter = standard_normal(stream, len(doubtful)).tolist()
    for (index, g), v in zip(doubtful, jitter, strict=True):
        exact = Fraction(g) + Fraction(_JITTER) * Fraction(v)
        result[index] = round(Fraction(float(spread[index % spread.size])) * exact)
    return result.reshape(shape)


def _stds(sigma: ArrayLike) -> NDArray[np.float64]:
    stds = np.asarray(sigma, dtype=np.float64)
    if stds.size == 0 or not np.isfinite(stds).all() or not (stds > 0).all():
        raise InvalidValueError(
            "every noise standard deviation must be above 0 and finite; a channel of infinite "
            "sigma is not released, so leave it out"
        )
    return stds
