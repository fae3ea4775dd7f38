"""Steps that every release takes, whatever it holds: errors in one sentence, paying, publishing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from canal.errors import CommittedError, LedgerError, ReleaseError
from canal.privacy.ledger import Charge, Ledger, receipt
from canal.privacy.randomness import Secret
from canal.release.manifest import Manifest
from canal.release.registry import AnyPlan
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
    plan: AnyPlan,
    cohorts: Sequence[str],
    *,
    seed: int | None,
    ledger: Ledger | None,
    not_private: bool,
) -> None:
    """Refuse a release of sites in this process that protects nobody, or charges nobody, silently.

    Args:
        plan: of any kind.
        cohorts: who take part.
        seed: of a research run.
        ledger: to be charged; also asked where nothing is charged, since it may forbid that.
        not_private: whether it was said that nobody is to be protected.
    """
    if ledger is not None:
        noiseless = plan.allocation == "none"
        ledger.check_allowed(cohorts, seeded=seed is not None, noiseless=noiseless)
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


def secret_of(workspace: Workspace, plan: AnyPlan, seed: int | None) -> Secret:
    """The secret of a private release, or the seed of a research run.

    Args:
        workspace: of the release.
        plan: of any kind; under `secure-sum` the sites draw the noise, each with its own secret.
        seed: of a research run.
    """
    if seed is not None:
        return Secret.seeded(seed)
    return workspace.secret(of_noise=plan.trust != "secure-sum")


def paid(key: str, due: Sequence[Charge], ledger: Ledger | None) -> dict[str, Any]:
    """What a manifest says of the charges.

    Args:
        key: that they were made under.
        due: all of them.
        ledger: that was charged, if it is here. What the ledgers of sites elsewhere hold beside
            these charges stays with the sites.
    """
    entries = [
        {"cohort": each.cohort, "unit": each.unit, "rho": each.rho, "draws": each.draws}
        for each in due
    ]
    more = {"head": None, "totals": []} if ledger is None else receipt(ledger.rows(), key)
    return {"key": key, "charges": entries} | more


def publish(
    workspace: Workspace,
    plan: AnyPlan,
    rows: Sequence[str],
    ledger: Ledger | None,
    tell: Callable[[Manifest], None],
) -> None:
    """Take a sealed release to its place, in the one order in which that is done.

    1. The ledger commits the charge to the digest of the manifest. A copy of the private folder
       that came to other bytes is refused here: one charge pays for one content.
    2. The aggregator's secret is destroyed. All noise was drawn, so nothing needs it any more, and
       what follows may wait for a site that is away.
    3. Every site is told: it checks the manifest, commits its own charge, destroys its own secrets.
    4. The folder is moved to its place, in one step.

    So what is public is never there together with a key of its noise. Each step can be cut off and
    done again: the sealed folder is all that is needed. For a release that is in its place already
    the same is done, and changes nothing.

    Args:
        workspace: opened; the release is sealed there, or in its place.
        plan: that it must be of.
        rows: names of its rows.
        ledger: that was charged, if it is here.
        tell: tells every site what is published.

    Raises:
        ReleaseError: another release is in the place, or was paid with this charge.
    """
    published, manifest = workspace.is_published(), workspace.manifest()
    foreign = workspace.is_sealed or workspace.key_left() is not None
    known = (manifest.plan, list(manifest.rows)) == (plan.to_json(), list(rows))
    if (published and foreign) or not known:
        raise ReleaseError(
            f"{workspace.out} holds a release that is not ours; choose another --out"
        )
    workspace.refuse_exposed()
    try:
        _commit(ledger, manifest)
    except CommittedError as error:
        # Its noise is that of another release: nothing of it may be left, the key least of all.
        if not published:
            workspace.finish()
        raise ReleaseError(
            f"{workspace.out.name} was released before with other content, from a copy of "
            f"{workspace.private}; use that one, or choose another --out, which is charged anew"
        ) from error
    workspace.destroy()
    tell(manifest)
    if not published:
        workspace.publish()
    workspace.finish()


def _commit(ledger: Ledger | None, manifest: Manifest) -> None:
    """Note in the ledger what is published for a charge."""
    if ledger is None or manifest.ledger is None:
        return
    key = manifest.ledger["key"]
    if not any(row.key == key for row in ledger.rows()):
        raise LedgerError(
            f"this release was not charged to {ledger.path}; give the ledger that was, with "
            "--ledger"
        )
    ledger.commit(key, note=manifest.digest)
