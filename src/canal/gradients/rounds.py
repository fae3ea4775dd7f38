"""The rounds: claim, pay, ask all sites round after round, publish. Each can be cut off and redone.

1. *Pay* for all rounds, before any patient is asked. Sites that are elsewhere pay on their own.
2. *Claim* the folder for exactly these arguments, and fix what its makers say (the record).
3. *Count* the patients, if their number is not public.
4. *Rounds*: the network of this round follows from the sums of earlier ones; every site adds up
   what its patients say; noise is added once; the sum is on disk before the next round begins.
5. *Publish* (`canal.release.publication.publish`): note it in the ledger, destroy the secret, have
   all sites do the same, and only then move the folder to its place.

After `kill -9` anywhere, the same arguments lead to the same bytes and to one charge: a round that
was cut off is the same round again, with the same noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from canal.data.overlap import compare
from canal.errors import ReleaseError
from canal.files import replace_file
from canal.gradients.advice import Advice
from canal.gradients.agreement import AdapterAgreement
from canal.gradients.card import render
from canal.gradients.cohorts import Cohorts, LocalCohorts
from canal.gradients.mechanism import COUNT, COUNT_STEP, Mechanism, Stored
from canal.gradients.plan import AdapterPlan
from canal.gradients.start import Start, settled
from canal.gradients.statement import facts_of, noise_source, stamp, state
from canal.gradients.store import ADAPTERS, TENSOR, AdapterRelease, write_basis
from canal.gradients.update import Trajectory
from canal.privacy.ledger import Ledger
from canal.privacy.randomness import SAMPLER, Secret
from canal.release.agreement import SECRET, digest
from canal.release.charges import charges, check_cohorts, covers
from canal.release.manifest import SOFTWARE, Manifest
from canal.release.noise import Noise
from canal.release.publication import (
    check_protection,
    paid,
    publish,
    secret_of,
    telling,
)
from canal.release.record import About, check_kept, keep
from canal.release.shard import Shard, describe_shard, shard_name, write_shard
from canal.release.workspace import Workspace, charge_key


@dataclass(frozen=True)
class Told:
    """How far the rounds are.

    Args:
        number: rounds done.
        rounds: of all.
        epsilon: what they cost a patient so far; None for a research run.
    """

    number: int
    rounds: int
    epsilon: float | None


def train(
    out: Path | str,
    cohorts: LocalCohorts,
    start: Start,
    plan: AdapterPlan,
    *,
    ledger: Ledger | Path | str | None = None,
    seed: int | None = None,
    not_private: bool = False,
    about: About | None = None,
    report: Callable[[Told], None] = lambda told: None,
) -> AdapterRelease:
    """Make a release of adapters with sites in this process, or finish one that was stopped.

    Args:
        out: folder to publish it in.
        cohorts: all sites; private.
        start: where the rounds begin.
        plan: what is asked for.
        ledger: is charged before any patient is asked; one that is there already. A research run
            is not charged, but asks whether the ledger forbids it.
        seed: of the noise of a research run, which protects nobody and is not charged.
        not_private: must be said to release without noise (allocation `none`).
        about: what its makers say about the release: purpose, contact.
        report: told after every round.
    """
    if isinstance(ledger, Path | str):
        ledger = Ledger(ledger, must_exist=True)
    check_protection(plan, cohorts.names, seed=seed, ledger=ledger, not_private=not_private)
    return aggregate(
        *(out, cohorts, start, plan),
        ledger=ledger,
        seed=seed,
        paired=cohorts.paired,
        about=about,
        overlap=compare(cohorts.contents, start.asked, start.trained_on),
        report=report,
    )


def aggregate(
    out: Path | str,
    cohorts: Cohorts,
    start: Start,
    plan: AdapterPlan,
    *,
    ledger: Ledger | None = None,
    seed: int | None = None,
    paired: bool = False,
    about: About | None = None,
    overlap: Mapping[str, str],
    report: Callable[[Told], None] = lambda told: None,
) -> AdapterRelease:
    """The same with sites that are in this process or elsewhere; those pay from their own ledgers.

    Args:
        out: folder to publish it in.
        cohorts: all sites.
        start: where the rounds begin.
        plan: what is asked for; directions and blocks are those that were found.
        ledger: of the aggregator, if it has one.
        seed: of the noise of a research run.
        paired: the same standard-normal draws for every plan with this seed.
        about: what its makers say about the release: purpose, contact.
        overlap: which images were compared (`canal.data.overlap.compare`).
        report: told after every round.
    """
    local = isinstance(cohorts, LocalCohorts)
    if local and ledger is None and seed is None and plan.allocation != "none":
        raise ReleaseError("sites in this process have no ledger of their own; give one")
    if paired and seed is None:
        raise ReleaseError("noise that protects somebody is never drawn twice; give a seed")
    check_cohorts(cohorts.names, plan.sites)
    workspace = Workspace(Path(out))
    with telling(workspace):
        start = settled(workspace, start)
    plan = start.public.fit(plan)
    if isinstance(cohorts, LocalCohorts):
        cohorts.check(start.views, start.public.basis)
    mechanism = Mechanism.of(plan.calibrate(start.public.weights), start.public)
    start = replace(start, update=Advice().settle(start.update, mechanism))
    noise = SECRET if seed is None else f"seed {seed}{', paired' if paired else ''}"
    agreement = AdapterAgreement(
        plan,
        cohorts.names,
        start.initialisation,
        start.public.to_json(),
        start.update,
        start.views,
        noise,
    )
    claim = agreement.to_json() | {"patients": cohorts.claims}
    about = About() if about is None else about
    with telling(workspace), workspace.open(claim):
        check_kept(workspace.record, about)
        if not workspace.is_published() and not workspace.is_sealed:
            secret = secret_of(workspace, plan, seed)
            run = _Run(
                *(workspace, cohorts, start, agreement, mechanism),
                *(secret, digest(claim), ledger, paired, report),
            )
            receipt = run.pay()
            workspace.claim(claim)
            run.make(receipt, keep(workspace.record, about, overlap))
        publish(workspace, plan, _names(plan.rounds), ledger, cohorts.finish)
    return AdapterRelease.open(workspace.out)


@dataclass(frozen=True)
class _Run:
    """One attempt at a release that is not published yet."""

    workspace: Workspace
    cohorts: Cohorts
    start: Start
    agreement: AdapterAgreement
    mechanism: Mechanism
    secret: Secret
    claim: bytes
    ledger: Ledger | None
    paired: bool
    report: Callable[[Told], None]

    @property
    def plan(self) -> AdapterPlan:
        return self.agreement.plan

    @property
    def private(self) -> bool:
        return self.agreement.private

    @property
    def noise(self) -> Noise | None:
        """The aggregator's own; none where every site adds a share."""
        if self.plan.trust == "secure-sum":
            return None
        return Noise(self.secret, (self.claim,), self.paired)

    def pay(self) -> dict[str, Any] | None:
        """Charge everyone, once; the key tells nothing without the secret."""
        key = charge_key(self.secret, self.claim)
        due = charges(self.mechanism.calibrated, self.cohorts.names) if self.private else []
        if due and self.ledger is not None:
            note = f"adapters {self.workspace.out.name}"
            self.ledger.reserve(
                *(key, due),
                note=note,
                people=self.cohorts.people,
                public=self.start.asked or (),
            )
        self.cohorts.consider(self.agreement, self.mechanism, self.secret, key)
        return paid(key, due, self.ledger) if due else None

    def make(self, receipt: dict[str, Any] | None, record: dict[str, Any]) -> None:
        self.cohorts.begin()
        mechanism, names = self.mechanism, self.cohorts.names
        if receipt is not None and not covers(receipt["charges"], mechanism.calibrated, names):
            raise ReleaseError("this release would cost more than was paid; this is a bug")
        self.workspace.write_down("mechanism", mechanism.to_json())
        patients = self._count(mechanism)
        shards = list(self._rounds(mechanism, patients))
        manifest = self._manifest(mechanism, patients, shards, receipt, record)
        if self.start.public.basis is not None:
            write_basis(self.workspace.staging, self.start.public.basis)
        self.workspace.seal(render(manifest).encode(), manifest.to_bytes())

    def _count(self, mechanism: Mechanism) -> float:
        """N: as it was stated, or counted with noise; at least one."""
        if not self.plan.count:
            return float(self.plan.patients)
        path = self.workspace.statistics
        if not path.is_file():
            parts = self.cohorts.count(mechanism)
            if self.noise is not None:
                stream = self.noise.of_statistic(COUNT)
                parts = int(mechanism.noisy_count.perturb(parts, stream))
            replace_file(path, json.dumps({"patients": parts}).encode())
        parts = int(json.loads(path.read_bytes())["patients"])
        self.cohorts.publish(parts)
        return max(1.0, parts * COUNT_STEP)

    def _rounds(self, mechanism: Mechanism, patients: float) -> Iterator[Shard]:
        """Every round, those that an earlier run finished as they are."""
        warning = stamp(self.plan.allocation, private=self.private)
        course = Trajectory(self.start.values, self.start.update, self.plan.rounds)
        published, found = hashlib.sha256(), None
        for number in range(self.plan.rounds):
            path = self.workspace.staging / shard_name(number, TENSOR)
            if path.is_file():
                shard = describe_shard(path, 1)
            else:
                stored = self._round(mechanism, number, course, found, published.digest())
                shard = write_shard(path, stored[None], warning, TENSOR)
            found = shard.map(path.parent, (self.plan.coordinates,), np.int32)[0]
            published.update(hashlib.sha256(found.tobytes()).digest())
            course.move(mechanism.direction(found, patients))
            self.report(Told(number + 1, self.plan.rounds, self._spent(mechanism, number + 1)))
            yield shard

    def _round(
        self,
        mechanism: Mechanism,
        number: int,
        course: Trajectory,
        latest: Stored | None,
        published: bytes,
    ) -> Stored:
        total = self.cohorts.total(mechanism, number, course.here.float(), latest, published)
        if self.noise is not None:
            stream = self.noise.of_round(number, published)
            total = mechanism.noisy_sum.perturb(total, stream)
        stored: Stored = mechanism.noisy_sum.store(total)
        return stored

    def _spent(self, mechanism: Mechanism, rounds: int) -> float | None:
        if not self.private:
            return None
        return mechanism.calibrated.after(rounds).epsilon(
            self.plan.delta, self.plan.unit, self.plan.conversion
        )

    def _manifest(
        self,
        mechanism: Mechanism,
        patients: float,
        shards: list[Shard],
        receipt: dict[str, Any] | None,
        record: dict[str, Any],
    ) -> Manifest:
        noise = {
            "source": noise_source(self.plan, private=self.secret.private),
            "sampler": SAMPLER.decode(),
        }
        facts = facts_of(mechanism.calibrated, noise, self.cohorts.names)
        measured = self.start.measured
        return Manifest(
            kind=ADAPTERS,
            software=SOFTWARE,
            private=self.private,
            statement=state(mechanism.calibrated, facts),
            plan=self.plan.to_json(),
            statistics=self.start.public.to_json()
            | {"patients": patients, "update": self.start.update.to_json()}
            | ({} if measured is None else {"measured": measured.to_json()}),
            mechanism=mechanism.to_json(),
            participants={
                "cohorts": list(self.cohorts.names),
                "initialisation": self.start.initialisation,
                "views": self.start.views,
            },
            noise=noise,
            ledger=receipt,
            record=record,
            shards=[shard.to_json() for shard in shards],
            rows={name: [number, 0] for number, name in enumerate(_names(len(shards)))},
        )


def _names(rounds: int) -> list[str]:
    """The rows of a manifest."""
    return [f"round {number}" for number in range(rounds)]
