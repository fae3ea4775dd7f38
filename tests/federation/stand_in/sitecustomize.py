"""Stands in for the protocol in the processes of a test: a site that echoes, an order that asks.

Python loads it at start where its folder is on PYTHONPATH; it does nothing unless told to.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any


class Site:
    """Does what the message says; `open` is counted, since it is to happen once a process."""

    opened = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path) -> Site:
        cls.opened += 1
        return cls(folder)

    def answer(self, message: bytes) -> bytes:
        word, _, rest = message.partition(b":")
        if word == b"sleep":
            time.sleep(float(rest))
        if word == b"who":
            return json.dumps([self.folder.name, os.getpid(), self.opened]).encode()
        if word == b"fill":
            return bytes(range(256)) * int(rest)
        return b"back:" + message


def run(order: Path, transport: Any) -> None:
    """Ask what each step of the order says, of each site by its name, and note all that happens."""
    wanted = json.loads(order.read_text())
    seen: list[dict[str, Any]] = []
    for step in wanted["steps"]:
        began = time.monotonic()
        requests = {name: step.replace("NAME", name).encode() for name in transport.sites}
        try:
            answers = transport.ask(requests)
            note = {name: shown(answer) for name, answer in answers.items()}
        except Exception as error:
            note = {"error": str(error)}
            raise
        finally:
            seen.append({"seconds": time.monotonic() - began, "answers": note})
            part = Path(wanted["out"] + ".part")
            part.write_text(json.dumps(seen))
            part.replace(wanted["out"])


def shown(answer: bytes) -> str:
    """An answer as text, by its hash where it is long."""
    if len(answer) < 200:
        return answer.decode()
    return f"{len(answer)} bytes, {hashlib.sha256(answer).hexdigest()}"


def install() -> None:
    """Take the place of the modules that FLARE's classes import when a job runs."""
    for name, member in (("site", Site), ("aggregate", run)):
        module = types.ModuleType(f"canal.federation.{name}")
        setattr(module, member.__name__, member)
        sys.modules[module.__name__] = module


if "CANAL_STAND_IN" in os.environ:
    install()
