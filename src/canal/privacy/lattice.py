r"""Noise that no floating-point trick undoes: integers in, integer noise, integers out.

A clipped tensor is truncated *toward zero* onto the lattice $\gamma\mathbb Z$, so no norm can grow;
tensors are summed as integers; the noise is an integer too, a Gaussian rounded to the lattice and
drawn without a look at the data. For integers a, $a + \mathrm{round}(g) = \mathrm{round}(a + g)$:
what is published is a post-processing of the continuous Gaussian mechanism, and its exact
accounting holds. No float is ever added to private data, so there are no low-order bits to read
(Mironov 2012).

Exactness of the rounding. A double is the middle of a tiny interval of real numbers. Where all of
it rounds to one integer, that is the draw; where it might not, the bits that the double left out
are drawn and the number is rounded in rational arithmetic. So nothing depends on how fine the
lattice is, and what remains of the sampler's imperfection is charged (`canal.privacy.precision`).
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
from canal.privacy.ziggurat import UNCERTAINTY, standard_normal

Storage = Literal["int16", "int32"]
STORAGES: dict[str, int] = {"int16": 2**15 - 1, "int32": 2**31 - 1}
# Noise beyond ten sigma has probability 2e-23 a draw; it is then saturated, never wrapped.
TAIL_SIGMAS = 10.0
# Finer than any noise that protects, coarse enough that sums over thousands of images fit 32 bits.
FINEST_STEP = 2.0**-16
# How far the double std * g may be from the exact product, in units of std: the double's own
# uncertainty and the rounding of the multiplication.
_DOUBT = 2 * UNCERTAINTY
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

    @classmethod
    def finest(cls, bound: float, sigma: ArrayLike) -> Lattice:
        r"""The finest lattice, down to $2^{-16}$, on which sum and noise fit 32 bits.

        Args:
            bound: the largest magnitude of the noiseless sum; public.
            sigma: standard deviations of the noise, 0 for none; public or already released.

        >>> Lattice.finest(3.0, 2.5), Lattice.finest(3.0, 1e6)
        (Lattice(step=1.52587890625e-05), Lattice(step=0.0078125))
        """
        needed = (bound + TAIL_SIGMAS * float(np.max(sigma))) * (1 + 2.0**-40)
        return cls(max(FINEST_STEP, 2.0 ** math.ceil(math.log2(needed / STORAGES["int32"]))))

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
        if not np.issubdtype(integers.dtype, np.signedinteger):
            raise InvalidValueError(f"the sum must be signed integers, not {integers.dtype}")
        self.check(bound, sigma, storage)
        stds = _stds(sigma) / self.step
        noisy = rounded_gaussian(stds, integers.shape, stream)
        noisy += integers
        limit = STORAGES[storage]
        return np.clip(noisy, -limit, limit).astype(storage)


def fitting_shift(magnitude: ArrayLike, storage: Storage = "int16") -> NDArray[np.int64]:
    """How many halvings make integers of these magnitudes fit a storage type.

    Args:
        magnitude: the largest that is expected, in lattice steps; public.
        storage: integer type to fit.

    >>> fitting_shift([100.0, 32767.0, 32768.0, 1e6])
    array([0, 0, 1, 5])
    """
    halvings = np.ceil(np.log2(np.asarray(magnitude, dtype=np.float64) / STORAGES[storage]))
    return np.maximum(halvings, 0).astype(np.int64)


def coarsen(
    noisy: ArrayLike, shift: ArrayLike, storage: Storage = "int16"
) -> NDArray[np.signedinteger]:
    """Keep noisy integers to the nearest multiple of 2^shift, in units of that: post-processing.

    Noise comes first, so nothing is lost that it had not blurred already; a value that does not
    fit is saturated, never wrapped.

    >>> coarsen([1000, -1001, 10**9], shift=2)
    array([  250,  -250, 32767], dtype=int16)
    """
    limit, units = STORAGES[storage], np.asarray(noisy)
    if np.any(shift):
        units = np.rint(np.ldexp(units.astype(np.float64), -np.asarray(shift)))
    stored: NDArray[np.signedinteger] = np.clip(units, -limit, limit).astype(storage)
    return stored


def rounded_gaussian(std: ArrayLike, shape: tuple[int, ...], stream: Stream) -> Integers:
    r"""Integers distributed as $\mathrm{round}(\mathcal N(0, \mathrm{std}^2))$.

    Args:
        std: in lattice steps, above 0 and at most $2^{40}$; broadcast to the shape.
        shape: of the result.
        stream: random words; the same stream gives the same integers.

    >>> from canal.privacy import Secret
    >>> stream = Stream(Secret.seeded(7).key(b"docs"))
    >>> rounded_gaussian(1000.0, (4,), stream)
    array([ 595, -850,  308, -554])
    """
    stds = _stds(std)
    if stds.max() > 2.0**40:
        raise LatticeOverflowError(
            f"std = {float(stds.max()):.4g} lattice steps is more than 2**40; take a coarser one"
        )
    try:
        spread = np.broadcast_to(stds, stds.shape if stds.size == 1 else shape).reshape(-1)
    except ValueError as error:
        raise InvalidValueError(
            f"noise levels of shape {stds.shape} do not fit values of shape {shape}"
        ) from error
    normal = standard_normal(stream, math.prod(shape))
    result = np.empty(normal.values.size, dtype=np.int64)
    doubtful: list[int] = []
    for start in range(0, result.size, _BLOCK):  # blocks stay in the cache
        part = slice(start, start + _BLOCK)
        std_here = spread if spread.size == 1 else spread[part]
        scaled = normal.values[part] * std_here
        integers = np.rint(scaled)
        result[part] = integers
        distance = np.abs(np.subtract(scaled, integers, out=scaled), out=scaled)
        doubtful += (np.flatnonzero(distance > 0.5 - std_here * _DOUBT) + start).tolist()
    for index, word in zip(doubtful, stream.words(len(doubtful)).tolist(), strict=True):
        exact = Fraction(float(spread[index % spread.size])) * normal.exact(index, word)
        result[index] = round(exact)
    return result.reshape(shape)


def _stds(sigma: ArrayLike) -> NDArray[np.float64]:
    stds = np.asarray(sigma, dtype=np.float64)
    if stds.size == 0 or not np.isfinite(stds).all() or not (stds > 0).all():
        raise InvalidValueError(
            "every noise standard deviation must be above 0 and finite; a channel of infinite "
            "sigma is not released, so leave it out"
        )
    return stds
