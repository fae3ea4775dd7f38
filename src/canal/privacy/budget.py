"""How one budget is divided over what is published: caps, importance, release (Eq. split)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from canal.errors import InvalidValueError

Source = Literal["private", "public"]
SOURCES: tuple[Source, ...] = get_args(Source)


@dataclass(frozen=True)
class BudgetSplit:
    """Shares of the total rho; they sum to one.

    Args:
        caps: share of the clipping caps.
        importance: share of the importance scores.
        release: share of the features themselves.

    >>> BudgetSplit().with_sources(caps="public", importance="private")
    BudgetSplit(caps=0.0, importance=0.05, release=0.95)
    """

    caps: float = 0.10
    importance: float = 0.05
    release: float = 0.85

    def __post_init__(self) -> None:
        shares = asdict(self)
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise InvalidValueError(f"split {name} = {share!r} must lie between 0 and 1")
        if not math.isclose(math.fsum(shares.values()), 1, rel_tol=1e-12):
            raise InvalidValueError(
                f"the split sums to {math.fsum(shares.values()):.12g}; "
                "caps + importance + release must be 1"
            )
        if self.release == 0:
            raise InvalidValueError("split release = 0 leaves nothing for the features")

    def with_sources(self, caps: Source, importance: Source) -> BudgetSplit:
        """The split when a statistic is public: charged nothing, its share goes to the release."""
        for name, source in (("caps", caps), ("importance", importance)):
            if source not in SOURCES:
                raise InvalidValueError(f"{name} source = {source!r} must be private or public")
        paid_caps = self.caps if caps == "private" else 0.0
        paid_importance = self.importance if importance == "private" else 0.0
        return BudgetSplit(paid_caps, paid_importance, 1 - (paid_caps + paid_importance))

    def rho(self, total: float) -> dict[str, float]:
        """Each part's rho; their sum is never above the total.

        >>> BudgetSplit().rho(1.0)["release"]
        0.85
        """
        # The release takes what the two others leave, so that nothing is rounded into being.
        caps, importance = self.caps * total, self.importance * total
        release = min(self.release * total, total - (caps + importance))
        while math.fsum((caps, importance, release)) > total:
            release = math.nextafter(release, 0)
        return {"caps": caps, "importance": importance, "release": release}
