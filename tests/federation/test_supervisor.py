"""A command under supervision leaves no process behind, however whoever started it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from canal.federation.supervisor import MARK

# A process with a child in a session of its own, whose child has lost its parent.
TREE = """
import subprocess, sys, time
depth, folder = int(sys.argv[1]), sys.argv[2]
open(f"{folder}/up-{depth}", "w").close()
if depth:
    subprocess.Popen([sys.executable, __file__, str(depth - 1), folder], start_new_session=True)
if depth != 1:
    time.sleep(60)
"""
STARTER = """
import sys
from canal.federation.supervisor import run
with open(sys.argv[1] + "/log", "w") as log:
    sys.exit(run([sys.executable, *sys.argv[2:]], log))
"""


def wait_until(holds: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def below(folder: Path) -> dict[int, str]:
    """Processes that are under supervision, and name this folder."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            marked = f"{MARK}=".encode() in (place / "environ").read_bytes()
        except OSError:
            continue
        if marked and any(str(folder).encode() in word for word in words):
            found[int(place.name)] = str(words)
    return found


@pytest.fixture
def started(tmp_path: Path) -> subprocess.Popen[bytes]:
    """Four processes: the starter, the supervisor, the command, and one that has no parent left."""
    (tmp_path / "tree.py").write_text(TREE)
    command = [sys.executable, "-c", STARTER, tmp_path, tmp_path / "tree.py", "2", tmp_path]
    process = subprocess.Popen([str(word) for word in command])
    wait_until((tmp_path / "up-0").exists)
    wait_until(lambda: len(below(tmp_path)) == 3)
    return process


@pytest.mark.parametrize("whom", ["starter", "supervisor", "command"])
def test_a_kill_leaves_nothing_behind(
    started: subprocess.Popen[bytes], tmp_path: Path, whom: str
) -> None:
    def one(word: str) -> int:
        return next(pid for pid, words in below(tmp_path).items() if word in words)

    pids = {"starter": started.pid, "supervisor": one("supervisor.py"), "command": one("'2'")}
    os.kill(pids[whom], signal.SIGKILL)
    wait_until(lambda: not below(tmp_path))
    assert started.wait(10) != 0


def test_what_is_left_when_a_command_ends_well_is_ended_too(tmp_path: Path) -> None:
    (tmp_path / "tree.py").write_text(TREE)
    command = [sys.executable, "-c", STARTER, tmp_path, tmp_path / "tree.py", "1", tmp_path]
    assert subprocess.run([str(word) for word in command], check=False, timeout=30).returncode == 0
    wait_until(lambda: not below(tmp_path))


# One site's process waits a minute for an answer that the test does not wait for.
SIMULATION = """
import sys
from pathlib import Path
from canal.federation.job import simulate
folder = Path(sys.argv[1])
simulate(folder / "run", {name: folder / "sites" / name for name in sys.argv[2:]}, folder / "order")
"""


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["starter", "simulator"])
def test_a_killed_simulation_leaves_no_process(tmp_path: Path, whom: str) -> None:
    """Server and sites as well, which FLARE starts in sessions of their own."""
    pytest.importorskip("nvflare", reason="NVIDIA FLARE is absent; pip install 'canal[federation]'")
    from federation.hosts import SITES, answers, environment

    for name in SITES:
        (tmp_path / "sites" / name).mkdir(parents=True)
    out = tmp_path / "answers.json"
    (tmp_path / "order").write_text(json.dumps({"steps": ["who", "sleep:60"], "out": str(out)}))
    process = subprocess.Popen(
        [sys.executable, "-c", SIMULATION, str(tmp_path), *SITES], env=environment()
    )
    who = answers(out)[0]["answers"]
    sites = {json.loads(each)[1] for each in who.values()}
    assert sites <= below(tmp_path).keys()
    simulator = [pid for pid, words in below(tmp_path).items() if "simulator.simulator" in words]
    os.kill(process.pid if whom == "starter" else min(simulator), signal.SIGKILL)
    wait_until(lambda: not below(tmp_path))
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in sites))
    process.wait(10)
