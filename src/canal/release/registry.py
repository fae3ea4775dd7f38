"""The kinds of release, each of which the folder of its mechanism provides.

A sub-package of `canal` with a module `kind` has a `ReleaseKind` there, under the name `KIND`; a
mechanism outside of this package is added with `register`. All other code asks a release for its
kind, and the kind for what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from canal.errors import InvalidValueError, RefusalError, ReleaseError

if TYPE_CHECKING:
    from canal.release.card import CardParts
    from canal.release.checks import Checks
    from canal.release.manifest import Manifest
    from canal.release.mechanism import Federation, Mechanism, ReleaseSpec, SitePart, Step
    from canal.release.noise_check import Alike, Sums, Zeros
    from canal.release.recompute import PublicInputs
    from canal.release.statement import Facts, Wording
    from canal.release.store import Folder
    from canal.release.verification import Derived
    from canal.release.worst_case import WorstCase

T = TypeVar("T")


_NOTHING_PUBLIC = "none: all that is published beside the plan has noise"


def _nothing_public(checks: Checks, release: Folder, public: PublicInputs) -> None:  # noqa: ARG001
    checks.skip("public inputs", _NOTHING_PUBLIC)


def _only_here(*_: Any) -> Any:
    raise RefusalError("a release of this kind is made in one process, and not across hosts")


def _not_audited(release: Folder, calibrated: Any) -> Any:  # noqa: ARG001
    raise InvalidValueError(
        f"{release.path} is a release of {release.kind}, whose mechanism provides no worst case to "
        "audit"
    )


@dataclass(frozen=True)
class ReleaseKind:
    """What one mechanism adds to what any release is.

    Args:
        name: in a manifest.
        wording: what only this kind says in a statement about a calibrated plan.
        open: a folder and its manifest, as a reader sees them.
        derive: the numbers of a manifest, from its plan and its published statistics.
        noise_looks: what is to be seen of the noise in a folder: all looks, and some of them by
            what they see.
        card: what only this kind shows on the card of a manifest.
        alike: what in a folder should have noise of its own.
        recompute: computes again what is public, and adds a check for everything.
        not_recomputed: what is to be said where the reader has no public inputs.
        spec_from_json: the reverse of `ReleaseSpec.to_json`; like all that follows, for sites that
            are elsewhere.
        introduce: what a site shows of itself, and all must have in common, from its cohort and
            what the aggregator wants.
        claim: what determines the contributions of a site, likewise; private.
        at_site: a site's part in a release, from the spec and its cohort.
        job: the mechanism that an order asks for, and all sites that take part.
        needs: what an order must name for it.
        worst_case: neighbouring worlds for an audit, from a release and its calibrated plan.
    """

    name: str
    wording: Callable[[Any, Facts], Wording]
    open: Callable[[Path, Manifest], Folder]
    derive: Callable[[Manifest], Derived]
    noise_looks: Callable[[Any], tuple[list[Sums | Zeros], dict[str, list[Sums]]]]
    card: Callable[[Manifest], CardParts]
    alike: Callable[[Any], list[Alike]] = lambda release: []
    recompute: Callable[[Checks, Any, PublicInputs], None] = _nothing_public
    not_recomputed: Callable[[Manifest], str] = lambda manifest: _NOTHING_PUBLIC
    spec_from_json: Callable[[Any], ReleaseSpec] = _only_here
    introduce: Callable[[Any, Any], dict[str, Any]] = _only_here
    claim: Callable[[Any, Any], list[str]] = _only_here
    at_site: Callable[[Any, Any], SitePart] = _only_here
    job: Callable[[Any, Any, Callable[[int], None]], Job] = _only_here
    needs: tuple[str, ...] = ()
    worst_case: Callable[[Any, Any], WorstCase] = _not_audited


@dataclass(frozen=True)
class Job:
    """A release that was ordered, ready to be made.

    Args:
        mechanism: what is released.
        federation: all sites.
        overlap: which images were compared (`canal.data.overlap.compare`).
        report: told of every step that was published.
    """

    mechanism: Mechanism
    federation: Federation
    overlap: Mapping[str, str]
    report: Callable[[Step], None] = lambda step: None


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


def of_kind(table: Mapping[str, T], release: Folder, what: str) -> T:
    """The entry of a table for the kind of a release.

    Args:
        table: by the names of kinds.
        release: whose kind it is.
        what: the entries are.

    Raises:
        ReleaseError: there is none for this kind.
    """
    if release.kind not in table:
        raise ReleaseError(
            f"{release.path} is a release of {release.kind}, which has no {what}; {what}s are for "
            f"{' and '.join(table)}"
        )
    return table[release.kind]
