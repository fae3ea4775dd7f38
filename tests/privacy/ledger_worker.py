"""Charges a ledger and tells of every success; may kill itself on the way.

Arguments: ledger, name, how many charges, kill point (0: none; -1: only count the steps). A point
counts the lines of the ledger's own code and the steps of SQLite's virtual machine while charging,
so it falls inside of a reserve or a commit, and often inside of a transaction.
"""

import json
import os
import signal
import sqlite3
import sys

from canal.errors import BudgetExceededError
from canal.privacy import chain as chain_module
from canal.privacy import ledger as ledger_module

OURS = {chain_module.__file__, ledger_module.__file__}


class Countdown:
    """Kills this process, without mercy, at the given step."""

    def __init__(self, kill_at):
        self.kill_at = kill_at
        self.steps = 0
        self.connect = sqlite3.connect
        sqlite3.connect = self.counted_connect
        sys.settrace(self.trace)

    def step(self):
        self.steps += 1
        if self.steps == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def trace(self, frame, event, argument):
        if frame.f_code.co_filename not in OURS:
            return None
        self.step()
        return self.trace

    def counted_connect(self, *arguments, **options):
        connection = self.connect(*arguments, **options)
        connection.set_progress_handler(self.step, 1)
        return connection


def tell(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def charge(ledger, name, charges):
    for number in range(charges):
        key = f"{name}-{number}"
        try:
            ledger.reserve(key, [ledger_module.Charge("north", "patient", 1e-3)])
        except BudgetExceededError:
            return
        tell(json.dumps(["reserve", key]))
        ledger.commit(key)
        tell(json.dumps(["commit", key]))


def main(path, name, charges, kill_at):
    ledger = ledger_module.Ledger(path, must_exist=True)
    countdown = Countdown(kill_at) if kill_at else None
    if countdown is None:
        tell("ready")
        sys.stdin.readline()
    if kill_at < 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  # only the count is wanted
    charge(ledger, name, charges)
    if countdown:
        sys.settrace(None)
        sys.__stdout__.write(f"{countdown.steps}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
