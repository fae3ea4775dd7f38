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

import pytest

from canal.errors import (
    BudgetExceededError,
    InvalidValueError,
    LedgerError,
    LedgerTamperedError,
    UnknownUnitError,
)
from canal.privacy import Charge, Ledger, epsilon_from_rho, rho_from_epsilon

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
        "INSERT INTO chain SELECT 5, at, action, cohort, unit, rho, key, note, hash FROM chain "
        "WHERE seq = 4",
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
    noted = ledger.verify()
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
        Ledger(tmp_path / "text")
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger(tmp_path / "absent", must_exist=True)
    assert not (tmp_path / "absent").exists()
    with pytest.raises(LedgerError, match="may write to"):
        Ledger(tmp_path / "no" / "such" / "folder")


def test_bad_requests(ledger):
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


def start_worker(path, name, kill_at):
    return subprocess.Popen(
        [sys.executable, WORKER, path, name, str(kill_at)], stdout=subprocess.PIPE, text=True
    )


def acknowledged(worker):
    """What a worker was told is done before it died: (action, key) pairs."""
    lines = worker.communicate(timeout=60)[0].splitlines()
    return [tuple(json.loads(line)) for line in lines if line.endswith("]")]


def test_two_hundred_kills_and_a_race(tmp_path):
    """Two processes charge one budget; each is killed, 100 times, at a seeded point.

    Half of the points are counted (lines of the ledger and steps of SQLite's machine), half are
    moments in time, which reach the writing and syncing of the file as well.
    """
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_budget("north", "patient", epsilon=8.0, delta=1e-5)
    rng, told = random.Random(2026), []
    killed = 0
    for turn in range(100):
        counted = turn % 2 == 0
        workers = [
            start_worker(ledger.path, f"{turn}-{name}", rng.randrange(1, 4000) if counted else 0)
            for name in "ab"
        ]
        for worker in workers:
            if not counted:
                time.sleep(rng.uniform(0.02, 0.12))
                os.kill(worker.pid, signal.SIGKILL)
        for worker in workers:
            told += acknowledged(worker)
            killed += worker.returncode == -signal.SIGKILL
        ledger.verify()
    assert killed >= 180  # some reach the end of the budget, or of their work, before their point

    rows = ledger.rows()
    balance = ledger.balance("north", "patient")
    reserved = [row.key for row in rows if row.action == "reserve"]
    committed = [row.key for row in rows if row.action == "commit"]
    assert balance.spent <= balance.budget  # never over-spent
    assert len(set(reserved)) == len(reserved)  # never twice
    assert set(committed) <= set(reserved)
    assert {key for action, key in told if action == "reserve"} <= set(reserved)  # never lost
    assert {key for action, key in told if action == "commit"} <= set(committed)
    assert len(reserved) > 50  # and the workers did get somewhere


def test_a_race_ends_at_the_budget(tmp_path):
    """Four processes charge until they are refused: the budget is used up, and not exceeded."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_budget("north", "patient", epsilon=0.5, delta=1e-5)
    workers = [start_worker(ledger.path, name, 0) for name in "abcd"]
    told = [entry for worker in workers for entry in acknowledged(worker)]
    assert all(worker.returncode == 0 for worker in workers)
    balance = ledger.balance("north", "patient")
    assert balance.spent <= balance.budget < balance.spent + 1e-3
    assert len([entry for entry in told if entry[0] == "reserve"]) == round(balance.spent / 1e-3)
    ledger.verify()
