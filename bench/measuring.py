"""What a release takes in several processes: time, CPU of each, bytes between them. Linux only."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from canal.federation.transport import Transport

# Names a folder in the environment of every process that is started for it, and of those that
# these start: FLARE gives some a session of their own, so that no process group holds all.
TAG = "CANAL_BENCH"


class Clock:
    """Calls a function in the server's process, and notes what it took.

    Args:
        call: the function.
        sites: found in the command of a site's process.
    """

    def __init__(self, call: Callable[..., Any], sites: str) -> None:
        self.call = call
        self.sites = sites
        self.found: dict[str, Any] = {}
        self._idle = 0.0

    def rest(self, seconds: float) -> None:
        """Learn what this process spends while nothing is asked of it.

        FLARE looks after every site all the time. Where many sites share a few cores, a release
        takes longer, and this grows with the square of their number; it is no cost of a query.
        """
        own = time.process_time()
        time.sleep(seconds)
        self._idle = (time.process_time() - own) / seconds

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Give what the function gives."""
        sites = [pid for pid in tagged(os.environ[TAG]) if self.sites in _command(pid)]
        before = [_cpu_seconds(pid) for pid in sites]
        own, start = time.process_time(), time.perf_counter()
        result = self.call(*values, **named)
        seconds = time.perf_counter() - start
        self.found = {
            "seconds": seconds,
            "server_cpu": time.process_time() - own - self._idle * seconds,
            "site_cpu": [
                _cpu_seconds(pid) - spent for pid, spent in zip(sites, before, strict=True)
            ],
        }
        return result


class Counted:
    """A transport that counts bytes.

    Args:
        inner: that carries them.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.sites = inner.sites
        self.requests: dict[str, int] = {}
        self.answers: dict[str, int] = {}
        self._turn = threading.Lock()

    def clear(self) -> None:
        """Begin at zero."""
        self.requests, self.answers = dict.fromkeys(self.sites, 0), dict.fromkeys(self.sites, 0)

    def ask(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """See `Transport.ask`."""
        found = self.inner.ask(requests)
        with self._turn:
            for name, answer in found.items():
                self.requests[name] += len(requests[name])
                self.answers[name] += len(answer)
        return found


def tagged(folder: str) -> list[int]:
    """The processes that were started for a folder."""
    found, tag = [], os.fsencode(f"{TAG}={folder}")
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if tag in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
        except OSError:
            continue
    return found


def end_all(folder: str) -> None:
    """Kill them, the caller last, if it is one of them."""
    for _ in range(3):
        for pid in sorted(tagged(folder), key=lambda pid: pid == os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _cpu_seconds(pid: int) -> float:
    """That a process spent so far, in its own code and in the system's."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
