"""The kinds of release, each of which the folder of its mechanism provides.

A sub-package of `canal` with a module `kind` has a `ReleaseKind` there, under the name `KIND`; a
mechanism outside of this package is added with `register`. All other code asks a release for its
kind, and the kind for what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from canal.errors import ReleaseError

if TYPE_CHECKING:
    from canal.privacy.events import Guarantee
    from canal.privacy.gaussian import Conversion
    from canal.privacy.lattice import Lattice
    from canal.privacy.ledger import Ledger
    from canal.privacy.units import Unit
    from canal.release.checks import Check
    from canal.release.manifest import Manifest
    from canal.release.recompute import PublicInputs
    from canal.release.statement import Facts, Wording
    from canal.release.store import Folder


Trust = Literal["trusted", "secure-sum"]
TRUSTS: tuple[Trust, ...] = get_args(Trust)


class AnyPlan(Protocol):
    """What was asked for, of whatever kind; all of it is public."""

    @property
    def kind(self) -> str:
        """The name of its kind."""

    @property
    def epsilon(self) -> float:
        """What the release may cost the unit."""

    @property
    def delta(self) -> float:
        """The delta of the same guarantee."""

    @property
    def unit(self) -> Unit:
        """Whose epsilon it is."""

    @property
    def units(self) -> Sequence[Unit]:
        """Those that a release promises something to."""

    @property
    def charged(self) -> Sequence[Unit]:
        """Those that ledgers are charged in."""

    @property
    def budgeted(self) -> Sequence[Unit]:
        """Those that need a budget."""

    @property
    def conversion(self) -> Conversion:
        """How epsilon follows from rho."""

    @property
    def allocation(self) -> str:
        """How noise is spread; `none` for none."""

    @property
    def trust(self) -> Trust:
        """Who adds the noise: a trusted aggregator, or every site a share."""

    @property
    def sites(self) -> int:
        """K, the number of sites."""

    @property
    def colluding(self) -> int:
        """t, the number of colluding sites."""

    @property
    def shares(self) -> int:
        """In how many parts each noise value is drawn."""

    @property
    def excess(self) -> float:
        """How much wider the noise in a release is than the noise that is accounted for."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""


class AnyCalibrated(Protocol):
    """A plan of whatever kind with every sigma."""

    @property
    def plan(self) -> AnyPlan:
        """What was asked for."""

    @property
    def guarantee(self) -> Guarantee:
        """What it promises."""

    @property
    def lattice(self) -> Lattice:
        """Of the sums over sites."""

    def charge(self, unit: Unit) -> float:
        """The rho to charge: never below what the release costs, whatever is published first."""


@dataclass(frozen=True)
class ReleaseKind:
    """What one mechanism adds to what any release is.

    Args:
        name: in a manifest.
        wording: what only this kind says in a statement about a calibrated plan.
        open: a folder and its manifest, as a reader sees them.
        verify: checks everything that can be checked.
        check_statement: gives the calibrated plan, and refuses what does not follow from it.
        check_contents: refuses files that are not those of the manifest, and such a statement.
    """

    name: str
    wording: Callable[[Any, Facts], Wording]
    open: Callable[[Path, Manifest], Folder]
    verify: Callable[[Path, Ledger | None, PublicInputs | None], list[Check]]
    check_statement: Callable[[Manifest], Any]
    check_contents: Callable[[Any], None]


def register(kind: ReleaseKind) -> None:
    """Add a kind whose mechanism is not in a folder of this package."""
    kinds()[kind.name] = kind


@cache
def kinds() -> dict[str, ReleaseKind]:
    """All kinds by name; folders are looked through once."""
    found: dict[str, ReleaseKind] = {}
    for module in sorted(Path(__file__).parents[1].glob("*/kind.py")):
        kind = import_module(f"canal.{module.parent.name}.kind").KIND
        found[kind.name] = kind
    return found


def kind_of(name: object) -> ReleaseKind:
    """The kind of this name.

    Raises:
        ReleaseError: there is none.
    """
    for kind in kinds().values():
        if kind.name == name:
            return kind
    raise ReleaseError(
        f"a release of kind {name!r} is unknown here; this version reads {', '.join(kinds())}"
    )
