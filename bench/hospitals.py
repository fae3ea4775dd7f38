"""A federation that is up, and makes one release after the other, each measured.

A job of FLARE takes seconds to start, which is no part of a release. So one job runs for as long as
a federation is up, and its server takes orders over a socket: `sitecustomize.py`, which is written
here, puts `serve` where FLARE's class looks for the aggregator. All else is as in a hospital.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.lab import Lab
from bench.measuring import TAG, Clock, Counted, end_all
from canal.errors import FederationError
from canal.features.store import Release
from canal.federation.identity import Identity
from canal.federation.job import connected, submit
from canal.release.plan import Trust

if TYPE_CHECKING:
    from canal.federation.provision import Kits
    from canal.federation.transport import Transport

HOOK = """
import sys, types


def run(order, transport):
    del sys.modules["canal.federation.aggregate"]
    from bench.hospitals import serve

    serve(order, transport)


module = types.ModuleType("canal.federation.aggregate")
module.run = run
sys.modules[module.__name__] = module
"""
SIMULATE = """
import json, sys
from pathlib import Path
from canal.federation.job import simulate

folder, homes, order = sys.argv[1:]
simulate(Path(folder), {name: Path(home) for name, home in json.loads(homes).items()}, Path(order))
"""
UP = 300.0  # seconds to wait for a federation to be up
DONE = 600.0  # and for a release


@dataclass(frozen=True)
class Measured:
    """One release of a federation.

    Args:
        seconds: on the server's clock.
        server_cpu: seconds of CPU that the server's process spent, beyond what it spends when idle.
        site_cpu: the same of every site's, in a simulation.
        requests: by site, bytes that it was sent.
        answers: by site, bytes that it sent.
        manifest: digest of what was published.
    """

    seconds: float
    server_cpu: float
    site_cpu: list[float]
    requests: dict[str, int]
    answers: dict[str, int]
    manifest: str


@dataclass(frozen=True)
class Federation:
    """Sites and server that are up, and wait.

    Args:
        lab: what they work on.
        line: to the server's process.
        kits: of all parties; None in a simulation.
    """

    lab: Lab
    line: socket.socket
    kits: Kits | None = None

    def release(self, trust: Trust) -> Measured:
        """Have one made, and clear it away."""
        out = self.lab.out()
        _tell(self.line, {"out": str(out), "trust": trust})
        said = _hear(self.line) or {"error": "the server is gone"}
        if "error" in said:
            raise RuntimeError(f"there is no release: {said['error']}")
        made = Release.open(out)
        shutil.rmtree(out.parent)
        return Measured(**said, manifest=made.manifest.digest)


def serve(address: Path, transport: Transport) -> None:
    """In the server's process, instead of an order: carry out those that come.

    Args:
        address: of the socket that they come from, in the folder of a lab.
        transport: to the sites.
    """
    from canal.federation import aggregate
    from canal.federation.aggregate import run

    lab, counted = Lab(address.parent, transport.sites), Counted(transport)
    clock = Clock(aggregate.publish, sites="simulator_worker")
    aggregate.publish = clock
    clock.rest(5.0)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(address))
        while (asked := _hear(line)) is not None:
            counted.clear()
            try:
                run(lab.order(Path(asked["out"]), asked["trust"]), counted)
            except Exception as error:
                _tell(line, {"error": repr(error)})
            else:
                sizes = {"requests": counted.requests, "answers": counted.answers}
                _tell(line, clock.found | sizes)
    # Whoever asked is done, or was killed: then nobody else would end the others.
    end_all(os.environ[TAG])


@contextmanager
def over_mtls(lab: Lab) -> Iterator[Federation]:
    """Server and sites as processes of their own, from their kits."""
    from canal.federation.provision import provision

    kits = provision(lab.folder / "fed", "localhost", lab.names, "admin@canal.org", _free_port())
    for name, kit in kits.sites.items():
        (kit / "local" / "canal.json").write_text(json.dumps({"folder": str(lab.home(name))}))
        certificate, key = (str(kit / "startup" / f"client.{kind}") for kind in ("crt", "key"))
        lab.admit(name, kits.roster, certificate=certificate, key=key)

    def begin(address: Path) -> None:
        end = time.monotonic() + UP
        while not set(lab.names) <= set(_connected(kits.admin)):
            if time.monotonic() > end:
                raise TimeoutError(f"not all sites were connected within {UP:g} s")
        submit(kits.admin, str(address))

    parties = {"server": kits.server, **kits.sites}
    commands = {name: [str(kit / "start")] for name, kit in parties.items()}
    with _started(lab, commands, begin) as line:
        yield Federation(lab, line, kits)


@contextmanager
def in_the_simulator(lab: Lab) -> Iterator[Federation]:
    """The same in FLARE's simulator: a process a site, without TLS."""
    prints = {name: Identity.create(lab.home(name), name).fingerprint for name in lab.names}
    for name in lab.names:
        lab.admit(name, prints)
    homes = json.dumps({name: str(lab.home(name)) for name in lab.names})
    words = [str(lab.folder / "simulation"), homes, str(lab.folder / "line")]
    commands = {"simulator": [sys.executable, "-P", "-c", SIMULATE, *words]}
    with _started(lab, commands, lambda address: None) as line:
        yield Federation(lab, line)


@contextmanager
def _started(
    lab: Lab, commands: Mapping[str, list[str]], begin: Callable[[Path], None]
) -> Iterator[socket.socket]:
    """Run these, and wait until the server's job calls; none of them is left afterwards."""
    environment, processes = _environment(lab.folder), []
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(lab.folder / "line"))
            door.listen(1)
            door.settimeout(UP)
            for name, command in commands.items():
                with (lab.folder / f"{name}.log").open("w") as log:
                    started = subprocess.Popen(
                        command,
                        env=environment,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                processes.append(started)
            try:
                begin(lab.folder / "line")
                line, _ = door.accept()
            except (TimeoutError, FederationError) as error:
                raise RuntimeError(f"no federation: {error}; {_last_words(lab)}") from error
        line.settimeout(DONE)
        with line:
            yield line
    finally:
        end_all(str(lab.folder))
        for process in processes:
            process.wait(timeout=30)
        signal.signal(signal.SIGTERM, former)


def _environment(folder: Path) -> dict[str, str]:
    """Of all processes: this Python, this code, one thread, the hook, and the tag."""
    hook = folder / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    paths = [str(hook), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        TAG: str(folder),
    }


def _last_words(lab: Lab) -> str:
    logs = sorted(lab.folder.glob("*.log"))
    return "; ".join(f"{log.stem}: {''.join(log.read_text().splitlines()[-1:])}" for log in logs)


def _connected(admin: Path) -> tuple[str, ...]:
    with suppress(FederationError):
        return connected(admin)
    return ()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


def _tell(line: socket.socket, words: Mapping[str, Any]) -> None:
    line.sendall(json.dumps(words).encode() + b"\n")


def _hear(line: socket.socket) -> dict[str, Any] | None:
    """One line; None where the other end is gone."""
    heard = b""
    while not heard.endswith(b"\n"):
        part = line.recv(1 << 16)
        if not part:
            return None
        heard += part
    return dict(json.loads(heard))
