"""One order as a job of FLARE: rehearsed on this machine, or sent to a federation that is up.

A job is three small files that name our two classes and the order. It brings no code, and it says
who takes part: all sites of the roster, or nobody.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from canal.errors import FederationError
from canal.federation import supervisor
from canal.federation.console import OUTCOME, require_flare, tell
from canal.federation.kit import AGGREGATION, HOSPITAL
from canal.federation.transport import SECONDS


@dataclass(frozen=True)
class Status:
    """How a job stands.

    Args:
        job: its id.
        state: FLARE's word: `SUBMITTED`, `RUNNING`, `FINISHED:COMPLETED`, ...; or `LOST`, where the
            server was started again since.
        started: when it started, ISO 8601; empty while it waits for a site.
        sites: who is connected to the server now.
        complete: whether the order was carried out to its end.
        reason: why it was not, in the server's words; empty where it was, or nothing is known.
    """

    job: str
    state: str
    started: str
    sites: tuple[str, ...]
    complete: bool
    reason: str

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Status:
        """From what the server said."""
        return cls(**dict(said) | {"sites": tuple(said["sites"])})

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state == "LOST" or self.state.startswith("FINISHED")


def write_job(folder: Path, order: str, sites: Sequence[str], *, seconds: float = SECONDS) -> None:
    """Write the definition of a job.

    Args:
        folder: made.
        order: path on the server's host.
        sites: all who take part.
        seconds: to wait for an answer.
    """
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    meta = {
        "name": "canal",
        "resource_spec": {},
        "deploy_map": {"app": ["@ALL"]},
        "min_clients": len(sites),
        "mandatory_clients": list(sites),
    }
    at_server = {
        "id": "aggregation",
        "path": AGGREGATION,
        "args": {"order": order, "sites": list(sites), "seconds": seconds},
    }
    at_site = {"tasks": ["*"], "executor": {"path": HOSPITAL, "args": {}}}
    for path, content in (
        (folder / "meta.json", meta),
        (config / "config_fed_server.json", {"format_version": 2, "workflows": [at_server]}),
        (config / "config_fed_client.json", {"format_version": 2, "executors": [at_site]}),
    ):
        path.write_text(json.dumps(content, indent=1) + "\n")


def simulate(
    folder: Path, sites: Mapping[str, Path], order: Path, *, seconds: float = SECONDS
) -> None:
    """Carry out an order in FLARE's simulator: one process a site, all on this machine, no TLS.

    However this process ends, those end with it.

    Args:
        folder: made; FLARE's logs are left in it.
        sites: by name, the canal folder of each.
        order: what is to be done.
        seconds: to wait for an answer.

    Raises:
        FederationError: it was not carried out; the message says why, or where to look.
    """
    require_flare()
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise FederationError(f"{folder} is not empty; a simulation wants a folder of its own")
    local = folder / "workspace" / "local"
    local.mkdir(parents=True)
    folders = {name: str(path.resolve()) for name, path in sites.items()}
    (local / "canal.json").write_text(json.dumps({"folders": folders}, indent=1) + "\n")
    allowed = {
        "class_allow_list": [AGGREGATION, HOSPITAL],
        "class_list_enforcement_mode": "enforce",
    }
    (local / "resources.json").write_text(json.dumps(allowed, indent=1) + "\n")
    write_job(folder / "job", str(order.resolve()), list(sites), seconds=seconds)
    command = [sys.executable, "-P", "-m", "nvflare.private.fed.app.simulator.simulator"]
    command += [str(folder / "job"), "-w", str(folder / "workspace")]
    command += ["-c", ",".join(sites), "-t", str(len(sites))]
    log = folder / "simulator.log"
    with log.open("w") as out:
        code = supervisor.run(command, out)
    found = next((folder / "workspace").rglob(OUTCOME), None)
    if found is None:
        raise FederationError(f"the simulator stopped with code {code}; {log} says why")
    if reason := json.loads(found.read_text())["reason"]:
        raise FederationError(reason)


def submit(kit: Path, order: str, *, seconds: float = SECONDS) -> str:
    """Send an order to the federation that a kit belongs to; gives the id of the job.

    Args:
        kit: the admin's.
        order: path on the server's host.
        seconds: to wait for an answer of a site.

    Raises:
        FederationError: no kit, no server, or no leave.
    """
    try:
        sites = list(json.loads((kit / "local" / "roster.json").read_text()))
    except (OSError, ValueError) as error:
        raise FederationError(
            f"{kit} is not a kit of `canal federation provision`: it has no local/roster.json"
        ) from error
    with tempfile.TemporaryDirectory() as place:
        write_job(Path(place) / "canal", order, sites, seconds=seconds)
        return str(tell(kit, "submit", folder=str(Path(place) / "canal")))


def connected(kit: Path) -> tuple[str, ...]:
    """Which sites are connected to the server now.

    Raises:
        FederationError: no kit, or no server.
    """
    return tuple(tell(kit, "connected"))


def status(kit: Path, job: str) -> Status:
    """How a job stands, and who is connected.

    Raises:
        FederationError: no kit, no server, or no such job.
    """
    return Status.of(tell(kit, "status", job=job))


def wait(kit: Path, job: str, *, seconds: float | None = None, every: float = 2.0) -> Status:
    """Wait until a job is over, whatever came of it.

    Args:
        kit: the admin's.
        job: its id.
        seconds: to wait at most; for ever where it is not given.
        every: seconds between two looks.

    Raises:
        FederationError: it was not over in time, or the server is gone.
    """
    found = Status.of(tell(kit, "wait", job=job, seconds=seconds, every=every))
    if not found.is_over:
        raise FederationError(
            f"job {job} is {found.state} after {seconds:g} s; connected: "
            f"{', '.join(found.sites) or 'nobody'}. Wait longer, or look at the sites"
        )
    return found
