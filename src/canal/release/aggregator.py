"""The aggregator: claims, pays, draws, publishes. Each step can be cut off and done again.

1. *Pay*: the ledger is charged before any private tensor is read.
2. *Claim* the folder for exactly these arguments.
3. *Statistics*, with the noise that the plan fixed; every other sigma follows from them and is
   written down.
4. *One pass* over the queries, shard by shard.
5. *Publish* in one step, note it in the ledger, destroy the secret.

After `kill -9` anywhere the same arguments lead to the same bytes and to one charge: noise depends
on the secret and on what is released, and on nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from canal.errors import LedgerError, ReleaseError
from canal.files import replace_file
from canal.privacy.ledger import Ledger
from canal.privacy.randomness import SAMPLER, Secret, Stream
from canal.release.card import render
from canal.release.charges import charges, check_queries, covers
from canal.release.conditions import NO_NOISE, check_fit, check_plan
from canal.release.ensemble import Ensemble
from canal.release.manifest import CARD, MANIFEST, SOFTWARE, Manifest
from canal.release.mechanism import Mechanism
from canal.release.plan import Plan
from canal.release.queries import Queries
from canal.release.rows import make_rows
from canal.release.shard import ROWS, Shard, describe_shard, shard_name, write_shard
from canal.release.statement import Facts, stamp, state
from canal.release.statistics import Statistics, compute
from canal.release.store import Release
from canal.release.workspace import Workspace, digest

Broken = Literal["refuse", "zero"]


@dataclass(frozen=True)
class Options:
    """What cannot change a guarantee.

    Args:
        broken: when a teacher gives NaN or infinity for a query: stop, or let it contribute zero
            (the divisor stays K). The mechanism is the same either way.
        on_broken: told cohort and query where it contributed zero; for the aggregator's eyes.
        progress: called with the number of images that passed through a network.
        paired: in a research run, the same standard-normal draws for every plan with this seed,
            of statistics and of features, so that the arms of an experiment differ in their sigmas
            alone.
    """

    broken: Broken = "refuse"
    on_broken: Callable[[str, str], None] = lambda cohort, query: None
    progress: Callable[[int], None] = lambda count: None
    paired: bool = False

    def check(self, cohort: str, query: str) -> None:
        """A network gave NaN or infinity."""
        if self.broken == "refuse":
            raise ReleaseError(
                f"the teacher of {cohort!r} returns NaN or infinity for query {query!r}; let it "
                "say nothing there with --broken-teacher zero (the divisor stays K, and nothing is "
                "charged again), or make another release with another teacher, charged anew"
            )
        self.on_broken(cohort, query)


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
    options: Options | None = None,
) -> Release:
    """Make a release, or finish one that was stopped.

    Args:
        out: folder to publish it in.
        ensemble: the teachers; private.
        queries: the recipient's images.
        plan: what is asked for.
        ledger: is charged before anything is read; one that is there already.
        seed: of the noise of a research run, which protects nobody and is not charged.
        not_private: must be said to release without noise (allocation `none`).
        options: what cannot change a guarantee.
    """
    options = Options() if options is None else options
    if isinstance(ledger, Path | str):
        ledger = Ledger(ledger, must_exist=True)
    check_plan(plan, ensemble.cohorts)
    check_fit(plan, ensemble, queries)
    if plan.allocation == "none" and not not_private:
        raise ReleaseError(
            "allocation none adds no noise and protects nobody; say --not-private if that is meant"
        )
    if seed is None and plan.allocation != "none" and ledger is None:
        raise ReleaseError(
            "a private release is charged to a ledger; give one, or a seed for a research run"
        )
    if options.paired and seed is None:
        raise ReleaseError("noise that protects somebody is never drawn twice; give a seed")
    claim = {
        "plan": plan.to_json(),
        "teachers": ensemble.claims,
        "initialisation": ensemble.initialisation,
        "queries": dict(zip(queries.ids, queries.contents, strict=True)),
        "noise": "secret" if seed is None else f"seed {seed}{', paired' if options.paired else ''}",
    }
    workspace = Workspace(Path(out))
    with _telling(workspace), workspace.open(claim):
        if not workspace.is_published():
            secret = workspace.secret() if seed is None else Secret.seeded(seed)
            run = _Run(workspace, ensemble, queries, plan, secret, digest(claim), ledger, options)
            paid = run.pay()
            workspace.claim(claim)
            run.make(paid)
        release = Release.open(workspace.out)
        if (release.manifest.plan, list(release.ids)) != (plan.to_json(), list(queries.ids)):
            raise ReleaseError(f"{out} holds a release that is not ours; choose another --out")
        if release.manifest.ledger is not None and ledger is not None:
            _commit(ledger, release.manifest.ledger["key"], release.manifest.digest)
        workspace.finish()
    return release


def _commit(ledger: Ledger, key: str, manifest: str) -> None:
    if not any(row.key == key for row in ledger.rows()):
        raise LedgerError(
            f"this release was not charged to {ledger.path}; give the ledger that was, with "
            "--ledger"
        )
    ledger.commit(key, note=manifest)


@dataclass(frozen=True)
class _Run:
    """One attempt at a release that is not published yet."""

    workspace: Workspace
    ensemble: Ensemble
    queries: Queries
    plan: Plan
    secret: Secret
    claim: bytes
    ledger: Ledger | None
    options: Options

    @property
    def private(self) -> bool:
        return self.secret.private and self.plan.allocation != "none"

    def make(self, paid: dict[str, Any] | None) -> None:
        self.workspace.write_down("plan", self.plan.calibrate().to_json())
        statistics = self._statistics()
        calibrated = self.plan.calibrate(statistics.weights(self.plan))
        cohorts = self.ensemble.cohorts
        if paid is not None and not covers(paid["charges"], calibrated, cohorts):
            raise ReleaseError("this release would cost more than was paid; this is a bug")
        mechanism = Mechanism.of(calibrated, statistics)
        self.workspace.write_down("mechanism", mechanism.to_json())
        shards = list(self._shards(mechanism, statistics))
        manifest = self._manifest(mechanism, statistics, shards, paid)
        self.check_unpublished(manifest)
        staging = self.workspace.staging
        replace_file(staging / CARD, render(manifest).encode())
        replace_file(staging / MANIFEST, manifest.to_bytes())
        self.workspace.publish()

    def pay(self) -> dict[str, Any] | None:
        """Charge everyone, once; the key tells nothing without the secret."""
        if not self.private or self.ledger is None:
            return None
        flat = self.plan.calibrate()
        check_queries(self.ledger, flat)
        key = self.secret.key(b"ledger", self.claim).hex()
        due = charges(flat, self.ensemble.cohorts)
        self.ledger.reserve(key, due, note=f"release {self.workspace.out.name}")
        entries = [
            {"cohort": each.cohort, "unit": each.unit, "rho": each.rho, "draws": each.draws}
            for each in due
        ]
        return {"key": key, "charges": entries}

    def check_unpublished(self, manifest: Manifest) -> None:
        """Refuse to publish something else under a key that is committed already."""
        if self.ledger is None or manifest.ledger is None:
            return
        for row in self.ledger.rows():
            other = row.action == "commit" and row.note != manifest.digest
            if other and row.key == manifest.ledger["key"]:
                raise ReleaseError("this was released before with other content; make it anew")

    def _statistics(self) -> Statistics:
        """Caps and importance: those that were drawn before, or drawn now."""
        path = self.workspace.statistics
        if path.is_file():
            return Statistics.from_json(json.loads(path.read_bytes()))
        made = compute(
            self.plan.calibrate(),
            self.queries,
            [(teacher.cohort, teacher.tap) for teacher in self.ensemble.teachers],
            self.ensemble.shared,
            lambda name: Stream(self.secret.key(b"statistic", *self._context(), name.encode())),
            check=self.options.check,
            progress=self.options.progress,
        )
        replace_file(path, json.dumps(made.to_json()).encode())
        return made

    def _shards(self, mechanism: Mechanism, statistics: Statistics) -> Iterator[Shard]:
        """Every shard, those that an earlier run finished as they are."""
        warning = stamp(mechanism.calibrated, private=self.private)
        published = hashlib.sha256(json.dumps(statistics.to_json()).encode()).digest()
        context = self._context(published)
        for number, start in enumerate(range(0, len(self.queries.ids), ROWS)):
            stop = min(start + ROWS, len(self.queries.ids))
            path = self.workspace.staging / shard_name(number)
            if path.is_file():
                self.options.progress((stop - start) * len(self.ensemble.teachers))
                yield describe_shard(path, stop - start)
            else:
                rows = make_rows(
                    mechanism,
                    self.ensemble,
                    self.queries,
                    self.secret,
                    context,
                    start=start,
                    stop=stop,
                    broken=lambda cohort, row: self.options.check(cohort, self.queries.ids[row]),
                    progress=self.options.progress,
                )
                yield write_shard(path, np.stack(list(rows)), warning)

    def _context(self, *published: bytes) -> tuple[bytes, ...]:
        """What noise depends on beside what it is added to: everything, unless arms are paired."""
        if self.options.paired and not self.secret.private:
            return ()
        return self.claim, *published

    def _manifest(
        self,
        mechanism: Mechanism,
        statistics: Statistics,
        shards: list[Shard],
        paid: dict[str, Any] | None,
    ) -> Manifest:
        calibrated = mechanism.calibrated
        noise = {"source": self._noise_source(), "sampler": SAMPLER.decode()}
        facts = Facts(
            private=self.private,
            noise=noise["source"],
            sampler=noise["sampler"],
            lattice_step=mechanism.lattice.step,
            cohorts=self.ensemble.cohorts,
        )
        return Manifest(
            software=SOFTWARE,
            private=self.private,
            statement=state(calibrated, facts),
            plan=self.plan.to_json(),
            statistics=statistics.to_json(),
            mechanism=mechanism.to_json(),
            participants={
                "cohorts": list(self.ensemble.cohorts),
                "initialisation": self.ensemble.initialisation,
                "tap": self.ensemble.teachers[0].tap.layer,
            },
            noise=noise,
            ledger=paid,
            shards=[shard.to_json() for shard in shards],
            images={name: [row // ROWS, row % ROWS] for row, name in enumerate(self.queries.ids)},
        )

    def _noise_source(self) -> str:
        return NO_NOISE if self.plan.allocation == "none" else self.secret.source


@contextmanager
def _telling(workspace: Workspace) -> Iterator[None]:
    """What the system refuses, in one sentence with the way out."""
    try:
        yield
    except OSError as error:
        raise ReleaseError(
            f"cannot write {error.filename or workspace.out}: {error.strerror or error}; mend that "
            "and run the same command again: it goes on where it stopped, and pays nothing twice"
        ) from error
