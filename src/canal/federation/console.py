"""The admin's words to the server, in a process of its own.

FLARE's session prints, keeps threads and leaves sockets open; none of it may reach the one who
calls us. So one JSON document comes in and one goes out, and the process ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from canal.errors import FederationError

# What the server keeps of a job: whether its order was carried out, and if not, why.
OUTCOME = "outcome.json"
CONNECT = 5.0  # seconds
PATIENCE = 60.0


def require_flare() -> None:
    """Refuse where FLARE is not installed.

    Raises:
        FederationError: says how to install it.
    """
    if importlib.util.find_spec("nvflare") is None:
        raise FederationError(
            "a federation runs on NVIDIA FLARE; install it with `pip install 'canal[federation]'`"
        )


def tell(kit: Path, verb: str, **details: Any) -> Any:
    """Have one thing done by the server that a kit belongs to, and give what it says.

    Args:
        kit: the admin's.
        verb: `connected`, `submit`, `status` or `wait`.
        details: of the verb.

    Raises:
        FederationError: not an admin's kit, no FLARE, no server, or the server refuses.
    """
    settings = kit / "startup" / "fed_admin.json"
    try:
        admin = json.loads(settings.read_text())["admin"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FederationError(
            f"{kit} is not an admin's kit: {settings} cannot be read; give the folder of the admin"
        ) from error
    require_flare()
    words = {"kit": str(kit.resolve()), "user": admin["username"], "verb": verb} | details
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "canal.federation.console"],
        input=json.dumps(words).encode(),
        capture_output=True,
        check=False,
    )
    where = f"the server at {admin['host']}:{admin['port']}"
    try:
        said = json.loads(ran.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise FederationError(f"no word from {where}: {' '.join(last)}") from error
    if "error" in said:
        raise FederationError(f"{where} {said['error']}")
    return said["result"]


def _main() -> None:
    """Read the words, do them, print what came of it."""
    words = json.loads(sys.stdin.read())
    with contextlib.redirect_stdout(sys.stderr):
        said = _say(words)
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    # Threads of the session would hold an ordinary exit.
    os._exit(0)


def _say(words: dict[str, Any]) -> dict[str, Any]:
    from nvflare.fuel.flare_api import api_spec
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    try:
        session = new_secure_session(words["user"], words["kit"], timeout=CONNECT)
    except Exception as error:
        return {
            "error": f"does not answer, or not to this kit; start it, or open its port: {error}"
        }
    try:
        return {"result": _VERBS[words["verb"]](session, words)}
    except api_spec.JobNotFound:
        return {"error": f"knows no job {words['job']}"}
    except (api_spec.NoConnection, api_spec.SessionClosed) as error:
        return {"error": f"went away; ask again when it is back: {error}"}
    except Exception as error:
        return {"error": f"refused: {error}"}
    finally:
        with contextlib.suppress(Exception):
            session.close()


def _connected(session: Any, words: dict[str, Any]) -> list[str]:  # noqa: ARG001
    return sorted(client.name for client in session.get_connected_client_list())


def _submit(session: Any, words: dict[str, Any]) -> str:
    return str(session.submit_job(words["folder"]))


def _status(session: Any, words: dict[str, Any]) -> dict[str, Any]:
    meta = session.get_job_meta(words["job"])
    state = str(meta["status"])
    started = str(meta.get("start_time") or "")
    since = session.get_system_info().server_info.start_time
    if not state.startswith("FINISHED") and started and _seconds(started) < float(since):
        # FLARE forgets the jobs of a server that was killed, and calls them running for ever.
        state = "LOST"
    outcome = {"complete": state == "FINISHED:COMPLETED", "reason": ""}
    if state.startswith("FINISHED") and not outcome["complete"]:
        # FLARE also calls a job abnormal when a site went away after the order was carried out.
        outcome = _outcome(session, words["job"]) or outcome
    told = {"job": words["job"], "state": state, "started": started}
    return told | {"sites": _connected(session, words)} | outcome


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _wait(session: Any, words: dict[str, Any]) -> dict[str, Any]:
    end = math.inf if words["seconds"] is None else time.monotonic() + words["seconds"]
    while True:
        found = _status(session, words)
        if found["state"] == "LOST" or found["state"].startswith("FINISHED"):
            return found
        if time.monotonic() > end:
            return found
        time.sleep(words["every"])


def _outcome(session: Any, job: str) -> dict[str, Any]:
    """What the server noted at the end of a job; empty where it could not."""
    with tempfile.TemporaryDirectory() as place:
        with contextlib.suppress(Exception):
            session.download_job_result(job, place)
        found = next(Path(place).rglob(OUTCOME), None)
        return {} if found is None else dict(json.loads(found.read_text()))


_VERBS = {"connected": _connected, "submit": _submit, "status": _status, "wait": _wait}

if __name__ == "__main__":
    _main()
