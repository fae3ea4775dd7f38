"""The outcome of one game: two lower bounds on epsilon beside what the accounting states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from canal.attacks.bounds import counted_epsilon, gaussian_mu, normality
from canal.attacks.game import Game, Scores
from canal.privacy.gaussian import epsilon_from_rho
from canal.privacy.units import Unit
from canal.release.digits import downwards, finite_or_none, number, upwards

CONFIDENCE = 0.95
# A bound of 95 % is above a claim that is exactly true in one run out of twenty; an alarm is not.
ALARM = 1e-6


@dataclass(frozen=True)
class Outcome:
    r"""One game.

    Args:
        unit: whose neighbours were told apart.
        neighbours: what they differ by.
        what: was drawn.
        times: what is published again and again, queries or rounds.
        drawn: of those that the unit takes part in, how many.
        among: in how many it takes part.
        delta: of every epsilon here.
        draws: in each world.
        claimed_mu: what the accounting states for exactly what was drawn.
        gaussian_mu: 95 % lower bound.
        counted_epsilon: 95 % lower bound, by Clopper and Pearson.
        normality: p-value of what the Gaussian bound assumes.
        sure_epsilon: the larger of both bounds, each at a false-alarm rate of 1e-6.
        refuted: whether a bound is above the claim at that rate.
        part: whether it is one part of what another outcome is about.
        composes: whether all that was drawn is published again and again.
    """

    unit: Unit
    neighbours: str
    what: str
    times: str
    drawn: int
    among: int
    delta: float
    draws: int
    claimed_mu: float
    gaussian_mu: float
    counted_epsilon: float
    normality: float
    sure_epsilon: float
    refuted: bool
    part: bool = False
    composes: bool = False

    @classmethod
    def of(
        cls, game: Game, scores: Scores, claimed_mu: float, *, what: str, part: bool = False
    ) -> Outcome:
        """Of the scores of a game."""
        delta = game.delta
        sure = 1 - ALARM
        sure_mu = gaussian_mu(*scores, confidence=sure)
        sure_counted = counted_epsilon(*scores, delta, confidence=sure)
        refuted = sure_mu > claimed_mu or sure_counted > exact_epsilon(claimed_mu, delta)
        return cls(
            game.unit,
            game.neighbours,
            what,
            game.times,
            game.drawn,
            game.among,
            delta,
            len(scores[0]),
            claimed_mu,
            gaussian_mu(*scores, confidence=CONFIDENCE),
            counted_epsilon(*scores, delta, confidence=CONFIDENCE),
            normality(*scores),
            max(exact_epsilon(sure_mu, delta), sure_counted),
            refuted,
            part,
            what == game.repeated,
        )

    @property
    def claimed_epsilon(self) -> float:
        """By the exact curve, for exactly what was drawn."""
        return exact_epsilon(self.claimed_mu, self.delta)

    @property
    def gaussian_epsilon(self) -> float:
        """The Gaussian bound as an epsilon, by the exact curve."""
        return exact_epsilon(self.gaussian_mu, self.delta)

    @property
    def reached(self) -> float:
        """The Gaussian bound as a share of the claim."""
        if math.isinf(self.claimed_epsilon):
            return float(math.isinf(self.gaussian_epsilon))
        return self.gaussian_epsilon / self.claimed_epsilon if self.claimed_epsilon else 1.0

    @property
    def composed_mu(self) -> float | None:
        r"""The Gaussian bound for all queries or rounds, $\mu\sqrt{N/Q}$; None if not known.

        Their noise is independent, which other parts of the audit look at, so that $\mu^2$ adds
        up. A statistic is published once; with one in the game, nothing follows.
        """
        if not self.composes:
            return None
        return self.gaussian_mu * math.sqrt(self.among / self.drawn)

    def words(self) -> str:
        """What was found, in a sentence or two."""
        share = "all" if self.drawn == self.among else f"{self.drawn} of"
        scope = f"{share} {self.among} {self.times}"
        what = "" if self.what == self.times else f"; {self.what}"
        said = f"{self.neighbours} ({scope}{what}): "
        if math.isinf(self.gaussian_mu):
            said += "one look tells the worlds apart, nothing varies."
        else:
            said += (
                f"told apart as epsilon {number(downwards(self.gaussian_epsilon))} allows, at "
                f"least; {number(downwards(self.counted_epsilon))} by counting alone."
            )
        if math.isinf(self.claimed_epsilon):
            return f"{said} Nothing was claimed."
        said += f" The accounting states {number(upwards(self.claimed_epsilon))} for exactly that"
        if self.refuted:
            return f"{said}: it is refuted. Do not hand this release out."
        if self.gaussian_mu > self.claimed_mu:
            return (
                f"{said}, and the bound is above, as one in twenty is by chance; at one in a "
                "million it is not, so nothing is refuted."
            )
        said += f". That is not refuted, and {100 * self.reached:.0f} % of it is reached."
        if self.drawn < self.among and self.composed_mu is not None:
            every = number(exact_epsilon(self.composed_mu, self.delta))
            said += f" Noise of {self.times} being independent, that makes {every} on all of them."
        return said

    def to_json(self) -> dict[str, Any]:
        """As plain values; null is infinite."""
        return {
            "unit": self.unit,
            "what": self.what,
            "part": self.part,
            "times": self.times,
            "drawn": self.drawn,
            "among": self.among,
            "draws": self.draws,
            "claimed": {
                "mu": finite_or_none(self.claimed_mu),
                "epsilon": finite_or_none(self.claimed_epsilon),
            },
            "gaussian": {
                "mu": finite_or_none(self.gaussian_mu),
                "epsilon": finite_or_none(self.gaussian_epsilon),
                "normality": self.normality,
            },
            "clopper_pearson": {"epsilon": self.counted_epsilon},
            "all_times": None
            if self.composed_mu is None
            else {
                "mu": finite_or_none(self.composed_mu),
                "epsilon": finite_or_none(exact_epsilon(self.composed_mu, self.delta)),
            },
            "sure_epsilon": finite_or_none(self.sure_epsilon),
            "reached": self.reached,
            "refuted": self.refuted,
            "words": self.words(),
        }


def exact_epsilon(mu: float, delta: float) -> float:
    r"""The epsilon of $\mu$ by the exact curve; infinite if it is."""
    return epsilon_from_rho(mu * mu / 2, delta) if math.isfinite(mu) else mu
