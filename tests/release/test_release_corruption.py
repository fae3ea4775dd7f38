"""A release and its ledger, damaged and forged in a thousand ways: each is noticed, none crashes.

*Damage* changes bytes. *Forgery* changes a meaning and computes every digest anew, the card too; a
forger who also has the ledger computes its chain anew. Whatever they do, checking the folder with
the ledger finds it, or nothing was changed that anyone reads.
"""

import copy
import json
import random
import resource
import signal
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from canal.errors import CanalError, LedgerError
from canal.privacy import Ledger
from canal.privacy.chain import GENESIS, Row
from canal.privacy.ledger import head_of
from canal.privacy.randomness import Secret
from canal.release import aggregator
from canal.release.card import render
from canal.release.charges import charges
from canal.release.manifest import CARD, MANIFEST, Manifest
from canal.release.mechanism import Mechanism
from canal.release.plan import Plan
from canal.release.shard import write_shard
from canal.release.statement import Facts, state
from canal.release.statistics import Statistics
from canal.release.store import Release
from canal.release.verification import verify

SEEDS, EACH = 20, 50
SECONDS, GIGABYTES = 20, 2  # what takes more hangs


class Victim:
    """A release folder and its ledger, to be changed and made whole again."""

    def __init__(self, folder, ledger, places):
        self.folder, self.ledger = places / "release", places / "ledger.sqlite"
        self.folder.mkdir(parents=True)
        self.whole = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.whole_ledger = ledger.path.read_bytes()
        self.rows, self.head = ledger.rows(), head_of(ledger.rows())
        self.shards = sorted(name for name in self.whole if name.endswith(".safetensors"))
        self.heal()

    def heal(self):
        for path in self.folder.iterdir():
            if path.name not in self.whole:
                path.unlink()
        for name, content in self.whole.items():
            (self.folder / name).write_bytes(content)
        for beside in self.ledger.parent.glob("ledger.sqlite-*"):
            beside.unlink()
        self.ledger.write_bytes(self.whole_ledger)

    def content(self):
        """The manifest as plain values, without its digest."""
        content = json.loads(self.whole[MANIFEST])
        return {name: content[name] for name in content if name not in ("format", "digest")}

    def forge(self, content):
        """Write a manifest whose digest holds, and the card that belongs to it."""
        manifest = Manifest(**content)
        (self.folder / MANIFEST).write_bytes(manifest.to_bytes())
        with suppress(Exception):  # a manifest that has no card keeps the old one
            (self.folder / CARD).write_bytes(render(manifest).encode())


# Damage: any file, any bytes.


def any_file(rng, victim):
    """One of the files, the ledger as often as all others together."""
    names = [MANIFEST, CARD, *victim.shards]
    return victim.ledger if rng.random() < 0.4 else victim.folder / rng.choice(names)


def flip_bits(rng, victim):
    path = any_file(rng, victim)
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 8))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def overwrite_a_stretch(rng, victim):
    path = any_file(rng, victim)
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content))
    stop = min(len(content), start + rng.choice((1, 4, 64, 4096)))
    content[start:stop] = rng.choice((rng.randbytes(stop - start), bytes(stop - start)))
    path.write_bytes(content)


def cut_the_tail(rng, victim):
    path = any_file(rng, victim)
    content = path.read_bytes()
    path.write_bytes(content[: rng.choice((0, rng.randrange(len(content)), len(content) - 1))])


def add_or_drop_a_byte(rng, victim):
    path = any_file(rng, victim)
    content = path.read_bytes()
    at = rng.randrange(len(content))
    more = rng.choice((b"", rng.randbytes(1), b" ", b"\n"))
    path.write_bytes(content[:at] + more + content[at + (not more) :] + rng.choice((b"", more)))


def remove_a_file(rng, victim):
    any_file(rng, victim).unlink()


def add_a_file(rng, victim):
    (victim.folder / rng.choice((".hidden", "features-00003.safetensors", "notes.txt"))).touch()


def swap_two_shards(rng, victim):
    one, other = rng.sample(victim.shards[:2], 2)
    (victim.folder / one).write_bytes(victim.whole[other])
    (victim.folder / other).write_bytes(victim.whole[one])


def edit_a_digit(rng, victim):
    """In the manifest, as somebody would with a text editor."""
    content = bytearray(victim.whole[MANIFEST])
    at = rng.choice([at for at, byte in enumerate(content) if chr(byte).isdigit()])
    content[at] = ord(rng.choice([digit for digit in "0123456789" if ord(digit) != content[at]]))
    (victim.folder / MANIFEST).write_bytes(content)


# Forgery: what the manifest says, with every digest computed anew.

STRANGE = (
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**30, 0.0, 0.5, -2.5, 1e-300, 1e308),
    *("", "1", "patient", "../x", "\x00", "\ud800", [], [0], [0, 1], [[]], {}, {"a": 1}),
)


def other_value(rng, value):
    """Something else: near by, or strange."""
    if isinstance(value, bool) or value is None or rng.random() < 0.3:
        return rng.choice([odd for odd in STRANGE if json.dumps(odd) != json.dumps(value)])
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 7))
    if isinstance(value, float):
        return value * rng.choice((0.5, 2.0, 1 + 1e-12)) if value else 1e-3
    if isinstance(value, str):
        return rng.choice((value + "x", value[:-1] or "y", value.swapcase() + "é"))
    if isinstance(value, list) and value:
        return rng.choice((value[:-1], value + value[:1], [*value[1:], value[0], value[0]]))
    if isinstance(value, dict) and value:
        dropped = rng.choice(list(value))
        return {name: kept for name, kept in value.items() if name != dropped}
    return "something"


def forge_anything(rng, victim):
    """One value anywhere in the manifest."""
    content = victim.content()
    inside, at = content, rng.choice(list(content))
    while isinstance(inside[at], dict | list) and inside[at] and rng.random() > 0.1:
        inside = inside[at]
        at = rng.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
    inside[at] = other_value(rng, inside[at])
    victim.forge(content)


def forge_the_budget(rng, victim):
    """A smaller epsilon than was paid for, and every promise derived from it as we do."""
    content = victim.content()
    content["plan"]["epsilon"] *= rng.choice((0.1, 0.5, 0.9))
    victim.forge(derived_anew(content))


def forge_a_research_run(rng, victim):
    """Noise from a seed, which is charged to nobody; all promises withdrawn."""
    content = victim.content() | {"private": False, "ledger": None}
    content["noise"]["source"] = Secret.seeded(0).source
    victim.forge(derived_anew(content))


def derived_anew(content):
    """Everything that follows from the plan and the statistics."""
    plan = Plan.from_json(content["plan"])
    statistics = Statistics.from_json(content["statistics"])
    mechanism = Mechanism.of(plan.calibrate(statistics.weights(plan)), statistics)
    facts = Facts(
        private=content["private"],
        noise=content["noise"]["source"],
        sampler=content["noise"]["sampler"],
        lattice_step=mechanism.lattice.step,
        cohorts=tuple(content["participants"]["cohorts"]),
    )
    statement = state(mechanism.calibrated, facts)
    return content | {"mechanism": mechanism.to_json(), "statement": statement}


def forge_the_noise(rng, victim):
    """Less noise in the numbers than there is in the data, or the reverse."""
    content = victim.content()
    name = rng.choice(("sigma", "caps", "scale", "weights"))
    factor = rng.choice((0.5, 1.01, 1 + 1e-6))
    content["mechanism"][name] = [value * factor for value in content["mechanism"][name]]
    victim.forge(content)


def forge_the_ids(rng, victim):
    content = victim.content()
    places = content["rows"]
    one, other = rng.sample(sorted(places), 2)
    kind = rng.choice(("swap", "rename", "drop", "double", "order"))
    if kind == "swap":
        places[one], places[other] = places[other], places[one]
    elif kind == "rename":
        places["case-999"] = places.pop(one)
    elif kind == "drop":
        del places[one]
    elif kind == "double":
        places["case-999"] = places[one]
    else:
        content["rows"] = dict(sorted(places.items(), reverse=True))
    victim.forge(content)


def forge_swapped_shards(rng, victim):
    """Two shards change places together with their digests."""
    content = victim.content()
    swap_two_shards(rng, victim)
    one, other = content["shards"][:2]
    one["file"], other["file"] = other["file"], one["file"]
    content["shards"][:2] = other, one
    victim.forge(content)


def forge_a_shard(rng, victim):
    """Other integers, in a file that is well made and has the digest that the manifest says."""
    content = victim.content()
    number = rng.randrange(3)
    integers = np.array(list(Release.open(victim.folder).shards())[number])
    integers.flat[rng.randrange(integers.size)] += 1
    made = write_shard(victim.folder / victim.shards[number], integers, "")
    content["shards"][number] = made.to_json()
    victim.forge(content)


def forge_that_nothing_was_charged(rng, victim):
    victim.forge(victim.content() | {"ledger": None})


def forge_the_charges(rng, victim):
    content = victim.content()
    made = content["ledger"]["charges"]
    kind = rng.choice(("less", "fewer", "none", "key", "twice"))
    if kind == "less":
        made[0]["rho"] *= 0.5
    elif kind == "fewer":
        made.pop()
    elif kind == "none":
        made.clear()
    elif kind == "key":
        content["ledger"]["key"] = rng.randbytes(32).hex()
    else:
        made.append(made[0])
    victim.forge(content)


# Forgery of the ledger: a row changed, removed or added, the chain computed anew or not.


def edit_the_ledger(rng, victim, *, anew):
    rows = copy.copy(victim.rows)
    at = rng.randrange(len(rows))
    kind = rng.choice(("edit", "drop", "double", "swap"))
    if kind == "edit":
        values = vars(rows[at]).copy()
        name = rng.choice(("at", "action", "cohort", "unit", "rho", "draws", "key", "note"))
        values[name] = {
            "action": rng.choice(
                [a for a in ("budget", "reserve", "commit", "x") if a != values[name]]
            )
            if name == "action"
            else None,
            "rho": values["rho"] * rng.choice((0.5, 1 + 1e-9, 2.0)),
            "draws": values["draws"] + 1,
        }.get(name) or f"{values[name]}x"
        rows[at] = Row(**values)
    elif kind == "drop":
        del rows[at]
    elif kind == "double":
        rows.insert(at, rows[at])
    else:
        other = rng.choice([number for number in range(len(rows)) if number != at])
        rows[at], rows[other] = rows[other], rows[at]
    write_rows(victim.ledger, rows, anew=anew)


def write_rows(path, rows, *, anew):
    previous = GENESIS
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM chain")
        for number, row in enumerate(rows, start=1):
            values = vars(row) | {"seq": number}
            if anew:
                values["hash"] = Row(**values).digest(previous)
            previous = values["hash"]
            insert = "INSERT INTO chain VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            connection.execute(insert, tuple(values.values()))
        connection.execute("UPDATE head SET seq = ?, hash = ?", (len(rows), previous))


def edit_a_row(rng, victim):
    edit_the_ledger(rng, victim, anew=False)


def edit_a_row_and_the_chain(rng, victim):
    edit_the_ledger(rng, victim, anew=True)


DAMAGE = (
    *(flip_bits, overwrite_a_stretch, cut_the_tail, add_or_drop_a_byte, remove_a_file, add_a_file),
    *(swap_two_shards, edit_a_digit),
)
FORGERY = (
    *(forge_anything, forge_anything, forge_anything, forge_anything, forge_the_budget),
    *(forge_a_research_run, forge_the_noise, forge_the_ids, forge_swapped_shards, forge_a_shard),
    *(forge_that_nothing_was_charged, forge_the_charges, edit_a_row, edit_a_row_and_the_chain),
)


class Noon(datetime):
    @classmethod
    def now(cls, zone=None):
        return cls(2026, 1, 1, 12, tzinfo=zone)


@pytest.fixture(scope="module")
def published(tmp_path_factory, ensemble, queries, make_plan):
    """A finished release of three shards, and its ledger, which knows another one too."""
    folder = tmp_path_factory.mktemp("published")
    rng = random.Random(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregator, "ROWS", 16)
        # The same bytes in every run, so that the same mutations hit the same places.
        patch.setattr("secrets.token_bytes", rng.randbytes)
        patch.setattr("canal.privacy.chain.datetime", Noon)
        ledger = Ledger(folder / "ledger.sqlite")
        ledger.set_budget(ensemble.cohorts, "patient", epsilon=20.0, delta=1e-5)
        for name, epsilon in (("other", 2.0), ("release", 8.0)):
            plan = make_plan(epsilon=epsilon)
            aggregator.create(folder / name, ensemble, queries, plan, ledger=ledger)
    return folder / "release", ledger


@pytest.fixture
def victim(published, tmp_path):
    made = Victim(*published, tmp_path / "victim")
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
    made = aggregator.create(tmp_path / "release", ensemble, queries, make_plan(), seed=1)
    assert made.statement["stamp"]
    content = json.loads((made.path / MANIFEST).read_bytes())
    content = {name: content[name] for name in content if name not in ("format", "digest")}
    content["noise"]["source"] = Secret(b"x" * 32, private=True).source
    due = [asdict(each) for each in charges(made.plan.calibrate(), ensemble.cohorts)]
    ledger = {"key": "0" * 64, "charges": due}
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
