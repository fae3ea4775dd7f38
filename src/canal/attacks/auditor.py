r"""The auditor: is the epsilon that a release states refuted by what the code of a release does?

For every unit a game is played with worst-case neighbours (`canal.attacks.game`). What it proves
goes over to all queries or rounds of the folder and is held against every number that the folder
prints for that unit (`canal.attacks.verdict`); each game by itself is held against what the
accounting states of exactly what was drawn (`canal.attacks.verdict`). A lower bound proves harm,
never safety: it can refute the statement, and when it comes close to it, shows that the statement
is no exaggeration either. The code that is played is today's, not that which made the folder; what
the folder itself shows is looked at as well (`canal.attacks.traces`), and with its teachers all of
its noise (`canal.attacks.residue`).

A bound of 95 % is above a claim that is exactly true in one run out of twenty. Alarm is therefore
raised at a false-alarm rate of 1e-6 for each bound, while the numbers in the tables are the usual
95 %.

What to play and where to look depends on the kind of a release: `canal.attacks.feature_auditor`,
`canal.attacks.rounds_auditor`; `canal.attacks.kinds` tells which.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from canal.attacks.audit import Audit
from canal.attacks.game import Game, Played, Progress
from canal.attacks.simulation import Simulation
from canal.attacks.traces import (
    DRAWN,
    RARE,
    SEEDS,
    Check,
    distances,
    find_seed,
    noise_is_wide,
    repeated_secrets,
    unrelated,
    whole_numbers,
)
from canal.attacks.verdict import ALARM, Outcome, Verdict, all_read, printed
from canal.errors import CanalError, InvalidValueError
from canal.privacy.randomness import Secret
from canal.privacy.units import Unit
from canal.release.manifest import CARD
from canal.release.store import Folder
from canal.release.verification import verify

Secrets = Callable[[str], Secret]

DRAWS = 100_000
# Noise values that one game may take; about ten seconds on two cores.
VALUES = 4e8
FEWEST_DRAWS = 1000
# Something with a key of its own takes as long as this many values at once.
SINGLE = 3000
# A simulation takes as long as this many.
SIMULATED = 50_000_000
# What `canal release verify` says of the noise in a folder.
_OF_NOISE = ("noise", "repeats")
_SEEDED = (
    "the noise came from a seed, so there is no secret to find; whoever knows the seed, or tries "
    "all small ones, takes all of it off"
)


@dataclass(frozen=True)
class Auditor(ABC):
    """What is to be done for one release; it knows how much that is before it begins.

    Args:
        release: any, private or not.
        draws: in each world of each game.
        units: whose neighbours to try; all that the kind of release has, if not given.
        secrets: makes the secret of a part of the audit, by its name; the operating system's, as
            the aggregator does, if not given.
        seeds: how many to try in place of the secret.
        values: noise values that one game may take.
        simulations: releases of invented sites to be made and looked at; see
            `canal.attacks.simulation`.
    """

    release: Folder
    draws: int = DRAWS
    units: Sequence[Unit] = ()
    secrets: Secrets | None = None
    seeds: int = SEEDS
    values: float = VALUES
    simulations: Sequence[Simulation] = ()

    # Those that have neighbours to try.
    known: ClassVar[tuple[Unit, ...]]
    # Words around an epsilon of theirs in a statement.
    sentences: ClassVar[Mapping[str, Sequence[str]]]

    def __post_init__(self) -> None:
        if self.draws < FEWEST_DRAWS:
            raise InvalidValueError(
                f"draws = {self.draws!r} must be at least {FEWEST_DRAWS}; fewer prove nothing"
            )
        for unit in self.units:
            if unit not in self.known:
                raise InvalidValueError(
                    f"unit = {unit!r} has no neighbours to try in a release of "
                    f"{self.release.kind}; choose one of {', '.join(self.known)}"
                )

    @property
    @abstractmethod
    def games(self) -> Sequence[Game]:
        """One a unit; a statement that does not follow from the plan is refused here."""

    @property
    @abstractmethod
    def stated(self) -> dict[str, float]:
        """Epsilon of every unit that the noise is worth, exact."""

    def among(self, unit: Unit) -> int:  # noqa: ARG002
        """How many of the rows that are in the folder a unit takes part in."""
        return len(self.release)

    def printed(self, game: Game) -> dict[str, float | None]:
        """Every epsilon that the folder prints for the unit of a game, by where it does."""
        card = self.release.path / CARD
        return printed(
            self.release.manifest,
            card.read_text(encoding="utf-8", errors="replace") if card.is_file() else "",
            *(game.unit, game.times, len(self.release)),
            self.sentences.get(game.unit, ()),
        )

    @abstractmethod
    def in_the_folder(self) -> list[Check]:
        """What the folder itself shows, without playing anything."""

    def alone(
        self,
        secret: Secrets,  # noqa: ARG002
        folder: Path,  # noqa: ARG002
        progress: Progress,  # noqa: ARG002
    ) -> tuple[list[Outcome], list[Check]]:
        """What is drawn with a key of its own, one by one; nothing, unless a kind needs it."""
        return [], []

    @property
    def singles(self) -> int:
        """How many that are."""
        return 0

    @property
    def work(self) -> int:
        """How much progress will be told in all: noise values, or what takes as long."""
        drawn = sum(game.values * self.draws_made for game in self.games)
        singles = self.singles + (self.seeds if self._secret else 0)
        return drawn + SINGLE * singles + SIMULATED * len(self.simulations)

    def run(self, progress: Progress = lambda count: None) -> Audit:
        """Play every game and make every check."""
        with tempfile.TemporaryDirectory(prefix="canal-audit-") as name:
            folder = Path(name)
            secret: Secrets = self.secrets or (
                lambda part: Secret.create(folder / f"secret-{part}")
            )
            outcomes: list[Outcome] = []
            verdicts: list[Verdict] = []
            checks: list[Check] = []
            for game in self.games:
                played = game.play(self.draws_made, secret(game.unit), folder, progress)
                outcomes += judge(game, played)
                stated = self.printed(game)
                verdicts.append(Verdict.of(game, played, self.among(game.unit), stated))
                checks.append(all_read(game, stated))
                checks.append(distances(game))
                if self.noisy:
                    checks.append(noise_is_wide(played, f"width of the noise, {game.unit}"))
                    checks += _sampled(game, played)
            more, others = self.alone(secret, folder, progress)
            outcomes, checks = outcomes + more, checks + others
            checks += [
                _normal(outcomes, noisy=self.noisy),
                whole_numbers(self.games[0], secret("lattice")),
                *self.in_the_folder(),
                *self._verified(),
            ]
            for number, simulation in enumerate(self.simulations):
                checks += self._simulate(simulation, folder / f"simulation-{number}")
                progress(SIMULATED)
            if self._secret:
                checks.append(_birthdays(folder))
                checks.append(self._enumerate(secret("seeds"), progress))
            elif self.noisy:
                checks.append(Check("secret", None, _SEEDED, folder=True))
        return Audit(
            self.release.manifest.digest,
            self.release.manifest.software,
            str(self.release.statement["stamp"]),
            self.stated,
            self.release.plan.delta,
            tuple(verdicts),
            tuple(outcomes),
            tuple(checks),
        )

    @property
    def noisy(self) -> bool:
        """Whether there is any noise."""
        return self.release.plan.allocation != "none"

    @property
    def draws_made(self) -> int:
        """Where nothing varies, a few are as good as many."""
        return self.draws if self.noisy else FEWEST_DRAWS

    @property
    def values_allowed(self) -> float:
        """Noise values that one game may take; as few as can be where nothing varies."""
        return self.values if self.noisy else 0.0

    def _verified(self) -> list[Check]:
        """What `canal release verify` finds of the folder, above all in the noise of each row."""
        return [
            Check(f"verify: {each.what}", each.passed, each.detail, RARE, folder=True)
            for each in verify(self.release.path)
            if each.passed is False or each.what in _OF_NOISE
        ]

    def _simulate(self, simulation: Simulation, folder: Path) -> list[Check]:
        import torch

        found: list[Check] = []
        folder.mkdir()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # networks are so small that more of them wait for each other
        try:
            found.extend(simulation(self.release, folder))
        except InvalidValueError as error:  # such as an epsilon that is too small for few sites
            said = f"this plan cannot be made with so few invented patients: {error}"
            found.append(Check("simulation", None, said, folder=True))
        except CanalError as error:
            found.append(Check("simulation", False, f"it came to no end: {error}"))
        finally:
            torch.set_num_threads(threads)
        return found

    @property
    def _secret(self) -> bool:
        """Whether a secret is behind the noise; a research run has a seed in its place."""
        return self.noisy and self.release.private

    def _enumerate(self, secret: Secret, progress: Progress) -> Check:
        seed = find_seed(
            self.games[0],
            secret,
            seeds=self.seeds,
            progress=lambda count: progress(SINGLE * count),
        )
        said = f"none of {self.seeds} seeds gives" if seed is None else f"seed {seed} gives"
        return Check("secret", seed is None, f"{said} again the noise of a secret drawn now", 1e-14)


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


def _sampled(game: Game, played: Played) -> list[Check]:
    """Whether values of a game are related that must not be; where it kept any."""
    if not played.sample:
        return []
    found = unrelated(played.sample)
    return [replace(found, what=f"{found.what}, {game.unit}")]


def _birthdays(folder: Path) -> Check:
    again = repeated_secrets(folder)
    said = f"{again} of {DRAWN} secrets drawn now by this code were drawn before"
    return Check("birthdays of secrets", not again, said, 1e-70)


def _normal(outcomes: Sequence[Outcome], *, noisy: bool) -> Check:
    """See that scores are normal, which the Gaussian bound assumes and the mechanism promises."""
    what = "normal scores"
    if not noisy:
        return Check(what, None, "no noise was added")
    least = min(outcome.normality for outcome in outcomes)
    alarm = ALARM * len(outcomes)
    return Check(what, least >= ALARM, f"least p-value of {len(outcomes)}: {least:.2g}", alarm)
