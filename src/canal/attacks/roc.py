r"""How well scores tell two groups apart: ROC, its area, and what a guarantee allows.

A release that is $\mu$-Gaussian-DP allows no test, of whatever kind, to find a share above
$\Phi(\Phi^{-1}(\mathrm{FPR}) + \mu)$ of the members at this rate of false alarms (Dong, Roth and Su
2022). An attack above that curve, by more than chance, is a bug in the release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError

_NORMAL = NormalDist()
_MOST_POINTS = 200
_RESAMPLES = 200


@dataclass(frozen=True)
class Roc:
    """Members against others, each with a score; the higher, the more likely a member.

    Args:
        members: scores, in descending order.
        others: scores, in descending order.
    """

    members: NDArray[np.float64]
    others: NDArray[np.float64]

    @classmethod
    def of(cls, members: ArrayLike, others: ArrayLike) -> Roc:
        """Take scores in any order."""
        found = []
        for name, scores in (("members", members), ("others", others)):
            ordered = -np.sort(-np.asarray(scores, dtype=np.float64).ravel())
            if not len(ordered) or np.isnan(ordered).any():
                raise InvalidValueError(f"{name} need at least one score, and none that is NaN")
            found.append(ordered)
        return cls(*found)

    @property
    def auc(self) -> float:
        """The chance that a member scores above another; ties count half.

        >>> Roc.of([3, 2], [2, 1]).auc
        0.875
        """
        ascending = self.others[::-1]
        below = np.searchsorted(ascending, self.members, "left")
        upto = np.searchsorted(ascending, self.members, "right")
        return float((below + upto).sum() / (2 * len(self.members) * len(self.others)))

    @property
    def auc_interval(self) -> tuple[float, float]:
        """A 95 % interval of the area."""
        return self.interval(0.95)

    def interval(self, level: float) -> tuple[float, float]:
        r"""An interval of the area (Newcombe 2006, method 5); sound at 0 and 1 too.

        The areas $\theta$ that $|\theta - \hat\theta| \le z\,s(\theta)$ does not rule out, with
        Hanley and McNeil's $s$ at $\theta$ rather than at the estimate.
        """
        z = _NORMAL.inv_cdf((1 + level) / 2)
        found = self.auc
        m, n = len(self.members), len(self.others)
        extra = (m + n) / 2 - 1

        def is_ruled_out(area: float) -> bool:
            spread = 1 + extra * ((1 - area) / (2 - area) + area / (1 + area))
            return (area - found) ** 2 > z**2 * area * (1 - area) * spread / (m * n)

        ends = []
        for outside in (0.0, 1.0):
            inside = found
            while abs(inside - outside) > 1e-9:
                middle = (inside + outside) / 2
                if is_ruled_out(middle):
                    outside = middle
                else:
                    inside = middle
            ends.append(inside)
        return ends[0], ends[1]

    def tpr(self, fpr: float) -> float:
        """The share of members found with at most this share of false alarms.

        >>> Roc.of([3, 2, 1], [2.5, 0, 0, 0]).tpr(0.01), Roc.of([3, 2, 1], [2.5, 0, 0, 0]).tpr(0.25)
        (0.3333333333333333, 1.0)
        """
        if not 0 <= fpr < 1:
            raise InvalidValueError(f"fpr = {fpr!r} must be at least 0 and below 1")
        # Rounded down; the smallest excess is the error of a product, not a false alarm.
        alarms = math.floor(fpr * len(self.others) + 1e-9)
        return float((self.members > self.others[alarms]).mean())

    def tpr_interval(self, fpr: float, level: float = 0.95) -> tuple[float, float]:
        """Of the share of members found there (Clopper and Pearson), as if they were independent.

        >>> [round(end, 3) for end in Roc.of([3, 2, 1], [2.5, 0, 0, 0]).tpr_interval(0.01)]
        [0.008, 0.906]
        """
        count, half = len(self.members), (1 - level) / 2
        found = round(self.tpr(fpr) * count)
        low = _beta(half, found, count - found + 1) if found else 0.0
        return low, _beta(1 - half, found + 1, count - found) if found < count else 1.0

    def surely_found(self, fpr: float, level: float) -> float:
        """The least share of members that is found there, at this level (Clopper and Pearson)."""
        found = round(self.tpr(fpr) * len(self.members))
        return _beta(1 - level, found, len(self.members) - found + 1) if found else 0.0

    def most_alarms(self, fpr: float, level: float) -> float:
        """The most false alarms that such a threshold may really have, at this level."""
        alarms = math.floor(fpr * len(self.others) + 1e-9)
        return _beta(level, alarms + 1, len(self.others) - alarms)

    def is_like_chance(self, fpr: float = 0.01) -> bool:
        """Whether guessing explains it: the area, and the few that stand out, at 95 % each.

        An attack that is sure of a few members and knows nothing of the others has an area near
        0.5. So those above all but this share of the others are looked at too: were members and
        others alike, how often would as many of them be members (Fisher's exact test)?
        """
        low, high = self.auc_interval
        if not low <= 0.5 <= high:
            return False
        m, n = len(self.members), len(self.others)
        alarms = math.floor(fpr * n + 1e-9)
        found = int((self.members > self.others[alarms]).sum())
        chosen = found + alarms
        ways = sum(
            math.comb(m, k) * math.comb(n, chosen - k) for k in range(found, min(m, chosen) + 1)
        )
        return ways / math.comb(m + n, chosen) > 0.05

    def points(self) -> list[tuple[float, float]]:
        """The curve as (FPR, TPR), from (0, ·) to (1, 1); thinned where there are very many."""
        alarms = np.unique(
            np.r_[0, np.geomspace(1, len(self.others), _MOST_POINTS).round()].astype(int)
        )
        n = len(self.others)
        return [(a / n, self.tpr(a / n) if a < n else 1.0) for a in alarms.tolist()]


@dataclass(frozen=True)
class Played:
    """One attack in many runs, each of which has members of its own.

    Args:
        scores: of every patient in every run, `[R, P]`.
        members: who was a member, `[R, P]`.
        by_chance: areas of the same attack on the same evidence, had the members been drawn
            otherwise: what there is to see of nobody in particular. None where runs are scored
            without each other.
        paired: whether runs half the list apart are complements, and count as one.
    """

    scores: NDArray[np.float64]
    members: NDArray[np.bool_]
    by_chance: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    paired: bool = False

    @cached_property
    def roc(self) -> Roc:
        """Members of all runs against those who were not in them."""
        return Roc.of(self.scores[self.members], self.scores[~self.members])

    @cached_property
    def auc_interval(self) -> tuple[float, float]:
        """Of the area, at 95 %, for these patients; the widest that three ways of looking give.

        Runs are drawn again (bootstrap), since the patients of one run share its chance. Shadows
        are scored by each other, so members are drawn again as well. And no interval is narrower
        than that of independent scores, which is sound at 0 and 1 too.
        """
        rng, count = np.random.default_rng(0), len(self.scores)
        runs = np.arange(count // 2 if self.paired else count)
        areas = []
        for _ in range(_RESAMPLES):
            rows = rng.choice(runs, len(runs))
            rows = np.concatenate([rows, rows + count // 2]) if self.paired else rows
            chosen, scores = self.members[rows], self.scores[rows]
            if chosen.any() and not chosen.all():
                areas.append(Roc.of(scores[chosen], scores[~chosen]).auc)
        low, high = self.roc.auc_interval
        area, spread = self.roc.auc, float(np.std(areas)) if areas else 0.0
        if len(self.by_chance):
            # By chance the area is about 1/2; where it is another, it varies less.
            spread = max(spread, 2 * math.sqrt(area * (1 - area)) * float(self.by_chance.std()))
        wide = 1.96 * spread
        return max(0.0, min(low, area - wide)), min(1.0, max(high, area + wide))

    @property
    def p(self) -> float:
        """How often chance alone does as well: exact, whatever the features."""
        better = int((self.by_chance >= self.roc.auc).sum())
        return (1 + better) / (1 + len(self.by_chance))


def _beta(probability: float, a: float, b: float) -> float:
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    return float(betaincinv(a, b, probability))


def allowed_tpr(fpr: float, mu: float) -> float:
    r"""The largest share of members that a $\mu$-Gaussian-DP release lets anyone find.

    >>> round(allowed_tpr(0.01, 1.0), 4), allowed_tpr(0.01, 0.0)
    (0.0924, 0.01)
    """
    if fpr <= 0 or fpr >= 1:
        return float(fpr > 0)
    return fpr if mu == 0 else _NORMAL.cdf(_NORMAL.inv_cdf(fpr) + mu)


def allowed_auc(mu: float) -> float:
    r"""The largest area under any such attack's curve, $\Phi(\mu/\sqrt 2)$."""
    return _NORMAL.cdf(mu / math.sqrt(2))
