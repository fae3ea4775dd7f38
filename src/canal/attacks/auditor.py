r"""The auditor: is the epsilon that a release states refuted by what the code of a release does?

For every unit a game is played with worst-case neighbours (`canal.attacks.game`), and two 95 %
lower bounds on epsilon are held against the accounting (`canal.attacks.bounds`). A lower bound
proves harm, never safety: it can refute the statement, and when it comes close to it, shows that
the statement is no exaggeration either. The code that is played is today's, not that which made the
folder; what the folder itself shows is looked at as well (`canal.attacks.traces`), and with its
teachers all of its noise (`canal.attacks.residue`).

A bound of 95 % is above a claim that is exactly true in one run out of twenty. Alarm is therefore
raised at a false-alarm rate of 1e-6 for each bound, while the numbers in the tables are the usual
95 %.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from canal.attacks.audit import Audit
from canal.attacks.game import FEATURES, Game, Played, Progress, play_rows
from canal.attacks.hostile import AUDITED, Audited
from canal.attacks.outcome import ALARM, Outcome
from canal.attacks.seeds import DRAWN, SEEDS, find_seed, repeated_secrets
from canal.attacks.traces import (
    Check,
    different_noise,
    distances,
    noise_is_wide,
    on_lattice,
    own_noise,
    unrelated,
    whole_numbers,
)
from canal.errors import InvalidValueError
from canal.privacy.randomness import Secret
from canal.release.mechanism import Mechanism
from canal.release.statistics import Statistics
from canal.release.store import Release
from canal.release.verification import check_statement

Secrets = Callable[[str], Secret]

DRAWS = 100_000
# Noise values that one game may take; about ten seconds on two cores.
VALUES = 4e8
_FEWEST_DRAWS = 1000
_PER_PAIR = 20
# A row with a key of its own takes as long as this many values at once.
_SINGLE = 3000
_SEEDED = (
    "the noise came from a seed, so there is no secret to find; whoever knows the seed, or tries "
    "all small ones, takes all of it off"
)


@dataclass(frozen=True)
class Auditor:
    """What is to be done for one release; it knows how much that is before it begins.

    Args:
        release: any, private or not.
        draws: in each world of each game.
        units: whose neighbours to try.
        secrets: makes the secret of a part of the audit, by its name; the operating system's, as
            the aggregator does, if not given.
        seeds: how many to try in place of the secret.
        values: noise values that one game may take.
    """

    release: Release
    draws: int = DRAWS
    units: Sequence[Audited] = AUDITED
    secrets: Secrets | None = None
    seeds: int = SEEDS
    values: float = VALUES

    def __post_init__(self) -> None:
        if self.draws < _FEWEST_DRAWS:
            raise InvalidValueError(
                f"draws = {self.draws!r} must be at least {_FEWEST_DRAWS}; fewer prove nothing"
            )

    @cached_property
    def games(self) -> list[Game]:
        """One a unit; a statement that does not follow from the plan is refused here."""
        calibrated = check_statement(self.release.manifest)
        statistics = Statistics.from_json(self.release.manifest.statistics)
        mechanism = Mechanism.of(calibrated, statistics)
        values = self.values if self._noisy else 0.0
        return [Game.within(mechanism, unit, self._draws, values) for unit in self.units]

    @cached_property
    def pair(self) -> Game:
        """That of two queries, row by row; of one, where there are no two."""
        mechanism = self.games[0].mechanism
        return Game(mechanism, "patient", min(2, self.release.plan.participants.queries))

    @property
    def work(self) -> int:
        """How much progress will be told in all: noise values, or what takes as long."""
        drawn = sum(game.values * self._draws for game in self.games)
        rows = 4 * self._pairs if self._noisy else 0
        return drawn + _SINGLE * (rows + (self.seeds if self._secret else 0))

    def run(self, progress: Progress = lambda count: None) -> Audit:
        """Play every game and make every check."""
        with tempfile.TemporaryDirectory(prefix="canal-audit-") as name:
            folder = Path(name)
            secret: Secrets = self.secrets or (
                lambda part: Secret.create(folder / f"secret-{part}")
            )
            outcomes: list[Outcome] = []
            checks: list[Check] = []
            for game in self.games:
                played = game.play(self._draws, secret(game.unit), folder, progress)
                outcomes += judge(game, played)
                checks.append(distances(game))
                if self._noisy:
                    checks.append(noise_is_wide(played, f"width of the noise, {game.unit}"))
            if self._noisy and self.pair.queries == 2:
                secrets = secret("rows-0"), secret("rows-1")
                scores, stored = play_rows(
                    self.pair, self._pairs, secrets, folder, lambda count: progress(_SINGLE * count)
                )
                claimed = self.pair.claimed[FEATURES]
                what = f"{FEATURES}, row by row as the aggregator makes them"
                outcomes.append(Outcome.of(self.pair, scores, claimed, what=what))
                checks += [check(self.pair.mechanism, stored) for check in (own_noise, unrelated)]
            checks += [
                _normal(outcomes, noisy=self._noisy),
                whole_numbers(self.games[0], secret("lattice")),
                on_lattice(self.release, self.games[0].mechanism.calibrated),
                different_noise(self.release),
            ]
            if self._secret:
                checks.append(_birthdays(folder))
                checks.append(self._enumerate(secret("seeds"), progress))
            elif self._noisy:
                checks.append(Check("secret", None, _SEEDED, folder=True))
        plan, promise = self.release.plan, self.games[0].mechanism.calibrated.guarantee
        return Audit(
            self.release.manifest.digest,
            self.release.manifest.software,
            str(self.release.statement["stamp"]),
            {
                "patient": promise.epsilon(plan.delta, "patient"),
                "image": promise.epsilon(plan.delta, "image"),
                "paper": promise.epsilon(plan.delta, "paper", plan.conversion),
            },
            plan.delta,
            tuple(outcomes),
            tuple(checks),
        )

    @property
    def _noisy(self) -> bool:
        return self.release.plan.allocation != "none"

    @property
    def _secret(self) -> bool:
        """Whether a secret is behind the noise; a research run has a seed in its place."""
        return self._noisy and self.release.private

    @property
    def _draws(self) -> int:
        """Where nothing varies, a few are as good as many."""
        return self.draws if self._noisy else _FEWEST_DRAWS

    @property
    def _pairs(self) -> int:
        return max(_FEWEST_DRAWS, self.draws // _PER_PAIR)

    def _enumerate(self, secret: Secret, progress: Progress) -> Check:
        seed = find_seed(
            self.games[0].mechanism,
            secret,
            seeds=self.seeds,
            progress=lambda count: progress(_SINGLE * count),
        )
        said = f"none of {self.seeds} seeds gives" if seed is None else f"seed {seed} gives"
        return Check("secret", seed is None, f"{said} again the noise of a secret drawn now", 1e-14)


def _birthdays(folder: Path) -> Check:
    again = repeated_secrets(folder)
    said = f"{again} of {DRAWN} secrets drawn now by this code were drawn before"
    return Check("birthdays of secrets", not again, said, 1e-70)


def audit(release: Release, progress: Progress = lambda count: None, **choices: Any) -> Audit:
    """Audit a release; the choices are those of `Auditor`."""
    return Auditor(release, **choices).run(progress)


def judge(game: Game, played: Played) -> list[Outcome]:
    """Of all parts together, and of each by itself: a small part without noise must show."""
    names = list(played.parts)
    found = [Outcome.of(game, played.scores, game.claimed_mu, what=", ".join(names))]
    if len(names) > 1:
        claimed = game.claimed
        found += [
            Outcome.of(game, played.parts[name], claimed[name], what=name, part=True)
            for name in names
        ]
    return found


def _normal(outcomes: Sequence[Outcome], *, noisy: bool) -> Check:
    """See that scores are normal, which the Gaussian bound assumes and the mechanism promises."""
    what = "normal scores"
    if not noisy:
        return Check(what, None, "no noise was added")
    least = min(outcome.normality for outcome in outcomes)
    alarm = ALARM * len(outcomes)
    return Check(what, least >= ALARM, f"least p-value of {len(outcomes)}: {least:.2g}", alarm)
