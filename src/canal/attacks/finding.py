"""What an attack found, as a file that the report reads and a person understands."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from canal.attacks.roc import Played, Roc, allowed_auc, allowed_tpr
from canal.features.statistics import Statistics
from canal.features.store import Release
from canal.files import replace_file
from canal.privacy.units import Unit
from canal.release.digits import upwards

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
