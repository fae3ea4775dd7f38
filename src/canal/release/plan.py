r"""The plan of a release: all that determines what it costs, fixed before any data is touched.

Each mechanism has a plan of its own, a frozen dataclass on top of `ReleasePlan`. Calibrated, with
what was published or is public, it knows every sigma, and so the guarantee. Whoever has a manifest
can do both again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from canal.errors import InvalidValueError, ReleaseError
from canal.privacy.gaussian import Conversion, check_conversion
from canal.privacy.precision import rho_for_release
from canal.privacy.units import RELATIONS, Relation, Unit

if TYPE_CHECKING:
    from canal.privacy.events import Guarantee
    from canal.privacy.lattice import Lattice

Trust = Literal["trusted", "secure-sum"]
TRUSTS: tuple[Trust, ...] = get_args(Trust)


class ReleasePlan(ABC):
    """What is asked for; all of it is public.

    Attributes:
        kind: the name of its kind.
        units: those that a release promises something to.
        charged: those that ledgers are charged in.
        epsilon: what the release may cost one unit.
        delta: of the same guarantee.
        conversion: between epsilon and rho.
        allocation: how noise is spread; `none` for no noise and no guarantee.
        trust: `trusted`, an aggregator adds up what the sites contribute and adds the noise; or
            `secure-sum`, every site adds a share of the noise and only the sum is ever seen.
        colluding: t, the number of colluding sites; the shares of the rest still hide everyone.
    """

    kind: ClassVar[str]
    units: ClassVar[tuple[Unit, ...]]
    charged: ClassVar[tuple[Unit, ...]]

    epsilon: float
    delta: float
    conversion: Conversion
    allocation: str
    trust: Trust
    colluding: int

    @property
    @abstractmethod
    def unit(self) -> Unit:
        """Whose epsilon it is."""

    @property
    @abstractmethod
    def budgeted(self) -> tuple[Unit, ...]:
        """Those that need a budget."""

    @property
    @abstractmethod
    def sites(self) -> int:
        """K, the number of sites."""

    @property
    @abstractmethod
    def draws(self) -> int:
        """Noise values that one unit takes part in; their finite precision is set aside first."""

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values."""
        values: dict[str, Any] = asdict(self)  # type: ignore[call-overload]  # every plan is one
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The reverse of `to_json`."""
        known = {entry.name for entry in fields(cls)}  # type: ignore[arg-type]
        if values.keys() != known:
            raise InvalidValueError("a plan has other entries than these")
        return cls(**values | cls.objects(values))

    @classmethod
    def objects(cls, values: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG003
        """Entries that are objects of their own, from their JSON values."""
        return {}

    @property
    def shares(self) -> int:
        """In how many parts each noise value is drawn."""
        return self.sites if self.trust == "secure-sum" else 1

    @property
    def excess(self) -> float:
        r"""How much wider the noise in a release is than the noise that is accounted for.

        Each of K shares has variance $\sigma^2/(K - t)$, so that K - t of them are enough.
        """
        return math.sqrt(self.shares / (self.shares - self.colluding))

    def total_rho(self) -> float:
        """What everything together may cost the unit; never above (epsilon, delta)."""
        total = rho_for_release(self.epsilon, self.delta, self.draws, self.conversion)
        if total == 0:
            raise InvalidValueError(
                f"epsilon = {self.epsilon!r} is too small for {self.draws} noise values: their "
                "finite precision alone takes as much; ask for more, or publish fewer numbers"
            )
        return total

    def within_budget(self, make: Callable[[float], Guarantee]) -> Guarantee:
        """The guarantee of as little noise as the budget allows, with room for rounding.

        Args:
            make: the guarantee of noise that costs a share of the budget.
        """
        share = 1 - 2.0**-44
        while True:
            guarantee = make(share)
            if guarantee.epsilon(self.delta, self.unit, self.conversion) <= self.epsilon:
                return guarantee
            share -= 1 - share

    def check(self, **known: Sequence[str]) -> None:
        """Refuse what no release can be asked for.

        Args:
            known: of each of the plan's words, those that there are.
        """
        check_conversion(self.conversion)
        if not 0 < self.epsilon < math.inf:
            raise InvalidValueError(f"epsilon = {self.epsilon!r} must be above 0 and finite")
        if not 0 < self.delta < 1:
            raise InvalidValueError(f"delta = {self.delta!r} must lie between 0 and 1")
        for name, words in (known | {"trust": TRUSTS}).items():
            if getattr(self, name) not in words:
                raise InvalidValueError(
                    f"{name} = {getattr(self, name)!r} is unknown; choose one of {', '.join(words)}"
                )
        if isinstance(self.colluding, bool) or not isinstance(self.colluding, int):
            raise InvalidValueError(f"colluding = {self.colluding!r} must be a whole number")
        if self.trust == "trusted":
            if self.colluding:
                raise InvalidValueError(
                    "colluding sites matter where noise comes in shares; take the secure sum "
                    "(--trust secure-sum), or none of them"
                )
            return
        if self.sites < 2 or not 0 <= self.colluding < self.sites:
            raise InvalidValueError(
                f"a secure sum needs two sites, and colluding = {self.colluding} below their "
                f"number, {self.sites}: else no share is left that protects anybody"
            )
        if self.allocation == "none":
            raise InvalidValueError("a secure sum without noise hides nobody; take an allocation")


class PatientPlan(ReleasePlan):
    """A plan in which every patient has a part of their own, and no other moves with it.

    Attributes:
        relation: whose epsilon it is: a patient who is added or removed, or replaced.
    """

    units: ClassVar[tuple[Unit, ...]] = ("membership", "patient")
    charged: ClassVar[tuple[Unit, ...]] = units

    relation: Relation

    @property
    def unit(self) -> Unit:
        """The relation, as a ledger counts it."""
        return RELATIONS[self.relation]

    @property
    def budgeted(self) -> tuple[Unit, ...]:
        """The plan's own relation; the other is written down, and binds where it has a budget."""
        return (self.unit,)


def check_cohorts(cohorts: Sequence[str], count: int, who: str = "sites") -> None:
    """Refuse other cohorts than so many different ones.

    One that is named twice counts twice where noise comes in shares, and adds its share once: the
    others' would be too small.
    """
    different = len(set(cohorts))
    if not len(cohorts) == different == count:
        raise ReleaseError(
            f"the plan is for {count} {who} of different cohorts, but there are {different}"
        )


class Calibrated(ABC):
    """A plan whose every sigma is fixed.

    Guarantees:
        `guarantee.epsilon(plan.delta, plan.unit, plan.conversion) <= plan.epsilon`, unless the
        allocation is `none`, whose epsilon is infinite.

    Attributes:
        plan: what was asked for.
        guarantee: what it promises.
    """

    plan: ReleasePlan
    guarantee: Guarantee

    @property
    @abstractmethod
    def lattice(self) -> Lattice:
        """Of the sums over sites."""

    def charge(self, unit: Unit) -> float:
        """The rho to charge a unit; never below what the release costs, whatever comes first."""
        return self.guarantee.rho(unit)
