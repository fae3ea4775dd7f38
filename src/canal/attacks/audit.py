r"""The audit: is the epsilon that a release states refuted by what the code of a release does?

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

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from canal.attacks.canary import Canary
from canal.attacks.game import FEATURES, Game, Played, Progress, play_rows
from canal.attacks.hostile import AUDITED, Audited
from canal.attacks.outcome import ALARM, CONFIDENCE, Outcome
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
from canal.files import replace_file
from canal.privacy.randomness import Secret
from canal.release.calibration import finite_or_none
from canal.release.digits import downwards, number, short
from canal.release.manifest import SOFTWARE
from canal.release.mechanism import Mechanism
from canal.release.statistics import Statistics
from canal.release.store import Release
from canal.release.verification import check_statement

Secrets = Callable[[str], Secret]

FORMAT = "canal-audit/1"
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
class Audit:
    """Everything that was found about one release.

    Args:
        release: digest of the manifest.
        software: that made the folder, as it says itself; what was played is `SOFTWARE`.
        stamp: the release's own warning; empty if it is private.
        stated: epsilon of every unit that the noise is worth, exact; infinite for none.
        delta: of every epsilon here.
        outcomes: one a game.
        checks: of what noise must not leave behind.
        canary: what one real patient moved, where somebody trained without.
    """

    release: str
    software: str
    stamp: str
    stated: dict[str, float]
    delta: float
    outcomes: tuple[Outcome, ...]
    checks: tuple[Check, ...]
    canary: Canary | None = None

    @property
    def holds(self) -> bool:
        """Whether nothing was refuted; no proof that all is well."""
        fine = all(check.passed is not False for check in self.checks)
        covered = self.canary is None or self.canary.holds
        return fine and covered and not any(outcome.refuted for outcome in self.outcomes)

    @property
    def paper_falls_short(self) -> bool:
        """Whether a patient is shown to pay more than the paper's accounting states.

        Shown as all else is here: at a false-alarm rate of 1e-6 for each bound.
        """
        return self._surely_paid > self.stated["paper"]

    @property
    def _surely_paid(self) -> float:
        """The most that a patient is shown to pay; 0 where nothing was claimed."""
        return max(
            (
                outcome.sure_epsilon
                for outcome in self.outcomes
                if outcome.unit == "patient" and not math.isinf(outcome.claimed_epsilon)
            ),
            default=0.0,
        )

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
            f"through the code of a release; 95 % lower bounds at delta {short(self.delta)}."
        )
        said.append(self._code())
        for outcome in self.outcomes:
            if outcome.part and not outcome.refuted:
                continue
            said.append(outcome.words())
            finite = math.isfinite(outcome.claimed_mu)
            if outcome.unit == "image" and finite and math.isinf(self.stated["image"]):
                said.append(
                    "Query images are promised nothing here: what was learned or read from them "
                    "with public weights is published in the clear, and was not drawn."
                )
        if self.paper_falls_short:
            paid = self._surely_paid
            shown = f"{number(downwards(paid))} at least" if math.isfinite(paid) else "all there is"
            said.append(
                f"The paper's accounting states epsilon {number(self.stated['paper'])} for this "
                f"release; a patient is shown to pay {shown}, at one false alarm in a million. It "
                "falls short: it is a guarantee for nobody."
            )
        if self.canary is not None:
            said.append(self.canary.words())
        said += [
            f"{check.what.capitalize()}: {check.detail}."
            for check in self.checks
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

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
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
            "games": [outcome.to_json() for outcome in self.outcomes],
            "checks": [check.to_json() for check in self.checks],
            "canary": None if self.canary is None else self.canary.to_json(),
            "paper_falls_short": self.paper_falls_short,
            "holds": self.holds,
            "words": self.words(),
        }

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n").encode())


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
