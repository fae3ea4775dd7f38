"""The ledger: arithmetic of budgets, tampering, and two processes that are killed at any point."""

import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from canal.errors import (
    BudgetExceededError,
    InvalidValueError,
    LedgerError,
    LedgerTamperedError,
    UnknownUnitError,
)
from canal.privacy import Charge, Ledger, Secret, epsilon_from_rho, head_of, rho_from_epsilon
from canal.privacy.precision import ETA

WORKER = Path(__file__).parent / "ledger_worker.py"


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger.sqlite")
    made.set_budget("north", "patient", epsilon=8.0, delta=1e-5)
    made.set_budget("queries", "image", epsilon=1.0, delta=1e-5)
    return made


def edit(ledger, statement, *values):
    with sqlite3.connect(ledger.path) as connection:
        assert connection.execute(statement, values).rowcount > 0


def test_reserve_then_commit(ledger):
    charges = [Charge("north", "patient", 0.5), Charge("queries", "image", 0.01)]
    assert ledger.reserve("a", charges, note="first release") == "new"
    left = ledger.balance("north", "patient")
    assert (left.spent, left.uncommitted) == (0.5, 0.5)
    assert left.remaining == pytest.approx(rho_from_epsilon(8, 1e-5) - 0.5)
    assert left.epsilon_spent == epsilon_from_rho(0.5, 1e-5)
    ledger.commit("a")
    left = ledger.balance("north", "patient")
    assert (left.spent, left.uncommitted) == (0.5, 0.0)
    assert ledger.balance("queries", "image").spent == 0.01


def test_the_same_release_is_paid_once(ledger):
    charge = [Charge("north", "patient", 0.5)]
    assert [ledger.reserve("a", charge) for _ in range(3)] == ["new", "reserved", "reserved"]
    ledger.commit("a")
    ledger.commit("a")
    assert ledger.reserve("a", charge) == "committed"
    assert ledger.balance("north", "patient").spent == 0.5
    assert [row.action for row in ledger.rows()].count("commit") == 1


def test_the_same_key_with_other_charges_is_refused(ledger):
    ledger.reserve("a", [Charge("north", "patient", 0.5)])
    with pytest.raises(LedgerError, match="different key"):
        ledger.reserve("a", [Charge("north", "patient", 0.4)])


def test_past_the_budget_is_refused_with_numbers(ledger):
    total = rho_from_epsilon(8, 1e-5)
    ledger.reserve("a", [Charge("north", "patient", 1.0)])
    with pytest.raises(BudgetExceededError, match=r"requested, .* remaining") as caught:
        ledger.reserve("b", [Charge("north", "patient", 1.0)])
    assert caught.value.requested == 1.0
    assert caught.value.remaining == pytest.approx(total - 1.0)
    assert ledger.balance("north", "patient").spent == 1.0


def test_all_cohorts_or_none(ledger):
    with pytest.raises(BudgetExceededError):
        ledger.reserve("a", [Charge("north", "patient", 0.1), Charge("queries", "image", 99.0)])
    assert ledger.balance("north", "patient").spent == 0


def test_a_budget_is_spent_to_the_last_bit_and_not_one_more(ledger):
    total = rho_from_epsilon(8, 1e-5)
    ledger.reserve("most", [Charge("north", "patient", total / 3)])
    rest = ledger.balance("north", "patient").remaining
    with pytest.raises(BudgetExceededError):
        ledger.reserve("more", [Charge("north", "patient", math.nextafter(rest, math.inf))])
    ledger.reserve("rest", [Charge("north", "patient", rest)])
    assert ledger.balance("north", "patient").remaining <= math.ulp(total)


def test_a_fresh_budget_covers_exactly_what_its_epsilon_affords(ledger):
    ledger.reserve("all", [Charge("north", "patient", rho_from_epsilon(8, 1e-5))])
    assert ledger.balance("north", "patient").epsilon_spent <= 8.0


def test_no_budget_no_charge(ledger):
    for charge in (Charge("south", "patient", 0.1), Charge("north", "image", 0.1)):
        with pytest.raises(LedgerError, match="canal ledger budget"):
            ledger.reserve("a", [charge])


def test_a_new_budget_replaces_the_old_and_forgets_nothing(ledger):
    ledger.reserve("a", [Charge("north", "patient", 1.0)])
    ledger.set_budget("north", "patient", epsilon=1.0, delta=1e-5)
    assert ledger.balance("north", "patient").remaining == 0
    assert [row.action for row in ledger.rows()] == ["budget", "budget", "reserve", "budget"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE chain SET rho = rho / 2 WHERE seq = 3",
        "UPDATE chain SET cohort = 'south' WHERE seq = 1",
        "UPDATE chain SET note = x'00ff' WHERE seq = 2",
        "UPDATE chain SET at = '2020-01-01T00:00:00+00:00' WHERE seq = 2",
        "UPDATE chain SET hash = 'f' WHERE seq = 4",
        "UPDATE chain SET action = 'commit' WHERE seq = 3",
        "DELETE FROM chain WHERE seq = 1",
        "DELETE FROM chain WHERE seq = 2",
        "DELETE FROM chain WHERE seq = 4",
        "DELETE FROM chain",
        "DELETE FROM head",
        "UPDATE head SET seq = 3",
        "INSERT INTO chain SELECT 5, at, action, cohort, unit, rho, draws, key, note, hash "
        "FROM chain WHERE seq = 4",
    ],
)
def test_an_edited_ledger_is_found_out_and_charges_nothing(ledger, statement):
    ledger.reserve("a", [Charge("north", "patient", 0.5)])
    ledger.reserve("b", [Charge("north", "patient", 0.6)])
    ledger.verify()
    edit(ledger, statement)
    with pytest.raises(LedgerTamperedError):
        ledger.verify()
    with pytest.raises(LedgerTamperedError):
        ledger.reserve("c", [Charge("north", "patient", 0.1)])
    with pytest.raises(LedgerTamperedError):
        ledger.set_budget("north", "patient", epsilon=99.0, delta=1e-5)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t BEFORE INSERT ON chain BEGIN SELECT RAISE(IGNORE); END",
        "CREATE VIEW v AS SELECT * FROM chain",
        "DROP TABLE head",
        "DROP TABLE chain",
    ],
)
def test_more_or_less_than_a_ledger_is_found_out(ledger, statement):
    """A trigger could swallow charges while every reservation seems to succeed."""
    with sqlite3.connect(ledger.path) as connection:
        connection.execute(statement)
    for again in (ledger, Ledger(ledger.path)):  # opening it mends nothing
        with pytest.raises(LedgerTamperedError, match="ledger"):
            again.reserve("a", [Charge("north", "patient", 0.1)])


def test_what_is_cut_off_with_its_head_needs_a_noted_head(ledger):
    """The stated limit of the chain: only a head noted elsewhere shows it."""
    before = head_of(ledger.verify())
    ledger.reserve("a", [Charge("north", "patient", 0.5)])
    after = head_of(ledger.verify())
    edit(ledger, "DELETE FROM chain WHERE seq = 3")
    edit(ledger, "UPDATE head SET seq = 2, hash = ?", before)
    ledger.verify(head=before)
    with pytest.raises(LedgerTamperedError, match="are gone"):
        ledger.verify(head=after)


def test_reordered_rows_are_found_out(ledger):
    ledger.reserve("a", [Charge("north", "patient", 0.5)])
    ledger.reserve("b", [Charge("north", "patient", 0.6)])
    edit(ledger, "UPDATE chain SET seq = -1 WHERE seq = 3")
    edit(ledger, "UPDATE chain SET seq = 3 WHERE seq = 4")
    edit(ledger, "UPDATE chain SET seq = 4 WHERE seq = -1")
    with pytest.raises(LedgerTamperedError, match="row 3"):
        ledger.verify()


def test_a_file_put_back_is_found_out_by_a_noted_head(ledger):
    before = ledger.path.read_bytes()
    ledger.reserve("a", [Charge("north", "patient", 0.5)])
    noted = head_of(ledger.verify())
    ledger.reserve("b", [Charge("north", "patient", 0.1)])
    ledger.verify(head=noted)  # later rows are no offence
    ledger.path.write_bytes(before)
    ledger.verify()  # a valid chain, as far as anyone can see from inside
    with pytest.raises(LedgerTamperedError, match="are gone"):
        ledger.verify(head=noted)


def test_every_flipped_byte_is_found_or_changes_nothing(ledger):
    ledger.reserve("a", [Charge("north", "patient", 0.5)])
    ledger.commit("a")
    rows, good = ledger.rows(), ledger.path.read_bytes()
    rng, found = random.Random(4), 0
    for _ in range(300):
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        ledger.path.write_bytes(bad)
        try:
            assert ledger.rows() == rows
        except LedgerError:
            found += 1
    assert found > 20  # most of the file is empty pages; a hit on content is always found


@pytest.mark.parametrize("cut", [0, 1, 100, 4096, 5000])
def test_a_cut_file_is_an_error_of_ours(ledger, cut):
    ledger.path.write_bytes(ledger.path.read_bytes()[:cut])
    with pytest.raises(LedgerError):
        ledger.verify()


def test_not_a_ledger(tmp_path):
    (tmp_path / "text").write_text("not a database, but long enough to be looked at " * 9)
    with pytest.raises(LedgerError, match="cannot use the ledger"):
        Ledger(tmp_path / "text").verify()
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger(tmp_path / "absent", must_exist=True)
    assert not (tmp_path / "absent").exists()
    with pytest.raises(LedgerError, match="may write to"):
        Ledger(tmp_path / "no" / "such" / "folder")


@pytest.mark.parametrize("rho", [1, np.float32(0.5), np.float64(0.25)])
def test_any_kind_of_number_can_be_charged(ledger, rho):
    ledger.reserve("a", [Charge("north", "patient", rho, draws=np.int64(7))])
    assert ledger.balance("north", "patient").spent == float(rho)
    ledger.commit("a")
    ledger.verify()


def test_finite_precision_is_charged_across_releases(ledger):
    """Half the budget twice: what the sampler's precision adds must be covered as well."""
    draws = 10**9
    for key in "ab":
        half = ledger.balance("north", "patient").remaining / (2 if key == "a" else 1)
        with pytest.raises(BudgetExceededError):
            ledger.reserve(key + "!", [Charge("north", "patient", 2 * half, draws)])
        half *= 1 - 1e-3
        ledger.reserve(key, [Charge("north", "patient", half, draws)])
    balance = ledger.balance("north", "patient")
    assert balance.draws == 2 * draws
    ideal = epsilon_from_rho(balance.spent, 1e-5)
    assert balance.epsilon_spent >= ideal + 2 * ETA * balance.draws
    assert balance.epsilon_spent <= 8.0


def test_another_secret_is_another_release(ledger):
    """With a fresh secret the noise is fresh: the same plan must be paid for again."""
    keys = [f"plan/{Secret.seeded(seed).fingerprint}" for seed in (1, 1, 2)]
    told = [ledger.reserve(key, [Charge("north", "patient", 0.1)]) for key in keys]
    assert told == ["new", "reserved", "new"]
    assert ledger.balance("north", "patient").spent == 0.2


def test_a_budget_of_zero_freezes_a_cohort(ledger):
    ledger.set_budget("north", "patient", epsilon=0.0, delta=1e-5)
    with pytest.raises(BudgetExceededError, match="0 remaining"):
        ledger.reserve("a", [Charge("north", "patient", 1e-9)])


def test_bad_requests(ledger):
    with pytest.raises(InvalidValueError, match="epsilon"):
        ledger.set_budget("north", "patient", epsilon=math.inf, delta=1e-5)
    with pytest.raises(InvalidValueError, match="readable"):
        ledger.set_budget("\udcff", "patient", epsilon=1.0, delta=1e-5)
    with pytest.raises(UnknownUnitError):
        Charge("north", "pixel", 0.1)
    for rho in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidValueError, match="rho"):
            Charge("north", "patient", rho)
    with pytest.raises(InvalidValueError, match="cohort"):
        Charge("", "patient", 0.1)
    with pytest.raises(InvalidValueError, match="key"):
        ledger.reserve("", [Charge("north", "patient", 0.1)])
    with pytest.raises(InvalidValueError, match="same cohort"):
        ledger.reserve("a", [Charge("north", "patient", 0.1)] * 2)
    with pytest.raises(LedgerError, match="never reserved"):
        ledger.commit("a")


def start_worker(path, name, *, charges=1000, kill_at=0):
    return subprocess.Popen(
        [sys.executable, WORKER, path, name, str(charges), str(kill_at)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def told_by(worker):
    """What a worker was told is done before it died: (action, key) pairs."""
    lines = worker.communicate(timeout=60)[0].splitlines()
    return [tuple(json.loads(line)) for line in lines if line.endswith("]")]


def assert_sound(ledger, told):
    """Never over-spent, never charged twice, never lost, chain intact."""
    rows = ledger.verify()
    reserved = [row.key for row in rows if row.action == "reserve"]
    committed = [row.key for row in rows if row.action == "commit"]
    balance = ledger.balance("north", "patient")
    assert balance.spent <= balance.budget
    assert len(set(reserved)) == len(reserved)
    assert set(committed) <= set(reserved)
    assert {key for action, key in told if action == "reserve"} <= set(reserved)
    assert {key for action, key in told if action == "commit"} <= set(committed)
    return reserved


@pytest.mark.parametrize("seed", range(4))
def test_killed_inside_a_transaction(tmp_path, seed):
    """Kill at 100 counted points: lines of our code and steps of SQLite's machine.

    A first worker counts the steps of three charges, writing included; then points are drawn
    from all of them. Every one of these kills falls inside of a reserve or a commit.
    """
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_budget("north", "patient", epsilon=8.0, delta=1e-5)
    empty = ledger.path.read_bytes()
    steps = int(start_worker(ledger.path, "count", charges=3, kill_at=-1).communicate()[0])
    assert steps > 500
    rng, partly = random.Random(seed), 0
    for _ in range(25):
        ledger.path.write_bytes(empty)
        worker = start_worker(ledger.path, "w", charges=3, kill_at=rng.randrange(1, steps))
        told = told_by(worker)
        assert worker.returncode == -signal.SIGKILL
        reserved = assert_sound(ledger, told)
        partly += 0 < len(reserved) < 3
        # The same work again, to the end: nothing is paid twice.
        again = start_worker(ledger.path, "w", charges=3)
        assert_sound(ledger, told_by(again))
        assert ledger.balance("north", "patient").spent == pytest.approx(3e-3)
    assert partly >= 3


def test_killed_at_any_moment_while_racing(tmp_path):
    """100 kills in time, of two processes at once: they reach writing and syncing as well."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_budget("north", "patient", epsilon=8.0, delta=1e-5)
    rng, told = random.Random(2026), []
    for turn in range(50):
        workers = [start_worker(ledger.path, f"{turn}{name}") for name in "ab"]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for worker in workers:
            time.sleep(rng.uniform(0, 0.02))
            os.kill(worker.pid, signal.SIGKILL)
        for worker in workers:
            told += told_by(worker)
            assert worker.returncode == -signal.SIGKILL
        assert_sound(ledger, told)
    assert len(told) > 50  # on average every other worker had got somewhere when it died


def test_a_race_ends_at_the_budget(tmp_path):
    """Four processes charge until they are refused: the budget is used up, and not exceeded."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_budget("north", "patient", epsilon=0.5, delta=1e-5)
    workers = [start_worker(ledger.path, name) for name in "abcd"]
    told = [entry for worker in workers for entry in told_by(worker)]
    assert all(worker.returncode == 0 for worker in workers)
    assert_sound(ledger, told)
    balance = ledger.balance("north", "patient")
    assert balance.budget < balance.spent + 1e-3
    assert len([entry for entry in told if entry[0] == "reserve"]) == round(balance.spent / 1e-3)
