"""The auditor of a release of features: patients and query images, and rows with their own keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from canal.attacks.auditor import FEWEST_DRAWS, SINGLE, Auditor, Secrets
from canal.attacks.feature_game import FEATURES, FeatureGame, takes_part
from canal.attacks.feature_rows import play_rows
from canal.attacks.game import Progress
from canal.attacks.hostile import AUDITED
from canal.attacks.traces import Check, different_noise, on_lattice, own_noise, unrelated
from canal.attacks.verdict import Outcome
from canal.features.mechanism import TeacherSum
from canal.features.statistics import Statistics
from canal.features.store import Release
from canal.privacy.units import Unit
from canal.release.verification import check_statement

_PER_PAIR = 20


@dataclass(frozen=True)
class FeatureAuditor(Auditor):
    """What is to be done for one release of features."""

    release: Release

    known: ClassVar[tuple[Unit, ...]] = AUDITED
    sentences: ClassVar[Mapping[str, Sequence[str]]] = {
        "patient": (
            "very patient of the training cohorts .*?, with epsilon {} at delta",
            "The one to sign, or not to sign, is the patient's: {}",
        ),
        "image": ("Every query image, with all images of one person .*?, with epsilon {};",),
    }

    def among(self, unit: Unit) -> int:
        """A patient has a say on every query of the folder, a person on their own images."""
        return len(self.release) if unit == "patient" else takes_part(self.release.plan, "image")

    @cached_property
    def games(self) -> list[FeatureGame]:
        """One a unit; a statement that does not follow from the plan is refused here."""
        calibrated = check_statement(self.release.manifest)
        statistics = Statistics.from_json(self.release.manifest.statistics)
        mechanism = TeacherSum.of(calibrated, statistics)
        chosen = [unit for unit in AUDITED if unit in (self.units or AUDITED)]
        return [
            FeatureGame.within(mechanism, unit, self.draws_made, self.values_allowed)
            for unit in chosen
        ]

    @cached_property
    def pair(self) -> FeatureGame:
        """That of two queries, row by row; of one, where there are no two."""
        mechanism = self.games[0].mechanism
        return FeatureGame(mechanism, "patient", min(2, self.release.plan.participants.queries))

    @property
    def stated(self) -> dict[str, float]:
        """Epsilon of every unit that the noise is worth, exact; the paper's by its own rule."""
        plan, promise = self.release.plan, self.games[0].mechanism.calibrated.guarantee
        return {
            "patient": promise.epsilon(plan.delta, "patient"),
            "image": promise.epsilon(plan.delta, "image"),
            "paper": promise.epsilon(plan.delta, "paper", plan.conversion),
        }

    @property
    def singles(self) -> int:
        """Rows that are made one by one."""
        return 4 * self._pairs if self.noisy and self.pair.queries == 2 else 0

    @property
    def _pairs(self) -> int:
        return max(FEWEST_DRAWS, self.draws // _PER_PAIR)

    def alone(
        self, secret: Secrets, folder: Path, progress: Progress
    ) -> tuple[list[Outcome], list[Check]]:
        """The game on pairs of queries, row by row with the keys of the aggregator."""
        if not self.singles:
            return [], []
        secrets = secret("rows-0"), secret("rows-1")
        scores, stored = play_rows(
            self.pair, self._pairs, secrets, folder, lambda count: progress(SINGLE * count)
        )
        what = f"{FEATURES}, row by row as the aggregator makes them"
        outcome = Outcome.of(self.pair, scores, self.pair.claimed[FEATURES], what=what)
        pairs = [rows.reshape(len(rows) // 2, -1) for rows in stored]
        return [outcome], [own_noise(self.pair.mechanism, stored), unrelated(pairs)]

    def in_the_folder(self) -> list[Check]:
        """Statistics that are on the lattice, queries that share no noise."""
        calibrated = self.games[0].mechanism.calibrated
        return [on_lattice(self.release, calibrated), different_noise(self.release)]
