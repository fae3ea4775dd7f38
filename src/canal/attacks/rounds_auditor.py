"""The auditor of a release of adapters: a patient who is there or not, or who is replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from canal.attacks.auditor import Auditor
from canal.attacks.rounds_game import RoundsGame
from canal.attacks.traces import Check, apart
from canal.gradients.mechanism import PatientSum
from canal.gradients.plan import DISTANCE
from canal.gradients.store import AdapterRelease
from canal.privacy.units import Unit
from canal.release.verification import check_statement

# Coordinates of every channel: one to fill, one more to spread a gradient over.
_EACH = 2


@dataclass(frozen=True)
class RoundsAuditor(Auditor):
    """What is to be done for one release of adapters."""

    release: AdapterRelease

    known: ClassVar[tuple[Unit, ...]] = tuple(DISTANCE)
    sentences: ClassVar[Mapping[str, Sequence[str]]] = {
        "membership": ("with epsilon {} at delta \\S+ where a patient is added or removed",),
        "patient": (", {} where one is replaced by another",),
    }

    @cached_property
    def games(self) -> list[RoundsGame]:
        """One a unit; a statement that does not follow from the plan is refused here.

        How many parameters a channel has, the network says, which is not needed: a canary that
        says nothing about the others is bounded as if they were not there.
        """
        calibrated = check_statement(self.release.manifest)
        scales = len(self.release.manifest.statistics["scales"])
        public = self.release.public(np.repeat(np.arange(scales), _EACH))
        mechanism = PatientSum(calibrated, public.bounding)
        return [
            RoundsGame.within(mechanism, unit, self.draws_made, self.values_allowed)
            for unit in self.units or self.known
        ]

    @property
    def stated(self) -> dict[str, float]:
        """Epsilon of every unit that the noise is worth, exact."""
        promise = self.games[0].mechanism.calibrated.guarantee
        return {unit: promise.epsilon(self.release.plan.delta, unit) for unit in DISTANCE}

    def in_the_folder(self) -> list[Check]:
        """Rounds that share no noise, nor have too little of it."""
        release = self.release
        if not self.noisy:
            return [Check("noise of different rounds", None, "no noise was added", folder=True)]
        calibrated = self.games[0].mechanism.calibrated
        # Where channels have noise of their own, the least of it: whose they are, no manifest says.
        std = float(calibrated.sigma.min()) * release.plan.excess / calibrated.lattice.step
        rows = np.stack([release.sums(number) / std for number in range(len(release))])
        return [apart(rows, "rounds", later_know=True)]
