"""Steps that every release takes, whatever it holds: errors in one sentence, paying, committing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from canal.errors import LedgerError, ReleaseError
from canal.privacy.ledger import Charge, Ledger
from canal.privacy.randomness import Secret
from canal.release.conditions import Noisy
from canal.release.manifest import Manifest
from canal.release.workspace import Workspace


@contextmanager
def telling(workspace: Workspace) -> Iterator[None]:
    """What the system refuses, in one sentence with the way out."""
    try:
        yield
    except OSError as error:
        raise ReleaseError(
            f"cannot write {error.filename or workspace.out}: {error.strerror or error}; mend that "
            "and run the same command again: it goes on where it stopped, and pays nothing twice"
        ) from error


def check_protection(
    plan: Noisy, *, seed: int | None, ledger: Ledger | None, not_private: bool
) -> None:
    """Refuse a release of sites in this process that protects nobody, or charges nobody, silently.

    Args:
        plan: of any kind.
        seed: of a research run.
        ledger: to be charged.
        not_private: whether it was said that nobody is to be protected.
    """
    if plan.trust == "secure-sum" and seed is None:
        raise ReleaseError(
            "sites in one process have nothing to hide from it; a secure sum is for sites that are "
            "apart (`canal federation`), or give a seed to rehearse it"
        )
    if plan.allocation == "none" and not not_private:
        raise ReleaseError(
            "allocation none adds no noise and protects nobody; say --not-private if that is meant"
        )
    if seed is None and plan.allocation != "none" and ledger is None:
        raise ReleaseError(
            "a private release is charged to a ledger; give one, or a seed for a research run"
        )


def secret_of(workspace: Workspace, seed: int | None) -> Secret:
    """The secret of a private release, or the seed of a research run."""
    return workspace.secret() if seed is None else Secret.seeded(seed)


def paid(key: str, due: Sequence[Charge]) -> dict[str, Any]:
    """What a manifest says of the charges."""
    entries = [
        {"cohort": each.cohort, "unit": each.unit, "rho": each.rho, "draws": each.draws}
        for each in due
    ]
    return {"key": key, "charges": entries}


def check_unpublished(ledger: Ledger | None, manifest: Manifest) -> None:
    """Refuse to publish something else under a key that is committed already."""
    if ledger is None or manifest.ledger is None:
        return
    for row in ledger.rows():
        other = row.action == "commit" and row.note != manifest.digest
        if other and row.key == manifest.ledger["key"]:
            raise ReleaseError("this was released before with other content; make it anew")


def commit(ledger: Ledger | None, manifest: Manifest) -> None:
    """Note in the ledger what was published for a charge."""
    if ledger is None or manifest.ledger is None:
        return
    key = manifest.ledger["key"]
    if not any(row.key == key for row in ledger.rows()):
        raise LedgerError(
            f"this release was not charged to {ledger.path}; give the ledger that was, with "
            "--ledger"
        )
    ledger.commit(key, note=manifest.digest)
