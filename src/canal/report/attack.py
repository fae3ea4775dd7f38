"""Attacks as files: what an adversary got, read back, and what the noise allows at most."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from canal.attacks.roc import FORMAT, allowed_auc, allowed_tpr
from canal.errors import DataError
from canal.privacy.units import ALL_UNITS, Unit

_FAMILY = FORMAT.partition("/")[0] + "/"


@dataclass(frozen=True)
class Attack:
    """One attack on one release.

    Args:
        where: its file, within the run.
        name: what was attacked.
        release: digest of the manifest.
        members: how many were to be found.
        others: among how many.
        auc: area under the curve.
        interval: of the same, 95 %.
        tpr: true positives at some rates of false ones.
        roc: the curve, pairs of false and true positives.
        unit: whose trade-off it is held against; None for none.
        mu: of that, as the noise allows it.
        like_chance: whether guessing explains it.
        words: what else there is to say.
    """

    where: str
    name: str
    release: str
    members: int
    others: int
    auc: float
    interval: tuple[float, float]
    tpr: dict[float, float]
    roc: tuple[tuple[float, float], ...]
    unit: Unit | None
    mu: float | None
    like_chance: bool
    words: tuple[str, ...]

    def allowed(self, rate: float) -> float | None:
        """Most true positives at this rate of false ones, whatever the attack."""
        return None if self.mu is None else allowed_tpr(rate, self.mu)

    @property
    def allowed_auc(self) -> float | None:
        """The largest area that any attack can have."""
        return None if self.mu is None else allowed_auc(self.mu)


def read_attack(path: Path, where: str) -> Attack | None:
    """Read a file; None if it is no attack.

    Raises:
        DataError: it says that it is one, and is not.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if _FAMILY.encode() not in data:
        return None
    try:
        content = json.loads(data)
        # Another kind of file, which speaks of attacks.
        if not isinstance(content, dict) or not str(content.get("format")).startswith(_FAMILY):
            return None
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}, not {FORMAT}")
        return _attack(content, where)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is no attack that can be read ({error}); run the attack again"
        ) from error


def _attack(content: dict[str, Any], where: str) -> Attack:
    allowed = content["allowed"]
    low, high = (_share(end) for end in content["auc_interval"])
    mu = None if allowed is None else float(allowed["mu"])
    if mu is not None and not 0 <= mu < math.inf:
        raise ValueError(f"mu = {mu}")
    return Attack(
        where=where,
        name=str(content["attack"]),
        release=str(content["release"]),
        members=int(content["members"]),
        others=int(content["others"]),
        auc=_share(content["auc"]),
        interval=(low, high),
        tpr={_share(rate): _share(found) for rate, found in content["tpr"].items()},
        roc=tuple(sorted((_share(false), _share(true)) for false, true in content["roc"])),
        unit=None if allowed is None else ALL_UNITS[ALL_UNITS.index(allowed["unit"])],
        mu=mu,
        like_chance=bool(content["like_chance"]),
        words=tuple(str(sentence) for sentence in content["words"]),
    )


def _share(value: object) -> float:
    share = float(value)  # type: ignore[arg-type]
    if not 0 <= share <= 1:
        raise ValueError(f"{value!r} is not within 0 and 1")
    return share
