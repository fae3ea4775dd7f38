"""Charges a ledger until it is refused, and tells of every success; may kill itself on the way.

Arguments: ledger, name, kill point (0: none). The point counts the lines of the ledger's own code
and the steps of SQLite's virtual machine, so that it can fall inside a transaction.
"""

import json
import os
import signal
import sqlite3
import sys

from canal.errors import BudgetExceededError
from canal.privacy import ledger as ledger_module


class Countdown:
    """Kills this process, without mercy, at the given step."""

    def __init__(self, kill_at):
        self.left = kill_at
        self.connect = sqlite3.connect
        sqlite3.connect = self.counted_connect
        sys.settrace(self.trace)

    def step(self):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def trace(self, frame, event, argument):
        if frame.f_code.co_filename != ledger_module.__file__:
            return None
        self.step()
        return self.trace

    def counted_connect(self, *arguments, **options):
        connection = self.connect(*arguments, **options)
        connection.set_progress_handler(self.step, 1)
        return connection


def tell(action, key):
    sys.stdout.write(json.dumps([action, key]) + "\n")
    sys.stdout.flush()


def main(path, name, kill_at):
    if kill_at:
        Countdown(kill_at)
    ledger = ledger_module.Ledger(path, must_exist=True)
    for number in range(1000):
        key = f"{name}-{number}"
        try:
            ledger.reserve(key, [ledger_module.Charge("north", "patient", 1e-3)])
        except BudgetExceededError:
            break
        tell("reserve", key)
        ledger.commit(key)
        tell("commit", key)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
