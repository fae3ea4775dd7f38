"""A fork server that makes releases, so that torch is imported once for hundreds of them.

Arguments: a file of queries, the folder of the initialisation, the folders of the teachers. Every
line on standard input is one task; a child of its own does it, and may die of it:

==============  ==================================================================================
`out`           where to publish
`ledger`        to charge; a file that is there, and `memory` beside it, for keys
`plan`          as `Plan.to_json`
`repaint`       id of a query to ask about with other pixels
`seed`          of a research run
`system_gives`  in hex, what the operating system gives as a secret; without it, whatever it gives
`kill_at`       the step at which the child kills itself: a line of our own code, an instruction
                of SQLite's machine, or an operation on files
`fail_at`       the operation on files that fails: an open, rename, mkdir, link, unlink, fsync …
`errno`         how it fails
==============  ==================================================================================

The reply says how it ended: `signal`, or `error` and `says`, or neither; where steps were counted,
the first of each phase (`phases`), those that were `operations` on files, and in which phase it
`died`; where one was to fail, how many `operations` there were.
"""

import json
import os
import secrets
import signal
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from canal.data.arrays import Arrays
from canal.errors import CanalError
from canal.features import (
    mechanism,
    verification,  # noqa: F401  # loads all of canal.release
)
from canal.features.ensemble import load_ensemble
from canal.features.plan import Plan
from canal.features.queries import Queries
from canal.features.release import create
from canal.privacy.ledger import Ledger

OURS = {
    module.__file__
    for name, module in sys.modules.items()
    if name.startswith(("canal.release.", "canal.features."))
    or name in {"canal.files"}
    or name in {f"canal.privacy.{n}" for n in ("chain", "keystore", "ledger", "randomness")}
}
# Entering one of these begins a phase, which lasts until the next begins.
PHASES = {
    "Workspace.open": "open",
    "Workspace.secret": "secret",
    "_Run.pay": "pay",
    "Workspace.claim": "claim",
    "_Run._statistics": "statistics",
    "_Run._shard": "shards",
    "_Run._manifest": "manifest",
    "Workspace.seal": "seal",
    "Ledger.commit": "commit",
    "Workspace.destroy": "destroy",
    "LocalFederation.finish": "tell",
    "Workspace.publish": "publish",
    "Workspace.finish": "finish",
}
FILE_OPERATIONS = {"open"} | {
    f"os.{name}" for name in ("rename", "mkdir", "link", "symlink", "remove", "rmdir")
}
SHARD_ROWS = 16  # forty queries make three shards


class Countdown:
    """Kills this process, without mercy, at the given step."""

    def __init__(self, folder, kill_at, tell):
        self.folder, self.kill_at, self.tell = folder, kill_at, tell
        self.steps, self.phase, self.phases, self.operations = 0, "before", [], []
        self.connect = sqlite3.connect
        sqlite3.connect = self.counted_connect
        sys.addaudithook(self.watch)
        sys.settrace(self.trace)

    def step(self):
        self.steps += 1
        if self.steps == self.kill_at:
            self.tell(died=self.phase)
            os.kill(os.getpid(), signal.SIGKILL)

    def trace(self, frame, event, argument):
        if frame.f_code.co_filename not in OURS:
            return None
        begins = PHASES.get(frame.f_code.co_qualname) if event == "call" else None
        # Each begins once, though a generator is called again for every value.
        if begins and begins not in dict(self.phases):
            self.phase = begins
            self.phases.append([begins, self.steps + 1])
        self.step()
        return self.trace

    def watch(self, event, arguments):
        if event in FILE_OPERATIONS and str(arguments[0]).startswith(self.folder):
            self.operations.append(self.steps + 1)
            self.step()

    def counted_connect(self, *arguments, **options):
        connection = self.connect(*arguments, **options)
        connection.set_progress_handler(self.step, 1)
        return connection

    def stop(self):
        sys.settrace(None)
        sqlite3.connect = self.connect


class Fault:
    """Lets one operation on the files of a folder fail as a full or read-only disk would."""

    def __init__(self, folder, fail_at, number):
        self.folder, self.fail_at, self.number = folder, fail_at, number
        self.operations = 0
        self.fsync, os.fsync = os.fsync, self.counted_fsync
        sys.addaudithook(self.watch)

    def watch(self, event, arguments):
        if event in FILE_OPERATIONS and str(arguments[0]).startswith(self.folder):
            self.operation(arguments[0])

    def counted_fsync(self, handle):
        self.operation(str(Path(f"/proc/self/fd/{handle}").readlink()))
        self.fsync(handle)

    def operation(self, name):
        self.operations += 1
        if self.operations == self.fail_at:
            raise OSError(self.number, os.strerror(self.number), name)


class Server:
    """What all children have in common."""

    def __init__(self, queries, init, *teachers):
        torch.set_num_threads(1)
        with np.load(queries) as content:
            self.arrays = Arrays(
                tuple(content["ids"].tolist()), content["images"], content["masks"], ""
            )
        self.ensemble = load_ensemble(list(map(Path, teachers)), Path(init))
        mechanism.ROWS = SHARD_ROWS
        # What torch prepares on first use, the children then find done.
        for batch in Queries.of(self.arrays).batches():
            for teacher in self.ensemble.teachers:
                teacher.tap.features(batch.images)
            self.ensemble.shared.gradient_energy(batch.images, batch.masks)

    def serve(self):
        for line in sys.stdin:
            sys.stdout.write(json.dumps(self.in_a_child(json.loads(line))) + "\n")
            sys.stdout.flush()

    def in_a_child(self, task):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                self.work(task, lambda **said: os.write(writing, json.dumps(said).encode()))
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        told = json.loads(said) if said else {}
        return told | ({"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {})

    def work(self, task, tell):
        if task.get("system_gives"):
            secrets.token_bytes = lambda count: bytes.fromhex(task["system_gives"])
        folder, said = str(Path(task["out"]).parent), {}
        os.environ["CANAL_KEYS"] = f"{folder}/memory"
        fault = Fault(folder, task["fail_at"], task["errno"]) if "fail_at" in task else None
        countdown = Countdown(folder, task["kill_at"], tell) if "kill_at" in task else None
        try:
            self.create(task)
        except CanalError as error:
            said = {"error": type(error).__name__, "says": str(error)}
        except BaseException as error:
            said = {"error": f"traceback of {type(error).__name__}", "says": str(error)}
        if countdown:
            countdown.stop()
            phases = [*countdown.phases, ["end", countdown.steps + 1]]
            said |= {"phases": phases, "operations": countdown.operations}
        tell(**said, **({"operations": fault.operations} if fault else {}))

    def create(self, task):
        arrays = self.arrays
        if task.get("repaint"):
            images = arrays.images.copy()
            images[arrays.ids.index(task["repaint"])] ^= 255
            arrays = replace(arrays, images=images)
        create(
            Path(task["out"]),
            self.ensemble,
            Queries.of(arrays),
            Plan.from_json(task["plan"]),
            ledger=Ledger(task["ledger"], must_exist=True),
            seed=task.get("seed"),
        )


if __name__ == "__main__":
    Server(*sys.argv[1:]).serve()
