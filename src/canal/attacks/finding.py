"""What an attack found, as a file that the report reads and a person understands."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from canal.attacks.roc import Roc, allowed_auc, allowed_tpr
from canal.files import replace_file
from canal.privacy.units import Unit
from canal.release.digits import upwards
from canal.release.statistics import Statistics
from canal.release.store import Release

FORMAT = "canal-attack/1"
RATES = (0.01, 0.001)
NOTHING = "This attack got nothing; the guarantee, not the attack, is the evidence."


@dataclass(frozen=True)
class Finding:
    r"""One attack on one release.

    Args:
        attack: what was attempted.
        release: digest of the manifest.
        roc: how well it went.
        unit: whose membership it was about.
        mu: of the Gaussian trade-off that the noise allows for this unit; None if there was none.
    """

    attack: str
    release: str
    roc: Roc
    unit: Unit
    mu: float | None

    def words(self) -> list[str]:
        """What it means, in sentences."""
        low, high = self.roc.auc_interval
        said = [
            f"The attack tells {len(self.roc.members)} members from {len(self.roc.others)} others "
            f"with an AUC of {self.roc.auc:.3f} (95 % interval {low:.3f} to {high:.3f}); 0.5 is a "
            "coin, 1 is certainty."
        ]
        if low <= 0.5 <= high:
            said.append(NOTHING)
        if self.mu is None:
            said.append("There is no noise that would limit it.")
            return said
        said.append(
            f"The noise on the features allows no attack an AUC above {_up(allowed_auc(self.mu))}, "
            f"or more than {_up(100 * allowed_tpr(RATES[0], self.mu))} % found at 1 % false alarms."
        )
        if low > allowed_auc(self.mu):
            said.append("The attack is above that: the release has a bug. Do not hand it out.")
        return said

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "format": FORMAT,
            "attack": self.attack,
            "release": self.release,
            "members": len(self.roc.members),
            "others": len(self.roc.others),
            "auc": self.roc.auc,
            "auc_interval": list(self.roc.auc_interval),
            "tpr": {f"{rate:g}": self.roc.tpr(rate) for rate in RATES},
            "roc": [list(point) for point in self.roc.points()],
            "allowed": None if self.mu is None else {"unit": self.unit, "mu": self.mu},
            "words": self.words(),
        }

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(self.to_json(), indent=1) + "\n").encode())


def features_mu(release: Release, unit: Unit) -> float | None:
    r"""The $\mu$ of the released features alone for a unit; None without noise.

    What statistics read in the clear give away is not in it, and no attack on features uses it.
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
