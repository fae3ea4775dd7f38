"""Publishing a release: pay, compute, publish. Each step can be cut off and done again.

1. *Pay* before any private data is read. Sites that are elsewhere are asked whether they would take
   part; each pays from its own ledger once the folder is claimed.
2. *Claim* the folder for exactly these arguments, and fix what its makers say (the record).
3. *Preliminaries*: noisy statistics on which everything else depends.
4. *Steps*: every site contributes, the contributions are summed, the sum gets its noise once, and
   is on disk before the next file begins.
5. *Publish*: commit the charge to the manifest, destroy the secret, have all sites do the same, and
   only then move the folder to its place.

After `kill -9` anywhere, the same arguments lead to the same bytes and to one charge: noise depends
on the secret and on what is released, and on nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from canal.errors import CommittedError, LedgerError, ReleaseError
from canal.files import replace_file
from canal.privacy.ledger import Charge, Ledger, receipt
from canal.privacy.randomness import SAMPLER, Secret
from canal.release.card import render
from canal.release.charges import covers
from canal.release.manifest import SOFTWARE, Manifest
from canal.release.mechanism import (
    Federation,
    LocalFederation,
    Mechanism,
    Noise,
    Published,
    ReleaseSpec,
    Step,
    Sums,
    digest,
    perturbed,
)
from canal.release.plan import ReleasePlan
from canal.release.record import About, check_kept, keep
from canal.release.shard import Shard, describe_shard, read_shard, shard_name, write_shard
from canal.release.statement import Facts, noise_source, stamp, state
from canal.release.workspace import Workspace, charge_key


def publish(
    out: Path | str,
    mechanism: Mechanism,
    federation: Federation,
    *,
    ledger: Ledger | None = None,
    about: About | None = None,
    overlap: Mapping[str, str],
    report: Callable[[Step], None] = lambda step: None,
) -> Path:
    """Make a release, or finish one that was stopped.

    Args:
        out: folder to publish it in.
        mechanism: what is released, and with how much noise.
        federation: all sites, in this process or elsewhere; those pay from their own ledgers.
        ledger: of the aggregator, if it has one.
        about: what its makers say about the release: purpose, contact.
        overlap: which images were compared (`canal.data.overlap.compare`).
        report: told of every step that was published.
    """
    spec = mechanism.spec
    if isinstance(federation, LocalFederation) and spec.private and ledger is None:
        raise ReleaseError("sites in this process have no ledger of their own; give one")
    claim = spec.to_json() | {mechanism.holders: federation.claims}
    workspace = Workspace(Path(out))
    about = About() if about is None else about
    with telling(workspace), workspace.open(claim):
        check_kept(workspace.record, about)
        if not workspace.is_published() and not workspace.is_sealed:
            secret = secret_of(workspace, spec)
            run = _Run(workspace, mechanism, federation, secret, digest(claim), ledger, report)
            charged = run.pay()
            workspace.claim(claim)
            run.make(charged, keep(workspace.record, about, overlap))
        finish(workspace, spec.plan, mechanism.row_names, ledger, federation.finish)
    return workspace.out


@dataclass(frozen=True)
class _Run:
    """One attempt at a release that is not published yet."""

    workspace: Workspace
    mechanism: Mechanism
    federation: Federation
    secret: Secret
    claim: bytes
    ledger: Ledger | None
    report: Callable[[Step], None]

    def pay(self) -> dict[str, Any] | None:
        """Charge everyone, once; the key tells nothing without the secret."""
        key = charge_key(self.secret, self.claim)
        due = self.mechanism.charges() if self.mechanism.spec.private else []
        if due and self.ledger is not None:
            self.mechanism.check_ledger(self.ledger)
            self.ledger.reserve(
                *(key, due),
                note=f"{self.mechanism.note} {self.workspace.out.name}",
                people=self.federation.people,
                public=self.mechanism.public_contents,
            )
        self.federation.prepare(self.mechanism, self.secret, key)
        return paid(key, due, self.ledger) if due else None

    def make(self, charged: dict[str, Any] | None, record: dict[str, Any]) -> None:
        """Compute everything, and seal the folder."""
        self.federation.commit()
        self.workspace.write_down("plan", self.mechanism.stated)
        published = Published(self._statistics())
        due = self.mechanism.settled(published), self.mechanism.spec.cohorts
        if charged is not None and not covers(charged["charges"], *due):
            raise ReleaseError("this release would cost more than was paid; this is a bug")
        self.workspace.write_down("mechanism", self.mechanism.numbers(published))
        if self.mechanism.announces:
            self.federation.announce(published)
        shards = [self._shard(*each, published) for each in enumerate(self.mechanism.shards())]
        self.mechanism.write_more(self.workspace.staging)
        manifest = self._manifest(published, shards, charged, record)
        self.workspace.seal(render(manifest).encode(), manifest.to_bytes())

    @property
    def _noise(self) -> Noise | None:
        """The aggregator's own; None where every site adds a share."""
        if self.mechanism.spec.plan.trust == "secure-sum":
            return None
        return Noise(self.secret, (self.claim,), self.mechanism.spec.paired)

    def _statistics(self) -> dict[str, Any]:
        """Results of the preliminaries: those that are on disk, or new ones."""
        path = self.workspace.statistics
        if not path.is_file():
            nothing, steps = Published(), self.mechanism.preliminaries()
            found: Sums = {}
            for step, sums in zip(steps, self.federation.sums(steps, nothing), strict=True):
                found |= perturbed(self.mechanism, step, sums, nothing, self._noise)
            replace_file(path, json.dumps(self.mechanism.settle(found)).encode())
        return dict(json.loads(path.read_bytes()))

    def _shard(self, number: int, steps: tuple[Step, ...], published: Published) -> Shard:
        """One file of the release; one that an earlier run finished stays as it is."""
        mechanism, spec = self.mechanism, self.mechanism.spec
        path = self.workspace.staging / shard_name(number, mechanism.tensor)
        rows = steps[-1].stop - steps[0].start
        if path.is_file():
            shard = describe_shard(path, rows)
            for step in steps:
                mechanism.passed(step)
        else:
            sums = self.federation.sums(steps, published)
            parts = [
                perturbed(mechanism, step, each, published, self._noise)[mechanism.tensor]
                for step, each in zip(steps, sums, strict=True)
            ]
            warning = stamp(spec.plan.allocation, private=spec.private)
            shard = write_shard(path, np.concatenate(parts), warning, mechanism.tensor)
        if mechanism.adaptive:
            # What later steps follow is what is on disk.
            published.sums += list(read_shard(path, mechanism.tensor))
        for step in steps:
            self.report(step)
        return shard

    def _manifest(
        self,
        published: Published,
        shards: Sequence[Shard],
        charged: dict[str, Any] | None,
        record: dict[str, Any],
    ) -> Manifest:
        mechanism, spec = self.mechanism, self.mechanism.spec
        noise = {
            "source": noise_source(spec.plan, private=self.secret.private),
            "sampler": SAMPLER.decode(),
        }
        facts = Facts.of(spec.plan, noise, spec.cohorts)
        places = [[number, row] for number, shard in enumerate(shards) for row in range(shard.rows)]
        return Manifest(
            kind=mechanism.kind,
            software=SOFTWARE,
            private=spec.private,
            statement=state(mechanism.settled(published), facts),
            plan=spec.plan.to_json(),
            statistics=mechanism.statistics(published),
            mechanism=mechanism.numbers(published),
            participants=mechanism.participants,
            noise=noise,
            ledger=charged,
            record=record,
            shards=[shard.to_json() for shard in shards],
            rows=dict(zip(mechanism.row_names, places, strict=True)),
        )


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
    plan: ReleasePlan,
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


def secret_of(workspace: Workspace, spec: ReleaseSpec) -> Secret:
    """The secret of a private release, or the seed of a research run.

    Args:
        workspace: of the release.
        spec: of the release; under `secure-sum` the sites draw the noise, each with its own secret.
    """
    if spec.seed is not None:
        return Secret.seeded(spec.seed)
    return workspace.secret(of_noise=spec.plan.trust != "secure-sum")


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


def finish(
    workspace: Workspace,
    plan: ReleasePlan,
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
