r"""Whether the noise in a folder is as wide as stated, seen without teachers and without a secret.

A published value over its stated deviation is $z = s + g$: g is standard normal noise, and s is the
signal, which does not depend on this noise. For k such values $\lVert z \rVert^2$ is noncentral
chi-square. It is stochastically larger the longer s is, so that

*   its lower tail is bounded by that of the central one, $\chi^2_k$, whatever the signal is: a sum
    of squares below it means noise that is too narrow, and never an odd signal;
*   where s has length R at most, its upper tail is bounded as well. Along s the noise is one
    standard normal Z and k - 1 others are left, so that the sum exceeds $a + (R + b)^2$ no more
    often than $\chi^2_{k-1} > a$ or $Z > b$.

Both hold for any part of the values, and for any projection that is fixed before this noise is
drawn. Each row is also looked at *without the direction that the other rows have in common*, which
takes most of the signal away and one degree of freedom; of rounds, only earlier rounds count, since
later ones know this round's noise.

Rounding to the lattice and to storage moves no value by more than half a unit of each, so a norm by
no more than $\sqrt k$ times that; bounds are widened by this much. Where noise is narrower than a
unit of storage, nothing can be seen, and nothing is claimed.

A value without noise is often exactly zero, and with noise hardly ever: an interval of width w has
probability $w / \sqrt{2 \pi} \sigma$ at most, wherever the signal lies. Zeros are counted against
the binomial distribution.

The rates of all looks add up to `ALARM` (Bonferroni); tails are exact (incomplete gamma and beta
functions).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import ReleaseError

Floats = NDArray[np.float64]
# How often noise that is right is found fault with, of one folder, in all looks together.
ALARM = 1e-9
# How surely a fault is seen that is said to be seen.
POWER = 0.95
# Values of a row that are compared with those of other rows; enough to see noise that is the same.
COMPARED = 4096
_BLOCK = 512
# Noise of this share of its deviation is an example in what is said.
_TYPICAL = 0.7


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of squares of published values over their stated deviation, of one size.

    Args:
        name: of the sum at an index, in words.
        energy: the sums, in any shape.
        freedom: k, how many values each of them has.
        slack: the most that rounding moves a value, over its deviation; broadcast to the shape.
        reach: R, the longest that the signal can be; None where nobody knows.
    """

    name: Callable[[tuple[int, ...]], str]
    energy: Floats
    freedom: int
    slack: Any = 0.0
    reach: Any = None

    def lower(self, alarm: float) -> Floats:
        """Sums of noise that is right are below these in one look with this rate, at most."""
        from scipy.special import gammaincinv  # type: ignore[import-untyped]

        norm = math.sqrt(2 * float(gammaincinv(self.freedom / 2, alarm)))
        room = np.maximum(norm - math.sqrt(self.freedom) * np.asarray(self.slack), 0.0)
        return np.square(room)

    def upper(self, alarm: float) -> Floats:
        """Sums of noise that is right are above these in one look with this rate, at most."""
        from scipy.special import gammainccinv, ndtri

        if self.reach is None:
            return np.full(1, np.inf)
        rest = 2 * float(gammainccinv((self.freedom - 1) / 2, alarm / 2)) if self.freedom > 1 else 0
        # (Z + R)² is beyond (R + b)² where Z > b or Z < -2 R - b: twice the tail of b, at most.
        along = np.asarray(self.reach) - float(ndtri(alarm / 4))
        norm = np.sqrt(rest + np.square(along))
        return np.square(norm + math.sqrt(self.freedom) * np.asarray(self.slack))

    @property
    def signal(self) -> float:
        """Squared length of the signal in a typical sum, as far as the sums themselves tell."""
        typical = max(0.0, float(np.median(self.energy)) - self.freedom)
        return typical if self.reach is None else min(typical, float(np.max(self.reach)) ** 2)

    def chance(self, ratio: float, alarm: float) -> float:
        """How surely a typical sum is found whose noise has this share of its deviation.

        Args:
            ratio: of the deviation to the stated one.
            alarm: of one look.
        """
        from scipy.special import gammainc

        # Patnaik: a noncentral chi-square is nearly a multiple of a central one, in the middle.
        far = self.signal / ratio**2
        stretch = (self.freedom + 2 * far) / (self.freedom + far)
        freedom = (self.freedom + far) ** 2 / (self.freedom + 2 * far)
        least = float(np.median(self.lower(alarm)))
        return float(gammainc(freedom / 2, least / ratio**2 / stretch / 2))

    def seen(self, alarm: float) -> float:
        """The largest share of its deviation at which a sum is found with `POWER`; 0 for none."""
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.chance(middle, alarm) >= POWER else (low, middle)
        return low

    def check(self, alarm: float) -> None:
        """Refuse a sum that is too small or too large.

        Args:
            alarm: how often noise that is right is refused, at most.
        """
        one = alarm / self.energy.size / (1 if self.reach is None else 2)
        for side, wrong in (
            ("less than its noise alone would", ~(self.energy >= self.lower(one))),
            ("more than its noise and any signal would", ~(self.energy <= self.upper(one))),
        ):
            if wrong.any():
                at = tuple(int(index) for index in np.unravel_index(wrong.argmax(), wrong.shape))
                width = math.sqrt(max(0.0, float(self.energy[at])) / self.freedom)
                raise ReleaseError(
                    f"{self.name(at)} varies {side}: {width:.3g} times the stated deviation"
                )


@dataclass(frozen=True, eq=False)
class Zeros:
    """How many published values are exactly zero.

    Args:
        name: of the count at an index, in words.
        count: in any shape.
        values: of how many each.
        width: of the interval that becomes zero, over the deviation; broadcast to the shape.
    """

    name: Callable[[tuple[int, ...]], str]
    count: NDArray[np.int64]
    values: int
    width: Any

    def check(self, alarm: float) -> None:
        """Refuse more zeros than noise leaves."""
        from scipy.special import betainc

        chance = np.asarray(self.width) / math.sqrt(2 * math.pi)
        count = self.count
        tail = betainc(np.maximum(count, 1), self.values - count + 1.0, np.minimum(chance, 1.0))
        wrong = (count > 0) & (tail < alarm / count.size)
        if wrong.any():
            at = tuple(int(index) for index in np.unravel_index(wrong.argmax(), wrong.shape))
            raise ReleaseError(
                f"{self.name(at)} has {int(count[at])} zeros among {self.values} values, more than "
                "noise leaves"
            )


def check_widths(
    looks: Sequence[Sums | Zeros], stated: Mapping[str, Sequence[Sums]], alarm: float
) -> str:
    """See that noise is as wide as stated, in every look; say what would have been seen.

    Args:
        looks: all of them.
        stated: what to say the power of: what it is called, and the looks that see it.
        alarm: how often noise that is right is refused, in all looks together.
    """
    each = alarm / len(looks)
    for look in looks:
        look.check(each)
    looked = sum(np.size(look.energy if isinstance(look, Sums) else look.count) for look in looks)
    powers = "; ".join(f"{what} {_power(sums, each)}" for what, sums in stated.items())
    return (
        f"as wide as stated in {looked} places, false alarms {alarm:g} in all; seen with "
        f"probability {POWER:g}: {powers}"
    )


def _power(looks: Sequence[Sums], alarm: float) -> str:
    """What the best of these looks sees, in words; `alarm` is the rate of one family."""
    best = max(looks, key=lambda look: look.seen(_one(look, alarm)))
    ratio = best.seen(_one(best, alarm))
    if ratio < 0.01:
        return "at no deviation, for it has too few values or too little noise"
    at = math.floor(1000 * best.chance(_TYPICAL, _one(best, alarm))) / 1000
    return (
        f"at {math.floor(100 * ratio) / 100:.2f} of its deviation or less (at {_TYPICAL:g} with "
        f"probability {at:g})"
    )


def _one(sums: Sums, alarm: float) -> float:
    """The rate of one look into sums of a family with this rate."""
    return alarm / sums.energy.size / (1 if sums.reach is None else 2)


def without_direction(values: Floats, common: Floats) -> Floats:
    """Sums of squares over the last axis, without what lies along a direction.

    Args:
        values: `[..., k]`.
        common: of the same shape; zero where there is no direction.
    """
    length = np.square(common).sum(axis=-1)
    along = np.square((values * common).sum(axis=-1))
    whole = np.square(values).sum(axis=-1)
    return np.asarray(whole - np.divide(along, length, out=np.zeros_like(along), where=length > 0))


@dataclass(frozen=True)
class Closest:
    """The two rows whose noise is most alike.

    Args:
        pair: which they are.
        energy: of what is left when one is taken off the other, or added to it.
        least: that independent noise leaves; 0 where there are too few values to tell.
        pairs: that were looked at.
    """

    pair: tuple[int, int]
    energy: float
    least: float
    pairs: int

    @property
    def passed(self) -> bool | None:
        """None where there are too few values to tell."""
        return self.energy >= self.least if self.least else None


def closest(rows: Floats, alarm: float = ALARM, *, later_know: bool = False) -> Closest:
    r"""Find the two rows whose noise is most alike, or most alike with the other sign.

    $\lVert z_i \pm z_j \rVert^2 / 2$ of two rows with noise of their own is chi-square or, since
    signal can only add, more. Noise that was used for both would cancel. Where a later row's signal
    may depend on an earlier one's noise, only the later one's noise is sure to be left: the sum of
    squares is then compared without the factor of 2.

    Args:
        rows: `[n, values]`, over the deviation of the noise.
        alarm: how often independent noise is found to be alike.
        later_know: whether the signal of a row may depend on earlier rows.
    """
    from scipy.special import gammaincinv

    pairs = len(rows) * (len(rows) - 1) // 2
    if not pairs:
        return Closest((0, 0), math.inf, 0.0, 0)
    width = rows.shape[1]
    least = 2 * float(gammaincinv(width / 2, alarm / (2 * pairs)))
    # What is left by chance must be far above the rounding of the numbers themselves.
    if least < 1e-3 * width:
        return Closest((0, 0), math.inf, 0.0, pairs)
    squares, found, where = np.square(rows).sum(axis=1), math.inf, (0, 0)
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        between = squares[part, None] + squares - 2 * np.abs(rows[part] @ rows.T)
        between[np.tril_indices(len(between), start, len(rows))] = math.inf
        row, other = np.unravel_index(int(between.argmin()), between.shape)
        if between[row, other] < found:
            found, where = float(between[row, other]), (start + int(row), int(other))
    return Closest(where, found / (1 if later_know else 2), least, pairs)


@dataclass(frozen=True, eq=False)
class Alike:
    """Rows that should have noise of their own, each.

    Args:
        what: they are, in plural.
        rows: `[n, values]`, over the deviation of the noise.
        name: of a row.
        later_know: whether the signal of a row may depend on earlier rows.
    """

    what: str
    rows: Floats
    name: Callable[[int], str]
    later_know: bool = False


def check_unlike(found: Alike, alarm: float) -> str:
    """See that no two rows have the same noise, or the same with the other sign.

    Args:
        found: the rows.
        alarm: how often independent noise is refused, at most.
    """
    most = closest(found.rows, alarm, later_know=found.later_know)
    if most.passed is False:
        one, other = map(found.name, most.pair)
        raise ReleaseError(
            f"{one} and {other} are closer than noise of their own leaves them: it was used twice, "
            "or is too narrow"
        )
    return f"{most.pairs} pairs" if most.passed else f"{most.pairs} pairs, too few values to tell"


def some(count: int) -> NDArray[np.int64]:
    """Which of so many values to compare between rows: all, or some all over the row."""
    return np.unique(np.linspace(0, count - 1, min(count, COMPARED)).astype(np.int64))
