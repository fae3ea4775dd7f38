"""The ledger under `kill -9` and races: never over-spent, never lost, never charged twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from canal.privacy import Ledger

WORKER = Path(__file__).parent / "ledger_worker.py"


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
    assert len(told) > 20  # the workers did get somewhere before they died


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
