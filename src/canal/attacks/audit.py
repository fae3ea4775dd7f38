"""What an audit found about a release, as a file that the report reads and a person understands."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from canal.attacks.individual import LOOKED_AT, IndividualLoss
from canal.attacks.traces import Check
from canal.attacks.verdict import ALARM, CONFIDENCE, Outcome, Verdict
from canal.files import replace_file
from canal.release.digits import downwards, finite_or_none, number, short
from canal.release.manifest import SOFTWARE

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
