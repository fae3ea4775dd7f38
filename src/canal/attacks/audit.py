r"""The audit: is the epsilon that a release states refuted by what the code of a release does?

For every unit a game is played with worst-case neighbours (`canal.attacks.game`). What it proves
goes over to all queries or rounds of the folder and is held against every number that the folder
prints for that unit; each game by itself is held against what the accounting states of exactly what
was drawn (`canal.attacks.verdict`). A lower bound proves harm, never safety: it can refute the
statement, and when it comes close to it, shows that the statement is no exaggeration either. The
code that is played is today's, not that which made the folder; what the folder itself shows is
looked at as well, and with its teachers all of its noise (`canal.attacks.residue`).

A bound of 95 % is above a claim that is exactly true in one run out of twenty. Alarm is therefore
raised at a false-alarm rate of 1e-6 for each bound, while the numbers in the tables are the usual
95 %.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canal.attacks.game import Game, Played, Progress
from canal.attacks.individual import LOOKED_AT
from canal.attacks.traces import (
    DRAWN,
    RARE,
    SEEDS,
    Check,
    distances,
    find_seed,
    noise_is_wide,
    own_noise,
    repeated_secrets,
    unrelated,
    whole_numbers,
)
from canal.attacks.verdict import ALARM, CONFIDENCE, Outcome, Verdict, all_read, printed
from canal.errors import CanalError, InvalidValueError
from canal.files import replace_file
from canal.privacy.randomness import Secret
from canal.release.digits import downwards, finite_or_none, number, short
from canal.release.manifest import CARD, SOFTWARE
from canal.release.registry import kind_of
from canal.release.verification import check_statement, verify

if TYPE_CHECKING:
    from canal.attacks.individual import IndividualLoss
    from canal.attacks.simulation import Simulation
    from canal.privacy.units import Unit
    from canal.release.store import Folder
    from canal.release.worst_case import WorstCase

Secrets = Callable[[str], Secret]

FORMAT = "canal-audit/2"


@dataclass(frozen=True)
class Audit:
    """Everything that was found about one release.

    Args:
        release: digest of the manifest.
        software: that made the folder, as it says itself; what was played is `SOFTWARE`.
        stamp: the release's own warning; empty if it is private.
        stated: epsilon of every unit that the noise is worth, exact; infinite for none.
        delta: of every epsilon here.
        verdicts: one a unit: what is proven of it, against what the folder prints.
        outcomes: one a game, and one a part of it: against the accounting of what was drawn.
        checks: of what noise must not leave behind.
        canary: what real patients lost, where somebody looked (`canal.attacks.individual`). Its
            figures are not in this file, nor in words.
        residue: checks that were made with what a site keeps; of them the public learns which
            passed, and no figure (`individual` has them).
    """

    release: str
    software: str
    stamp: str
    stated: dict[str, float]
    delta: float
    verdicts: tuple[Verdict, ...]
    outcomes: tuple[Outcome, ...]
    checks: tuple[Check, ...]
    canary: IndividualLoss | None = None
    residue: tuple[Check, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing was refuted; no proof that all is well."""
        fine = all(check.passed is not False for check in self._all_checks)
        covered = self.canary is None or self.canary.holds
        refuted = any(each.refuted for each in self.verdicts)
        return fine and covered and not refuted and not any(each.refuted for each in self.outcomes)

    @property
    def noisy(self) -> bool:
        """Whether anything varied."""
        return any(math.isfinite(outcome.claimed_mu) for outcome in self.outcomes)

    @property
    def _all_checks(self) -> tuple[Check, ...]:
        """All of them, as the public may see them."""
        return *self.checks, *(replace(each, detail=LOOKED_AT) for each in self.residue)

    @property
    def paper_falls_short(self) -> bool:
        """Whether a patient is shown to pay more than the paper's accounting of features states.

        Shown as all else is here: at a false-alarm rate of 1e-6 for each bound.
        """
        return self._surely_paid > self.stated.get("paper", math.inf)

    @property
    def _surely_paid(self) -> float:
        """The most that a patient is shown to pay; 0 where nothing was claimed."""
        if math.isinf(self.stated.get("patient", math.inf)):
            return 0.0
        return max((each.epsilon for each in self.verdicts if each.unit == "patient"), default=0.0)

    def words(self) -> list[str]:
        """What it means, in sentences."""
        said = []
        if self.stamp:
            said.append(
                f"{self.stamp}. Nothing is promised; what follows is about the noise alone, as if "
                "it had been secret."
            )
        said.append(
            f"Two worst-case worlds, {number(max(o.draws for o in self.outcomes))} draws of each, "
            f"through the code of a release; lower bounds at delta {short(self.delta)} that are "
            "wrong once in a million."
        )
        said.append(self._code())
        for verdict in self.verdicts:
            said.append(verdict.words())
            if verdict.unit == "image" and math.isinf(self.stated["image"]) and self.noisy:
                said.append(
                    "Query images are promised nothing here: what was learned or read from them "
                    "with public weights is published in the clear, and was not drawn."
                )
        said += [outcome.words() for outcome in self.outcomes if outcome.refuted]
        if self.paper_falls_short:
            paid = self._surely_paid
            shown = f"{number(downwards(paid))} at least" if math.isfinite(paid) else "all there is"
            said.append(
                f"The paper's accounting states epsilon {number(self.stated['paper'])} for this "
                f"release; a patient is shown to pay {shown}, at one false alarm in a million. It "
                "falls short: it is a guarantee for nobody."
            )
        if self.canary is not None:
            said.append(self.canary.verdict)
        said += [
            f"{check.what.capitalize()}: {check.detail}."
            for check in self._all_checks
            if check.passed is False or check.folder
        ]
        said.append(
            "Nothing that was stated is refuted. A lower bound can refute, it cannot prove."
            if self.holds
            else "The audit found a fault."
        )
        return said

    def _code(self) -> str:
        """Whose code was played, beside whose made the folder."""
        said = f"The code that was played is the one installed here, {SOFTWARE}; the folder says "
        if self.software != SOFTWARE:
            return (
                f"{said}that {self.software} made it. That is another: what was found of the code "
                "is no finding about this folder; audit it with the version that made it."
            )
        return (
            f"{said}that the same version made it, which is its word alone. What is in the folder "
            "itself is said below."
        )

    def individual(self) -> dict[str, Any] | None:
        """What only those may see who hold the data; None if they were not asked for it."""
        if self.canary is None and not self.residue:
            return None
        return {
            "release": self.release,
            "canary": None if self.canary is None else self.canary.to_json(),
            "checks": [check.to_json() for check in self.residue],
            "words": [
                *([] if self.canary is None else [self.canary.words()]),
                *(f"{check.what.capitalize()}: {check.detail}." for check in self.residue),
            ],
        }

    def to_json(self) -> dict[str, Any]:
        """As plain values, for the public."""
        return {
            "format": FORMAT,
            "release": self.release,
            "software": {
                "made": self.software,
                "played": SOFTWARE,
                "same_version": self.software == SOFTWARE,
            },
            "stamp": self.stamp,
            "delta": self.delta,
            "confidence": CONFIDENCE,
            "false_alarm": ALARM,
            "stated": {unit: finite_or_none(value) for unit, value in self.stated.items()},
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "games": [outcome.to_json() for outcome in self.outcomes],
            "checks": [check.to_json() for check in self._all_checks],
            "canary": None if self.canary is None else self.canary.public(),
            "paper_falls_short": self.paper_falls_short,
            "holds": self.holds,
            "words": self.words(),
        }

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n").encode())


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


def audit(release: Folder, progress: Progress = lambda count: None, **choices: Any) -> Audit:
    """Audit a release; the choices are those of `Auditor`."""
    return Auditor(release, **choices).run(progress)


@dataclass(frozen=True)
class Auditor:
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

    def __post_init__(self) -> None:
        if self.draws < FEWEST_DRAWS:
            raise InvalidValueError(
                f"draws = {self.draws!r} must be at least {FEWEST_DRAWS}; fewer prove nothing"
            )

    @cached_property
    def worst(self) -> WorstCase:
        """Its worst case; a statement that does not follow from the plan is refused here."""
        calibrated = check_statement(self.release.manifest)
        return kind_of(self.release.kind).worst_case(self.release, calibrated)

    @cached_property
    def games(self) -> list[Game]:
        """One a unit."""
        for unit in self.units:
            if unit not in self.worst.units:
                raise InvalidValueError(
                    f"unit = {unit!r} has no neighbours to try in a release of "
                    f"{self.release.kind}; choose one of {', '.join(self.worst.units)}"
                )
        chosen = [unit for unit in self.worst.units if unit in (self.units or self.worst.units)]
        values = self.values if self.noisy else 0.0
        return [Game.within(self.worst, unit, self.draws_made, values) for unit in chosen]

    @property
    def noisy(self) -> bool:
        """Whether there is any noise."""
        return self.release.plan.allocation != "none"

    @property
    def draws_made(self) -> int:
        """Where nothing varies, a few are as good as many."""
        return self.draws if self.noisy else FEWEST_DRAWS

    def among(self, game: Game) -> int:
        """How many of the rows that are in the folder the unit of a game takes part in."""
        return game.worst.rows_of(game.unit, len(self.release)) if game.repeated else 0

    def printed(self, game: Game) -> dict[str, float | None]:
        """Every epsilon that the folder prints for the unit of a game, by where it does."""
        card = self.release.path / CARD
        return printed(
            self.release.manifest,
            card.read_text(encoding="utf-8", errors="replace") if card.is_file() else "",
            *(game.unit, game.steps, len(self.release) if game.repeated else 1),
            game.worst.sentences[game.unit],
        )

    @property
    def work(self) -> int:
        """How much progress will be told in all: noise values, or what takes as long."""
        drawn = sum(game.values * self.draws_made for game in self.games)
        seeds = self.seeds if self._secret else 0
        return drawn + SINGLE * seeds + SIMULATED * len(self.simulations)

    @property
    def _secret(self) -> bool:
        """Whether a secret is behind the noise; a research run has a seed in its place."""
        return self.noisy and self.release.private

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
                verdicts.append(Verdict.of(game, played, self.among(game), stated))
                checks += [all_read(game, stated), distances(game)]
                if self.noisy:
                    checks.append(noise_is_wide(played, f"width of the noise, {game.unit}"))
                    what = f"noise of different values, {game.unit}"
                    checks.append(replace(unrelated(played.sample), what=what))
            checks += [
                _normal(outcomes, noisy=self.noisy),
                own_noise(self.games[0], secret("rows")),
                whole_numbers(self.games[0], secret("lattice")),
                *self._in_the_folder(),
            ]
            for row, simulation in enumerate(self.simulations):
                checks += self._simulate(simulation, folder / f"simulation-{row}")
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
            self.worst.stated,
            self.release.plan.delta,
            tuple(verdicts),
            tuple(outcomes),
            tuple(checks),
        )

    def _in_the_folder(self) -> list[Check]:
        """What the folder itself shows: above all what `canal release verify` finds of its noise.

        No code of a release is played for that.
        """
        found = [
            Check(each.what, each.passed, each.detail, 2 * RARE, folder=True)
            for each in self.worst.checks()
        ]
        return found + [
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
