"""Releases of either kind, features or adapters: the manifest says who is to open a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from canal.errors import ReleaseError
from canal.features import verification as features
from canal.features.store import Release
from canal.gradients import verification as adapters
from canal.gradients.store import ADAPTERS, AdapterRelease
from canal.privacy.ledger import Ledger
from canal.release.account import account as price_features
from canal.release.checks import Check
from canal.release.manifest import Manifest
from canal.release.recompute import PublicInputs, not_recomputed
from canal.release.verdict import Verdict

AnyRelease = Release | AdapterRelease


def open_release(path: Path | str) -> AnyRelease:
    """Open a release folder.

    Raises:
        ReleaseError: no release, or a damaged one.
    """
    kind = AdapterRelease if Manifest.read(Path(path)).kind == ADAPTERS else Release
    return kind.open(path)


def verify(
    path: Path | str, ledger: Ledger | None = None, public: PublicInputs | None = None
) -> list[Check]:
    """Check everything of a release that can be checked.

    Args:
        path: the release folder.
        ledger: that was charged, where the reader has it.
        public: initialisation and recipient's images, where the reader has them: what is public
            is computed again.
    """
    path = Path(path)
    try:
        kind = Manifest.read(path).kind
    except ReleaseError:
        kind = ""  # the check of the manifest tells what is wrong
    check = adapters.verify if kind == ADAPTERS else features.verify
    return check(path, ledger, public)


def verdict(
    path: Path | str, ledger: Ledger | None = None, public: PublicInputs | None = None
) -> Verdict:
    """Check everything of a release that can be checked, and say what follows for a patient.

    Args:
        path: the release folder.
        ledger: that was charged, where the reader has it.
        public: initialisation and recipient's images, where the reader has them.
    """
    checks = verify(path, ledger, public)
    try:
        manifest = Manifest.read(Path(path))
    except ReleaseError:  # a check says so
        return Verdict(checks, None)
    if public is None:
        checks.append(not_recomputed(manifest))
    return Verdict(checks, manifest)


def check_statement(release: AnyRelease) -> None:
    """Derive everything that a release promises from its plan and what it published.

    Raises:
        ReleaseError: something does not follow, or could not have been released.
    """
    if isinstance(release, AdapterRelease):
        adapters.check_statement(release.manifest)
    else:
        features.check_statement(release.manifest)


def check_contents(release: AnyRelease) -> None:
    """Check what a reader relies on, before anything is read from it: digests and statement.

    Raises:
        ReleaseError: a file was changed, or something stated does not follow.
    """
    if isinstance(release, AdapterRelease):
        adapters.check_contents(release)
    else:
        features.check_contents(release)


def account(release: AnyRelease, delta: float | None = None) -> dict[str, Any]:
    """Price a release again from its plan, once its statement was checked.

    Args:
        release: an opened one.
        delta: another than the plan's.
    """
    if isinstance(release, AdapterRelease):
        return adapters.account(release, delta)
    return price_features(release, delta)
