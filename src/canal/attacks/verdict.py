r"""What games prove about one unit, against what is stated of it.

Each game by itself, and each part of it, is held against what the accounting states of exactly what
was drawn (`Outcome`); everything together against every number that the folder prints (`Verdict`).

A game draws Q of the N queries (or rounds) that a unit takes part in. What it proves goes over to
all of them by three steps, each of which other checks look at:

1. *One mechanism.* Every query is published by the same function with the same sigma
   (`canal.features.verification` looks at the noise of each of them in the folder), and a
   worst-case unit moves each of them as far. So one of them has the $\mu_1$ of any other.
2. *Independence.* Every query has a stream of its own (`traces.own_noise`, `unrelated`,
   `noise_check.closest`). Gaussians that are independent are one Gaussian, so that squares add up:
   $\mu^2 = N \mu_1^2$ (Dong, Roth and Su 2022, Corollary 3.3). Rounds are chosen adaptively; their
   worst case is the same whatever was published, so the same holds.
3. *Parts.* Caps, importance and the number of patients are published once, with streams of their
   own, and moved by the same unit at the same time: their squares are added.

N is the number of rows that are in the folder, not one that a plan tells; of the images of one
person, the plan's number. The sum becomes an epsilon by SciPy's normal distribution
(`bounds.gaussian_epsilon`), which shares no code with the accounting. Nothing that `printed` finds
in the folder for this unit may be below it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.attacks.bounds import counted_epsilon, gaussian_epsilon, gaussian_mu, normality, width_mu
from canal.attacks.traces import Check
from canal.privacy.gaussian import epsilon_from_rho
from canal.privacy.units import Unit
from canal.release.digits import downwards, finite_or_none, number, upwards

if TYPE_CHECKING:
    from canal.attacks.game import Floats, Game, Played, Scores
    from canal.release.manifest import Manifest


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
            game.steps,
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
        scope = [f"{share} {self.among} {self.times}"] if self.among else []
        what = [] if self.what == self.times else [self.what]
        said = f"{self.neighbours} ({'; '.join([*scope, *what])}): "
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


# A number as sentences and cards write it.
_NUMBER = r"([0-9][0-9,]*(?:\.[0-9]+)?(?:e-?[0-9]+)?)"


@dataclass(frozen=True)
class Verdict:
    r"""What is proven of one unit, and what is stated.

    Args:
        unit: of privacy.
        neighbours: what the two worlds differ by, in words.
        times: what is published again and again, queries or rounds.
        among: how many of those that are in the folder the unit takes part in.
        drawn: how many of them were drawn.
        delta: of every epsilon here.
        mu: lower bound of everything together; false-alarm rate 1e-6.
        stated: by where it is printed, what the folder says; None for no guarantee.
    """

    unit: Unit
    neighbours: str
    times: str
    among: int
    drawn: int
    delta: float
    mu: float
    stated: Mapping[str, float | None]

    @classmethod
    def of(
        cls, game: Game, played: Played, among: int, stated: Mapping[str, float | None]
    ) -> Verdict:
        """Of what was drawn.

        Args:
            game: of the unit.
            played: what it drew.
            among: how many queries or rounds of the folder the unit takes part in.
            stated: what the folder says.
        """
        # Each part may be proven in two ways; all bounds hold together.
        sure = 1 - ALARM / (2 * len(played.parts))
        squares = []
        for name, scores in played.parts.items():
            all_of, drawn = (among, game.drawn) if name == game.repeated else (1, 1)
            by_scores = gaussian_mu(*scores, confidence=sure) * math.sqrt(all_of / drawn)
            by_width = width_mu(*_by_block(game, played, name), confidence=sure)
            seen = len(played.spread[name])
            squares.append(max(by_scores, by_width * math.sqrt(all_of / seen)) ** 2)
        mu = math.sqrt(math.fsum(squares))
        return cls(
            *(game.unit, game.neighbours, game.steps, among, game.drawn, game.delta, mu, stated)
        )

    @property
    def epsilon(self) -> float:
        """That is proven, at least."""
        return gaussian_epsilon(self.mu, self.delta)

    @property
    def promised(self) -> dict[str, float]:
        """Of what is printed, what is a promise."""
        return {where: value for where, value in self.stated.items() if value is not None}

    @property
    def refuted(self) -> tuple[str, ...]:
        """Where a number is printed that is too small."""
        return tuple(where for where, value in self.promised.items() if value < self.epsilon)

    @property
    def reached(self) -> float | None:
        """What is proven, as a share of the least that is stated; None where nothing is."""
        least = min(self.promised.values(), default=math.inf)
        return None if math.isinf(least) or not least else self.epsilon / least

    def words(self) -> str:
        """What was found, in a sentence or two."""
        proven = number(downwards(self.epsilon))
        scope = f", on all {self.among} {self.times} of this folder" if self.among else ""
        said = f"{self.neighbours}{scope}: "
        if math.isinf(self.mu):
            said += "one look tells the worlds apart, nothing varies."
            return f"{said} Nothing is promised." if not self.promised else f"{said} Refuted."
        if self.reached is None:
            return f"{said}epsilon {proven} at least; nothing is promised."
        least = number(min(self.promised.values()))
        if self.refuted:
            where = ", ".join(f"{number(self.promised[name])} in {name}" for name in self.refuted)
            return (
                f"{said}epsilon is at least {proven}, and the folder says {where}. That is "
                "refuted: do not hand this release out."
            )
        said += f"the folder says epsilon {least}, and at least {proven} is proven. "
        if self.epsilon == 0:
            return said + "Too few draws to prove anything."
        gap = 100 * (1 - self.reached)
        return (
            said + f"Not refuted; a number that is {max(gap, 0.1):.1f} % smaller would have been."
        )

    def to_json(self) -> dict[str, Any]:
        """As plain values; null is infinite, or no guarantee."""
        return {
            "unit": self.unit,
            "times": self.times,
            "among": self.among,
            "drawn": self.drawn,
            "delta": self.delta,
            "proven": {
                "mu": finite_or_none(self.mu),
                "epsilon": finite_or_none(self.epsilon),
            },
            "stated": dict(self.stated),
            "refuted": list(self.refuted),
            "false_alarm": ALARM,
            "words": self.words(),
        }


def _by_block(game: Game, played: Played, name: str) -> tuple[Floats, Floats, Floats]:
    """Distance, variance over the stated one, and draws, of every block that is moved.

    One sigma is stated for all values of a block, in all rows, and a worst-case unit moves each row
    as far. Were noise narrower in some, the mean of their variances would prove less, never more.
    """
    apart, spread = played.apart[name], played.spread[name]
    blocks = np.broadcast_to(game.moved[name].blocks, apart.shape)
    found = []
    for block in np.unique(blocks[apart != 0]):
        those = (blocks == block) & (apart != 0)
        draws = np.count_nonzero(those) * played.freedom
        found.append((float(np.linalg.norm(apart[those])), float(spread[those].mean()), draws))
    distances, ratios, freedom = np.array(found, np.float64).reshape(-1, 3).T
    return distances, ratios, freedom


def printed(
    manifest: Manifest,
    card: str,
    unit: Unit,
    times: str,
    rows: int,
    sentences: Sequence[str],
) -> dict[str, float | None]:
    """The epsilon of a unit in every place where a folder promises it, by place.

    Args:
        manifest: of the folder.
        card: the same as a page.
        unit: of privacy.
        times: `queries` or `rounds`.
        rows: how many are in the folder.
        sentences: patterns of the words before and behind an epsilon; `{}` is its place.
    """
    if not manifest.private:
        return {}
    statement, delta = manifest.statement, float(manifest.statement["delta"])
    promise = statement["guarantee"][unit]
    found = {"the guarantee": promise["epsilon"], "its exact epsilon": promise["epsilon_exact"]}
    if promise["rho"] is not None:
        found["its rho"] = _of_rho(promise["rho"], delta)
    if promise["mu"] is not None:
        found["its mu"] = gaussian_epsilon(promise["mu"], delta, upwards=True)
    for row in statement[f"epsilon_by_{times}"]:
        if row[times] == rows:
            found[f"the table by {times}"] = row[unit]
    # Names of cohorts are their own, and may look like a sentence of ours.
    cohorts = ", ".join(manifest.participants["cohorts"])
    everything = " ".join(statement["protected"]).replace(cohorts, "…")
    for pattern in sentences:
        for each in re.findall(pattern.format(_NUMBER), everything):
            found["a sentence"] = _least(found.get("a sentence"), each)
    for each in re.findall(rf'<span class="{unit}"><b>ε = {_NUMBER}</b>', card):
        found["the card"] = _least(found.get("the card"), each)
    row = (
        rf'<th scope="row">{unit}(?:<small>[^<]*</small>)?</th><td[^>]*>{_NUMBER}(?:<small>exact: '
    )
    for each in re.findall(rf"{row}{_NUMBER})?", card):
        for words in filter(None, each):
            found["the table of the card"] = _least(found.get("the table of the card"), words)
    for charge in (manifest.ledger or {}).get("charges", ()):
        if charge["unit"] == unit:
            paid = _of_rho(float(charge["rho"]), delta)
            found["a charge"] = min(paid, found.get("a charge", math.inf))
    return found


def all_read(game: Game, stated: Mapping[str, float | None]) -> Check:
    """See that what a folder must state of a unit was found there: words change.

    Args:
        game: of the unit.
        stated: what `printed` found.
    """
    what = f"stated numbers, {game.unit}"
    if stated.get("the guarantee") is None:
        return Check(what, None, "nothing is promised")
    missing = sorted({"a sentence", f"the table by {game.steps}"} - stated.keys())
    if missing:
        said = f"no epsilon was found in {' or '.join(missing)}, so it was held against nothing"
        return Check(what, False, said, folder=True)
    return Check(what, True, f"read in {len(stated)} places")


def _of_rho(rho: float, delta: float) -> float:
    return gaussian_epsilon(math.sqrt(2 * rho), delta, upwards=True)


def _least(before: float | None, words: str) -> float:
    value = float(words.replace(",", ""))
    return value if before is None else min(before, value)
