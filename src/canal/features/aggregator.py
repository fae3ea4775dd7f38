"""The aggregator: claims, pays, draws, publishes. Each step can be cut off and done again.

1. *Pay*: the ledger is charged before any private tensor is read. Sites that are elsewhere are
   asked whether they would; each pays from its own ledger once the folder is claimed.
2. *Claim* the folder for exactly these arguments, and fix what its makers say (the record).
3. *Statistics*, with the noise that the plan fixed; every other sigma follows from them and is
   written down.
4. *One pass* over the queries, shard by shard.
5. *Publish* (`canal.release.publication.publish`): note it in the ledger, destroy the secret, have
   all sites do the same, and only then move the folder to its place.

After `kill -9` anywhere the same arguments lead to the same bytes and to one charge: noise depends
on the secret and on what is released, and on nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from canal.data import overlap
from canal.errors import LedgerError, ReleaseError
from canal.features.calibration import CalibratedPlan
from canal.features.ensemble import Ensemble
from canal.features.mechanism import Mechanism
from canal.features.options import Options
from canal.features.plan import Plan, check_plan
from canal.features.queries import Queries
from canal.features.rows import make_rows
from canal.features.sites import LocalSites, Sites
from canal.features.statistics import Statistics, compute
from canal.features.store import FEATURES, Release
from canal.files import replace_file
from canal.privacy.ledger import Ledger
from canal.privacy.randomness import SAMPLER, Secret
from canal.release.agreement import SECRET, Agreement, digest
from canal.release.card import render
from canal.release.charges import QUERIES, charges, covers
from canal.release.conditions import noise_source
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
from canal.release.shard import ROWS, Shard, describe_shard, shard_name, write_shard
from canal.release.statement import Facts, stamp, state
from canal.release.workspace import Workspace, charge_key


def passes(plan: Plan) -> int:
    """How many images pass through networks in all; for progress."""
    people = plan.participants
    networks = people.teachers
    for source, count in (("private", people.teachers), ("public", 1)):
        networks += count if source in plan.sources.values() else 0
    return networks * people.queries


def create(
    out: Path | str,
    ensemble: Ensemble,
    queries: Queries,
    plan: Plan,
    *,
    ledger: Ledger | Path | str | None = None,
    seed: int | None = None,
    not_private: bool = False,
    about: About | None = None,
    options: Options | None = None,
) -> Release:
    """Make a release, or finish one that was stopped.

    Args:
        out: folder to publish it in.
        ensemble: the teachers; private.
        queries: the recipient's images.
        plan: what is asked for.
        ledger: is charged before anything is read; one that is there already. A research run is
            not charged, but asks whether the ledger forbids it.
        seed: of the noise of a research run, which protects nobody and is not charged.
        not_private: must be said to release without noise (allocation `none`).
        about: what its makers say about the release: purpose, contact.
        options: what cannot change a guarantee.
    """
    options = Options() if options is None else options
    if isinstance(ledger, Path | str):
        ledger = Ledger(ledger, must_exist=True)
    check_protection(plan, ensemble.cohorts, seed=seed, ledger=ledger, not_private=not_private)
    for pair in ensemble.alike:
        options.on_alike(*pair)
    sites = LocalSites(ensemble, queries, options)
    return aggregate(
        *(out, sites, queries, plan),
        ledger=ledger,
        seed=seed,
        about=about,
        overlap=ensemble.compare(queries),
        options=options,
    )


def aggregate(
    out: Path | str,
    sites: Sites,
    queries: Queries,
    plan: Plan,
    *,
    ledger: Ledger | None = None,
    seed: int | None = None,
    about: About | None = None,
    overlap: Mapping[str, str],
    options: Options,
) -> Release:
    """The same with sites that are in this process or elsewhere; those pay from their own ledgers.

    Args:
        out: folder to publish it in.
        sites: who hold the teachers.
        queries: the recipient's images.
        plan: what is asked for.
        ledger: of the aggregator, if it has one.
        seed: of the noise of a research run.
        about: what its makers say about the release: purpose, contact.
        overlap: which images were compared (`canal.data.overlap.compare`).
        options: what cannot change a guarantee.
    """
    check_plan(plan, sites.cohorts)
    check_fit(plan, sites, queries)
    if options.paired and seed is None:
        raise ReleaseError("noise that protects somebody is never drawn twice; give a seed")
    agreement = Agreement(
        plan,
        sites.cohorts,
        sites.initialisation,
        sites.layer,
        tuple(zip(queries.ids, queries.contents, strict=True)),
        SECRET if seed is None else f"seed {seed}{', paired' if options.paired else ''}",
    )
    claim = agreement.to_json() | {"teachers": sites.claims}
    workspace = Workspace(Path(out))
    about = About() if about is None else about
    with telling(workspace), workspace.open(claim):
        check_kept(workspace.record, about)
        if not workspace.is_published() and not workspace.is_sealed:
            secret = secret_of(workspace, plan, seed)
            run = _Run(workspace, sites, queries, agreement, secret, digest(claim), ledger, options)
            receipt = run.pay()
            workspace.claim(claim)
            run.make(receipt, keep(workspace.record, about, overlap))
        publish(workspace, plan, queries.ids, ledger, sites.finish)
    return Release.open(workspace.out)


def check_fit(plan: Plan, sites: Sites, queries: Queries) -> None:
    """Refuse teachers and queries that are not those of the plan."""
    people = plan.participants
    if people.queries != len(queries.ids):
        raise ReleaseError(
            f"the plan is for {people.queries} queries, but there are {len(queries.ids)}"
        )
    if people.images_per_person < queries.images_per_person:
        raise ReleaseError(
            f"the plan counts {people.images_per_person} images of one person, but one person has "
            f"{queries.images_per_person} among the queries; give --images-per-person"
        )
    if sites.trained_initialisation and not plan.trained_initialisation:
        raise ReleaseError(
            "the shared initialisation was, or may have been, trained on the queries; the plan "
            "must say so (trained_initialisation)"
        )
    if not queries.arrays.labelled.any():
        raise ReleaseError(
            "no query has a label, and importance is the gradient of a loss; label a few of them"
        )
    shape = sites.shape(queries.arrays.images.shape[1], queries.arrays.images.shape[2:])
    if shape != (plan.channels, plan.grid):
        raise ReleaseError(
            f"the plan is for {plan.channels} channels of {plan.grid}, the teachers have "
            f"{shape[0]} of {shape[1]}"
        )
    if "public" in plan.sources.values() and sites.shared is None:
        raise ReleaseError(
            "public caps or importance are read from the shared initialisation; give it with "
            "--init, or take --caps-source private and --importance-source private"
        )


def check_queries(ledger: Ledger, calibrated: CalibratedPlan) -> None:
    """Refuse a plan that gives the query images up, where they have a budget."""
    have = {(row.cohort, row.unit) for row in ledger.rows() if row.action == "budget"}
    if (QUERIES, "image") in have and math.isinf(calibrated.guarantee.rho("image")):
        raise LedgerError(
            f"cohort {QUERIES!r} has a budget of unit image, but this plan publishes what is read "
            "from the query images in the clear; take private caps and importance, and an "
            "initialisation that was not trained on the queries"
        )


@dataclass(frozen=True)
class _Run:
    """One attempt at a release that is not published yet."""

    workspace: Workspace
    sites: Sites
    queries: Queries
    agreement: Agreement
    secret: Secret
    claim: bytes
    ledger: Ledger | None
    options: Options

    @property
    def plan(self) -> Plan:
        return self.agreement.plan

    @property
    def private(self) -> bool:
        return self.agreement.private

    @property
    def noise(self) -> Noise | None:
        """The aggregator's own; none where every site adds a share."""
        if self.plan.trust == "secure-sum":
            return None
        return Noise(self.secret, (self.claim,), self.options.paired)

    def make(self, receipt: dict[str, Any] | None, record: dict[str, Any]) -> None:
        self.sites.begin()
        self.workspace.write_down("plan", self.plan.calibrate().to_json())
        statistics = self._statistics()
        calibrated = self.plan.calibrate(statistics.weights(self.plan))
        cohorts = self.sites.cohorts
        if receipt is not None and not covers(receipt["charges"], calibrated, cohorts):
            raise ReleaseError("this release would cost more than was paid; this is a bug")
        mechanism = Mechanism.of(calibrated, statistics)
        self.workspace.write_down("mechanism", mechanism.to_json())
        self.sites.publish(statistics)
        shards = list(self._shards(mechanism, statistics))
        manifest = self._manifest(mechanism, statistics, shards, receipt, record)
        self.workspace.seal(render(manifest).encode(), manifest.to_bytes())

    def pay(self) -> dict[str, Any] | None:
        """Charge everyone, once; the key tells nothing without the secret."""
        key = charge_key(self.secret, self.claim)
        if not self.private:
            self.sites.consider(self.agreement, self.secret, key)
            return None
        flat = self.plan.calibrate()
        due = charges(flat, self.sites.cohorts)
        if self.ledger is not None:
            check_queries(self.ledger, flat)
            self.ledger.reserve(
                *(key, due),
                note=f"release {self.workspace.out.name}",
                people=self.sites.people,
                public=overlap.digests(self.queries.arrays),
            )
        self.sites.consider(self.agreement, self.secret, key)
        return paid(key, due, self.ledger)

    def _statistics(self) -> Statistics:
        """Caps and importance: those that were drawn before, or drawn now."""
        path = self.workspace.statistics
        if path.is_file():
            return Statistics.from_json(json.loads(path.read_bytes()))
        calibrated = self.plan.calibrate()
        made = compute(
            calibrated,
            self.queries,
            lambda names: self.sites.sums(calibrated, names),
            self.sites.shared,
            self.noise,
            progress=self.options.progress,
        )
        replace_file(path, json.dumps(made.to_json()).encode())
        return made

    def _shards(self, mechanism: Mechanism, statistics: Statistics) -> Iterator[Shard]:
        """Every shard, those that an earlier run finished as they are."""
        warning = stamp(self.plan.allocation, private=self.private)
        noise = None if self.noise is None else self.noise.after(statistics)
        for number, start in enumerate(range(0, len(self.queries.ids), ROWS)):
            stop = min(start + ROWS, len(self.queries.ids))
            path = self.workspace.staging / shard_name(number)
            if path.is_file():
                self.options.progress((stop - start) * len(self.sites.cohorts))
                yield describe_shard(path, stop - start)
            else:
                summed = self.sites.totals(mechanism, start, stop)
                rows = make_rows(mechanism, summed, self.queries, noise, start=start)
                yield write_shard(path, np.stack(list(rows)), warning)

    def _manifest(
        self,
        mechanism: Mechanism,
        statistics: Statistics,
        shards: list[Shard],
        receipt: dict[str, Any] | None,
        record: dict[str, Any],
    ) -> Manifest:
        calibrated = mechanism.calibrated
        source = noise_source(self.plan, private=self.secret.private)
        noise = {"source": source, "sampler": SAMPLER.decode()}
        facts = Facts(
            private=self.private,
            noise=noise["source"],
            sampler=noise["sampler"],
            lattice_step=mechanism.lattice.step,
            cohorts=self.sites.cohorts,
        )
        return Manifest(
            kind=FEATURES,
            software=SOFTWARE,
            private=self.private,
            statement=state(calibrated, facts),
            plan=self.plan.to_json(),
            statistics=statistics.to_json(),
            mechanism=mechanism.to_json(),
            participants={
                "cohorts": list(self.sites.cohorts),
                "initialisation": self.sites.initialisation,
                "tap": self.sites.layer,
            },
            noise=noise,
            ledger=receipt,
            record=record,
            shards=[shard.to_json() for shard in shards],
            rows={name: [row // ROWS, row % ROWS] for row, name in enumerate(self.queries.ids)},
        )
