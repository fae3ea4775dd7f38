"""A release and its ledger, damaged and forged in a thousand ways: each is noticed, none crashes.

*Damage* changes bytes. *Forgery* changes a meaning and computes every digest anew, the card too; a
forger who also has the ledger computes its chain anew. Whatever they do, checking the folder with
the ledger finds it, or nothing was changed that anyone reads.
"""

import json
import random
import resource
import shutil
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from canal.errors import CanalError, LedgerError
from canal.features import mechanism as mechanism_module
from canal.features.release import create
from canal.features.store import Release
from canal.privacy import Ledger
from canal.privacy.ledger import head_of
from canal.privacy.randomness import Secret
from canal.release.card import render
from canal.release.charges import charges
from canal.release.manifest import CARD, MANIFEST, Manifest
from canal.release.verification import verify
from release.changes import DAMAGE, FORGERY, derived_anew
from victim import Victim

SEEDS, EACH = 20, 50
SECONDS, GIGABYTES = 20, 2  # what takes more hangs


class Copied(Victim):
    """A copy of a release and of its ledger."""

    def __init__(self, folder, ledger, places):
        super().__init__(shutil.copytree(folder, places / "release"), render)
        self.ledger = places / "ledger.sqlite"
        self.whole_ledger = ledger.path.read_bytes()
        self.rows, self.head = ledger.rows(), head_of(ledger.rows())
        self.heal()

    def heal(self):
        super().heal()
        for beside in self.ledger.parent.glob("ledger.sqlite-*"):
            beside.unlink()
        self.ledger.write_bytes(self.whole_ledger)


@pytest.fixture(scope="module")
def published(tmp_path_factory, ensemble, queries, make_plan):
    """A finished release of three shards, and its ledger, which knows another one too."""
    folder = tmp_path_factory.mktemp("published")
    rng = random.Random(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism_module, "ROWS", 16)
        # The same bytes in every run, so that the same mutations hit the same places.
        patch.setattr("secrets.token_bytes", rng.randbytes)
        patch.setattr("canal.privacy.binding.urandom", rng.randbytes)
        ledger = Ledger(folder / "ledger.sqlite")
        ledger.set_budget(ensemble.cohorts, "patient", epsilon=20.0, delta=1e-5)
        for name, epsilon in (("other", 2.0), ("release", 8.0)):
            plan = make_plan(epsilon=epsilon)
            create(folder / name, ensemble, queries, plan, ledger=ledger)
    return folder / "release", ledger


@pytest.fixture
def victim(published, tmp_path):
    made = Copied(*published, tmp_path / "victim")
    assert len(made.shards) == 3
    assert all(check.passed for check in looked_at(made))
    return made


@pytest.fixture
def in_time():
    """What hangs is stopped, and what asks for gigabytes does not get them."""

    def too_late(*_):
        pytest.fail("hangs")

    before, limits = signal.signal(signal.SIGALRM, too_late), resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + GIGABYTES * 2**30, limits[1]))
    yield lambda: signal.alarm(SECONDS)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    resource.setrlimit(resource.RLIMIT_AS, limits)


def looked_at(victim):
    return verify(victim.folder, Ledger(victim.ledger, must_exist=True))


def is_noticed(victim):
    """Whether checking with the ledger, and with the head that was noted elsewhere, finds it."""
    try:
        ledger = Ledger(victim.ledger, must_exist=True)
        if any(check.passed is False for check in verify(victim.folder, ledger)):
            return True
        ledger.verify(head=victim.head)
    except LedgerError:
        return True
    return False


def changed(victim):
    """Which files hold other bytes than were published; the ledger counts by its rows."""
    there = {path.name: path.read_bytes() for path in victim.folder.iterdir()}
    files = {name for name in there | victim.whole if there.get(name) != victim.whole.get(name)}
    try:
        rows = Ledger(victim.ledger, must_exist=True).rows()
    except LedgerError:
        rows = []
    return files | ({"ledger"} if rows != victim.rows else set())


def what_reading_says(folder):
    """Read all of it; empty if nothing is wrong as far as a reader can tell."""
    try:
        release = Release.open(folder)
        list(release.shards())
        list(map(release.integers, release.ids))
    except CanalError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_changes_content_is_noticed(seed, victim, in_time):
    """1,000 mutations in all: half of them damage, half forgery; only errors of ours are raised."""
    rng, kinds = random.Random(seed), Counter()
    for number in range(EACH):
        mutate = rng.choice(FORGERY if number % 2 else DAMAGE)
        in_time()
        mutate(rng, victim)
        what = changed(victim)
        noticed = is_noticed(victim)
        assert noticed or not what, f"{mutate.__name__} of {sorted(what)} slipped, number {number}"
        kinds[mutate.__name__] += bool(what)
        said = what_reading_says(victim.folder)
        assert "\n" not in said
        if mutate in DAMAGE and what & {MANIFEST, *victim.shards}:
            assert said
        victim.heal()
    assert all(check.passed for check in looked_at(victim))
    assert sum(kinds.values()) > 0.8 * EACH
    assert len(kinds) >= 14


def test_every_kind_of_change_is_noticed(victim, in_time):
    """The same, once for each kind: none of them is there in vain."""
    for mutate in dict.fromkeys(DAMAGE + FORGERY):
        for seed in range(3):
            in_time()
            mutate(random.Random(seed), victim)
            assert is_noticed(victim) or not changed(victim), mutate.__name__
            if changed(victim):
                victim.heal()
                break
        else:
            pytest.fail(f"{mutate.__name__} changes nothing")


def test_a_research_run_is_not_passed_off_as_private(ensemble, queries, make_plan, tmp_path):
    """Every promise made, every digest computed anew, charges invented: the shards still warn."""
    made = create(tmp_path / "release", ensemble, queries, make_plan(), seed=1)
    assert made.statement["stamp"]
    content = json.loads((made.path / MANIFEST).read_bytes())
    content = {name: content[name] for name in content if name not in ("format", "digest")}
    content["noise"]["source"] = Secret(b"x" * 32, private=True).source
    due = [asdict(each) for each in charges(made.plan.calibrate(), ensemble.cohorts)]
    ledger = {"key": "0" * 64, "charges": due, "head": None, "totals": []}
    forged = Manifest(**derived_anew(content | {"private": True, "ledger": ledger}))
    (made.path / MANIFEST).write_bytes(forged.to_bytes())
    (made.path / CARD).write_bytes(render(forged).encode())
    failed = [check for check in verify(made.path) if check.passed is False]
    assert [check.what for check in failed] == ["shards"]
    assert "warns" in failed[0].detail


def test_a_ledger_whose_tables_have_no_names(victim):
    with closing(sqlite3.connect(victim.ledger)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET type = CAST(type AS BLOB) WHERE name = 'head'")
    assert is_noticed(victim)
