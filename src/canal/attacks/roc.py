r"""How well an attack does: ROC, its area, what a guarantee allows, and the file of a finding.

A release that is $\mu$-Gaussian-DP allows no test, of whatever kind, to find a share above
$\Phi(\Phi^{-1}(\mathrm{FPR}) + \mu)$ of the members at this rate of false alarms (Dong, Roth and Su
2022). An attack above that curve, by more than chance, is a bug in the release.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError
from canal.features.statistics import Statistics
from canal.features.store import Release
from canal.files import replace_file
from canal.privacy.units import Unit
from canal.release.digits import upwards

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


FORMAT = "canal-attack/2"
RATES = (0.01, 0.001)
WHOM: dict[Unit, str] = {
    "image": "a person whose query images are all taken together",
    "patient": "a patient of a training cohort, over all queries",
    "membership": "a patient of a training cohort, over all rounds",
    "paper": "nobody in particular",
}
# The area without noise from which on an attack says something about the noise.
STRONG = 0.8
NOTHING = "This attack got nothing; the guarantee, not the attack, is the evidence."
# A bug is not cried at one in forty.
_SURE = 0.999


@dataclass(frozen=True)
class Finding:
    r"""One attack on one release.

    Args:
        attack: what was attempted.
        release: digest of the manifest.
        roc: how well it went.
        unit: whose membership it was about.
        mu: of the Gaussian trade-off that the noise allows for this unit; None if there was none.
        baseline: what a plain attack got on the same evidence, by its name.
        control: the same attack where there is no noise: what it could find at best.
        interval: of the area, at 95 %, where scores are not independent; else it follows from them.
        individual: whether it is about the very patients of a cohort: how many they are, and what
            is found of them without noise, is for the hospital alone (`canal.attacks.individual`).
    """

    attack: str
    release: str
    roc: Roc
    unit: Unit
    mu: float | None
    baseline: tuple[str, Roc] | None = None
    control: Played | None = None
    interval: tuple[float, float] | None = None
    individual: bool = False

    @property
    def auc_interval(self) -> tuple[float, float]:
        """Of the area, at 95 %."""
        return self.roc.auc_interval if self.interval is None else self.interval

    @property
    def like_chance(self) -> bool:
        """Whether guessing explains it."""
        low, high = self.auc_interval
        return low <= 0.5 <= high and (self.interval is not None or self.roc.is_like_chance())

    def words(self) -> list[str]:
        """What it means, in sentences."""
        low, high = self.auc_interval
        said = [
            f"The attack tells {len(self.roc.members)} members from {len(self.roc.others)} others "
            f"with an AUC of {self.roc.auc:.3f} (95 % interval {low:.3f} to {high:.3f}); 0.5 is a "
            "coin, 1 is certainty."
        ]
        if self.baseline is not None:
            name, plain = self.baseline
            said.append(f"The {name} has {plain.auc:.3f} on the same evidence.")
        if self.control is not None:
            said.append(_of_control(self.control))
        if self.like_chance:
            said.append(NOTHING)
        if self.mu is None:
            said.append("There is no noise that would limit it.")
            return said
        said.append(
            f"The noise on the features allows no attack an AUC above {_up(allowed_auc(self.mu))}, "
            f"or more than {_up(100 * allowed_tpr(RATES[0], self.mu))} % found at 1 % false "
            f"alarms; that is for {WHOM[self.unit]}."
        )
        if self._is_above(self.mu):
            said.append(
                "The attack is above that. Either the others are of another kind than the members, "
                "or the release has a bug: do not hand it out before you know which."
            )
        return said

    def _is_above(self, mu: float) -> bool:
        """By area, or by members found at few false alarms; at one in a thousand each."""
        if self.interval is not None:
            # Scores that are not independent: three standard errors, of the area alone.
            wide = (self.roc.auc - self.interval[0]) / 1.96 * 3.29
            return self.roc.auc - wide > allowed_auc(mu)
        if self.roc.interval(_SURE)[0] > allowed_auc(mu):
            return True
        return any(
            self.roc.surely_found(rate, _SURE) > allowed_tpr(self.roc.most_alarms(rate, _SURE), mu)
            for rate in RATES
            if rate * len(self.roc.others) >= 1
        )

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "format": FORMAT,
            "attack": self.attack,
            "release": self.release,
            "members": len(self.roc.members),
            "others": len(self.roc.others),
            "auc": self.roc.auc,
            "auc_interval": list(self.auc_interval),
            # A rate that is less than one of the others cannot be seen.
            "tpr": {
                f"{rate:g}": self.roc.tpr(rate)
                for rate in RATES
                if rate * len(self.roc.others) >= 1
            },
            "tpr_interval": {
                f"{rate:g}": list(self.roc.tpr_interval(rate))
                for rate in RATES
                if rate * len(self.roc.others) >= 1
            },
            "control": None if self.control is None else _control(self.control),
            "like_chance": self.like_chance,
            "roc": [list(point) for point in self.roc.points()],
            "allowed": None if self.mu is None else {"unit": self.unit, "mu": self.mu},
            "baseline": None if self.baseline is None else _plain(*self.baseline),
            "words": self.words(),
        }

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(self.to_json(), indent=1) + "\n").encode())


def _plain(name: str, roc: Roc) -> dict[str, Any]:
    return {"attack": name, "auc": roc.auc, "auc_interval": list(roc.auc_interval)}


def _of_control(control: Played) -> str:
    """What the attack can do at all."""
    area, (low, high) = control.roc.auc, control.auc_interval
    measured = f"{area:.3f} (95 % interval {low:.3f} to {high:.3f})"
    if low <= 0.5:
        return (
            f"The attack shows nothing: even without noise its AUC is {measured}. Take canaries, "
            "or more shadows."
        )
    if area < STRONG:
        return (
            f"The attack is weak: even without noise its AUC is only {measured}. Take more "
            "shadows, or canaries that are less like other patients."
        )
    return f"Without noise the same attack has an AUC of {measured}."


def _control(control: Played) -> dict[str, Any]:
    return {"auc": control.roc.auc, "auc_interval": list(control.auc_interval)}


def features_mu(release: Release, unit: Unit) -> float | None:
    r"""The $\mu$ of the released features alone for a unit; None without noise.

    What caps and importance give away is not in it, whether they have noise or were read in the
    clear. An attack on features knows both, since they are published, to scale what it sees; it
    does not look in them for who was there, and is held against the features alone.
    """
    if release.plan.allocation == "none":
        return None
    statistics = Statistics.from_json(release.manifest.statistics)
    promise = release.plan.calibrate(statistics.weights(release.plan)).guarantee
    rho = math.fsum(event.rho(unit) for event in promise.events if event.name == "features")
    return math.sqrt(2 * rho)


def _up(bound: float) -> str:
    """What is allowed, to three digits, never less than it is."""
    return f"{upwards(bound, 3):g}"
