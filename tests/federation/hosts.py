"""A federation of real processes for the tests: started from its kits, and surely ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from canal.errors import FederationError
from canal.federation.job import connected, submit
from canal.federation.provision import Kits, provision

STAND_IN = Path(__file__).parent / "stand_in"
SITES = ("north", "south", "west")


class Hosts:
    """Server and sites, each a process with its kit.

    Args:
        folder: for kits, logs and the sites' canal folders.
        server: host name of the server.
        prefix: by party, the command that a start is wrapped in: another network, for one.
        stand_in: whether sites echo what they are asked; else they are real ones.
    """

    def __init__(
        self,
        folder: Path,
        server: str = "localhost",
        prefix: dict[str, Sequence[str]] | None = None,
        *,
        stand_in: bool = True,
    ) -> None:
        self.folder = folder
        self.kits: Kits = provision(folder / "fed", server, SITES, "admin@canal.org", free_port())
        self._prefix = prefix or {}
        self._stand_in = stand_in
        self._started: list[subprocess.Popen[bytes]] = []
        for name, kit in self.kits.sites.items():
            (folder / "sites" / name).mkdir(parents=True)
            settings = {"folder": str(folder / "sites" / name)}
            (kit / "local" / "canal.json").write_text(json.dumps(settings))

    def start(self, name: str) -> None:
        """Start one party."""
        kit = self.kits.server if name == "server" else self.kits.sites[name]
        with (self.folder / f"{name}.log").open("a") as log:
            self._started.append(
                subprocess.Popen(
                    [*self._prefix.get(name, ()), str(kit / "start")],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=environment(stand_in=self._stand_in),
                )
            )

    def kill(self, name: str) -> None:
        """Kill one party, with the jobs that it runs."""
        kit = self.kits.server if name == "server" else self.kits.sites[name]
        end_all(kit)

    def end(self) -> None:
        """Kill all of them, and see them dead."""
        end_all(self.folder)
        for process in self._started:
            process.wait(timeout=10)

    def wait_for(self, *names: str) -> None:
        """Until these sites are connected."""

        def there() -> bool:
            try:
                return set(names) <= set(connected(self.kits.admin))
            except FederationError:
                return False

        until(there, 90)

    def order(self, *steps: str, seconds: float = 60) -> tuple[str, Path]:
        """Submit an order; gives the job, and the file that its answers are noted in."""
        count = len(list(self.folder.glob("order-*.json")))
        path = self.folder / f"order-{count}.json"
        out = self.folder / f"answers-{count}.json"
        path.write_text(json.dumps({"steps": steps, "out": str(out)}))
        return submit(self.kits.admin, str(path), seconds=seconds), out


def environment(*, stand_in: bool = True) -> dict[str, str]:
    """For the processes of a federation: this Python, one thread, perhaps the stand-in."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    known = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    if not stand_in:
        return known
    paths = [str(STAND_IN), *filter(None, [os.environ.get("PYTHONPATH")])]
    return known | {"PYTHONPATH": os.pathsep.join(paths), "CANAL_STAND_IN": "1"}


@contextmanager
def running(hosts: Hosts) -> Iterator[Hosts]:
    """All of them up; all of them gone afterwards, whatever happened."""
    try:
        for name in ("server", *SITES):
            hosts.start(name)
        hosts.wait_for(*SITES)
        yield hosts
    finally:
        hosts.end()


@contextmanager
def networks(parties: Sequence[str]) -> Iterator[tuple[str, dict[str, Sequence[str]]]]:
    """A network namespace for each party, joined by a bridge; this process is the admin's host.

    Gives the server's address, and by party the command that runs another one in its network.
    """
    tag = f"{os.getpid() % 10000:04}"
    bridge = f"cb{tag}"
    made = []
    tool = shutil.which("ip")
    if os.geteuid() or tool is None:
        pytest.skip("network namespaces need root and iproute2")

    def ip(words: str) -> None:
        ran = subprocess.run([tool, *words.split()], capture_output=True, check=False)
        if ran.returncode:
            pytest.skip(f"no network namespaces here: {ran.stderr.decode().strip()}")

    try:
        ip(f"link add {bridge} type bridge")
        ip(f"addr add 10.213.77.254/24 dev {bridge}")
        ip(f"link set {bridge} up")
        for number, name in enumerate(parties, 1):
            space = f"canal{tag}-{name}"
            ip(f"netns add {space}")
            made.append(space)
            ip(f"link add cv{tag}{number} type veth peer name eth0 netns {space}")
            ip(f"link set cv{tag}{number} master {bridge} up")
            ip(f"-n {space} addr add 10.213.77.{number}/24 dev eth0")
            ip(f"-n {space} link set eth0 up")
            ip(f"-n {space} link set lo up")
        where = {name: (tool, "netns", "exec", f"canal{tag}-{name}") for name in parties}
        yield f"10.213.77.{1 + list(parties).index('server')}", where
    finally:
        for space in made:
            subprocess.run([tool, "netns", "del", space], check=False)
        subprocess.run([tool, "link", "del", bridge], capture_output=True, check=False)


def end_all(folder: Path) -> None:
    """Kill every process that was started from a kit below this folder.

    FLARE puts the process of a job into a session of its own: a process group would miss it.
    """
    for _ in range(3):
        for pid in processes(folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


def processes(folder: Path) -> list[int]:
    """The processes whose command line names this folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in command and int(place.name) != os.getpid():
            found.append(int(place.name))
    return found


def answers(out: Path, count: int = 1, seconds: float = 60) -> list[dict[str, Any]]:
    """What an order noted, once it has taken so many steps."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        if out.exists():
            found[:] = json.loads(out.read_text())
        return len(found) >= count

    until(there, seconds)
    return found


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for something, and fail where it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.2)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])
