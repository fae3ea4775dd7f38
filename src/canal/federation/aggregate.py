"""A release across sites: carry out an order, with all that goes before a release.

Stopped anywhere, the same order goes on: what the sites said they say again, word for word, and
nobody pays twice.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.errors import FederationError
from canal.federation.message import Message
from canal.federation.remote import RemoteFederation, ask
from canal.federation.settings import Order
from canal.files import fsync_folder, replace_file
from canal.learning import checkpoint
from canal.learning.checkpoint import DESCRIPTION, WEIGHTS
from canal.release.mechanism import digest
from canal.release.publish import publish
from canal.release.registry import kind_of
from canal.release.store import open_release
from canal.release.workspace import Workspace

if TYPE_CHECKING:
    from canal.data.arrays import Arrays
    from canal.federation.transport import Transport
    from canal.release.store import Folder

PROGRESS = "progress.json"
_log = logging.getLogger(__name__)


def run(
    order: Path | Order,
    transport: Transport,
    progress: Callable[[int], None] = lambda count: None,
) -> Folder:
    """Carry out an order.

    Args:
        order: what is asked for.
        transport: to the sites.
        progress: called with the number of images that passed through a network, or of rounds.
    """
    order = Order.read(order) if isinstance(order, Path) else order
    job = kind_of(order.release).job(order, Parties(order, transport), progress)
    out = order.path(order.out)
    publish(
        *(out, job.mechanism, job.federation),
        about=order.about,
        overlap=order.recorded(job.overlap),
        report=job.report,
    )
    made: Folder = open_release(out)
    return made


@dataclass(frozen=True)
class Parties:
    """The sites that an order is for, and what goes before a release.

    Args:
        order: what is asked for.
        transport: to the sites.
    """

    order: Order
    transport: Transport

    @property
    def seed(self) -> int | None:
        """The seed of a research run."""
        return None if self.order.seed < 0 else self.order.seed

    def join(self, wanted: Mapping[str, Any] | None = None) -> RemoteFederation:
        """Have all sites introduce themselves.

        Args:
            wanted: what they must know for that.
        """
        order = self.order
        return RemoteFederation(
            *(self.transport, session(order), order.release, order.trust, wanted),
            research=self.seed is not None,
        )

    def send_initialisation(self, init: Path) -> None:
        """Send every site the initialisation; it is public."""
        weights = np.frombuffer((init / WEIGHTS).read_bytes(), dtype=np.uint8)
        head = {
            "kind": "initialise",
            "initialisation": checkpoint.describe(init).initialisation,
            "description": (init / DESCRIPTION).read_text(),
        }
        ask(self.transport, Message(head, {"weights": weights}))

    def train_teachers(self, initialisation: str) -> None:
        """Have every site train its teacher, where it has none yet."""
        question = Message({"kind": "train", "initialisation": initialisation})
        while True:
            answers = ask(self.transport, question)
            states = {name: answer.head["state"] for name, answer in answers.items()}
            failed = sorted(name for name, state in states.items() if state == "failed")
            if failed:
                raise FederationError(f"training failed at {', '.join(failed)}; its log says why")
            if set(states.values()) == {"ready"}:
                return
            _log.info("training: %s", states)
            time.sleep(self.order.wait)

    def images(self, start: checkpoint.Checkpoint) -> Arrays:
        """The recipient's images, as large as a network wants them."""
        return read_images(self.order, start)

    def choices(self, **fitting: Any) -> dict[str, Any]:
        """Arguments of a plan: what sites and networks say, and what the order chooses.

        Args:
            fitting: what is not for the order to choose.
        """
        order = self.order
        fitting |= {
            "trust": order.trust,
            "colluding": order.colluding if order.trust == "secure-sum" else 0,
        }
        fixed = sorted(fitting.keys() & order.plan.keys())
        if fixed:
            raise FederationError(
                f"[plan] cannot set {', '.join(fixed)}: sites, queries and networks say what it is"
            )
        return fitting | order.plan

    def counted(self, total: int, progress: Callable[[int], None]) -> Callable[[int], None]:
        """Reports progress, and saves it in the private folder at most twice a second."""
        path = Workspace(self.order.path(self.order.out)).private / PROGRESS
        done, saved = 0, 0.0

        def count(more: int) -> None:
            nonlocal done, saved
            done += more
            progress(more)
            if time.monotonic() > saved + 0.5:
                replace_file(path, json.dumps({"done": done, "of": total}).encode())
                saved = time.monotonic()

        return count


def read_images(order: Order, start: checkpoint.Checkpoint) -> Arrays:
    """The recipient's images, as large as a network wants them."""
    from canal.data.load import load

    return load(
        order.path(order.queries),
        size=start.size[0],
        split=order.path(order.split) if order.split else None,
        part=order.part,
        channels=int(start.architecture["in_channels"]),
        unlabelled=True,
        accept=order.accept,
    )


def how_far(out: Path) -> tuple[int, int]:
    """Images that passed through networks for the release that is being made, and of how many."""
    try:
        noted = json.loads((Workspace(out).private / PROGRESS).read_text())
        return int(noted["done"]), int(noted["of"])
    except (OSError, ValueError, LookupError):
        return 0, 0


def session(order: Order) -> str:
    """The name of the session that carries an order out: the one that is kept, or a new one.

    What was not begun under one order may be ordered otherwise, in the same place; that is another
    session then.
    """
    private = Workspace(order.path(order.out)).private
    what = asdict(order) | {"folder": str(order.folder)}
    for unasked in ("wait", "train"):
        del what[unasked]
    path, about = private / "session", digest(what).hex()
    begun = (private / "claim.json").is_file()
    if path.is_file():
        name, _, of = path.read_text().partition(" ")
        if begun or of == about:
            return name
    name = secrets.token_hex(16)
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, f"{name} {about}".encode())
    fsync_folder(private)
    return name
