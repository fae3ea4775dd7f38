"""Runs a command whose processes all end when whoever started it does, however that ended.

FLARE's simulator starts a process for the server and one for each site, some in sessions of their
own; a kill of whoever waits for them would leave them at work on private data. So it is run by this
file, as a process of its own that imports nothing of ours:

    python supervisor.py FD COMMAND …

FD is the reading end of a pipe that only the starter can write to. When it closes, or the command
ends, every process that was started below is killed. They are found by a mark in their
environment, which children inherit whatever session or parent they have; where there is no /proc
(macOS), the command's process group is all that is found.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

MARK = "CANAL_SUPERVISED"
_PROC = Path("/proc")


def run(command: Sequence[str], out: IO[str]) -> int:
    """Run a command to its end, and leave no process of it behind.

    Args:
        command: and its arguments.
        out: gets what it says.

    Returns:
        Its exit code.
    """
    mark = f"{MARK}={uuid.uuid4().hex}"
    ours, theirs = os.pipe()
    try:
        supervised = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", __file__, str(ours), *command],
            env=os.environ | dict([mark.split("=")]),
            pass_fds=[ours],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(ours)
        try:
            return supervised.wait()
        finally:
            supervised.kill()
            supervised.wait()
            kill_marked(mark)
    finally:
        os.close(theirs)


def kill_marked(mark: str) -> None:
    """Kill every process that has a mark in its environment, but this one."""
    while found := [pid for pid in _marked(mark.encode()) if pid != os.getpid()]:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _marked(mark: bytes) -> list[int]:
    """Those that are alive: of one that has ended, nobody can read the environment."""
    found = []
    for folder in _PROC.glob("[0-9]*"):
        # Somebody else's, or gone by now.
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _main(fd: int, command: list[str]) -> int:
    child = subprocess.Popen(command, start_new_session=True)  # noqa: S603
    try:
        while child.poll() is None:
            # Nobody writes: it can be read when whoever could is gone.
            if select.select([fd], [], [], 0.2)[0]:
                break
        return child.poll() or 0
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        kill_marked(f"{MARK}={os.environ[MARK]}")


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), sys.argv[2:]))
