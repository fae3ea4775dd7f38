"""Messages between the aggregator and the sites: bytes there, bytes back, from all or from none."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from canal.errors import FederationError

SECONDS = 600.0  # a batch through a teacher on a slow host, with room to spare


class Transport(Protocol):
    """Carries messages between the aggregator and the sites, and promises nothing else.

    Who answered is for the messages themselves to prove; so are their order and their freshness.
    """

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all who can be asked."""

    def ask(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send each named site its message, all at once, and wait for every answer.

        Guarantees:
            The answers of exactly these sites, in their order, or an error: never a part of them.
            Threads may ask at the same time.

        Args:
            requests: by site, what it is asked. Sites that are not named hear nothing.

        Raises:
            FederationError: somebody did not answer in time; the message names them.
        """


class InMemory:
    """Sites in this process: for tests, and for a rehearsal without FLARE.

    Args:
        handlers: by site, what answers its messages.
        seconds: to wait for an answer. A handler that hangs is left behind, not stopped.
    """

    def __init__(
        self, handlers: Mapping[str, Callable[[bytes], bytes]], *, seconds: float = SECONDS
    ) -> None:
        self.sites = tuple(handlers)
        self._handlers = dict(handlers)
        self._seconds = seconds

    def ask(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """See `Transport.ask`."""
        check_known(requests, self.sites)
        return gather(requests, lambda name, message: self._handlers[name](message), self._seconds)


def check_known(requests: Mapping[str, bytes], sites: tuple[str, ...]) -> None:
    """Refuse a message for a site that is not of this federation.

    Raises:
        FederationError: names the stranger, and who is known.
    """
    if strangers := [name for name in requests if name not in sites]:
        raise FederationError(
            f"there is no site {', '.join(strangers)} in this federation; it has {', '.join(sites)}"
        )


def gather(
    requests: Mapping[str, bytes], ask: Callable[[str, bytes], bytes], seconds: float
) -> dict[str, bytes]:
    """Ask all at once, each in a thread of its own, and give all answers or none.

    Args:
        requests: by site, what it is asked.
        ask: brings one message to one site, and its answer back; whatever it raises is a reason
            why there is none.
        seconds: after which whoever has not answered is taken to be gone, however many bytes
            still trickle.

    Raises:
        FederationError: names the sites that did not answer, each with its reason.
    """
    arrived: queue.SimpleQueue[tuple[str, bytes | Exception]] = queue.SimpleQueue()

    def run(name: str, message: bytes) -> None:
        try:
            arrived.put((name, ask(name, message)))
        except Exception as error:
            arrived.put((name, error))

    for name, message in requests.items():
        # A daemon: a site that never answers must not keep the process alive.
        threading.Thread(target=run, args=(name, message), name=f"ask-{name}", daemon=True).start()
    deadline = time.monotonic() + seconds
    answers: dict[str, bytes] = {}
    reasons: dict[str, str] = {}
    while len(answers) + len(reasons) < len(requests):
        try:
            name, answer = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(answer, bytes):
            answers[name] = answer
        else:
            reasons[name] = str(answer) or type(answer).__name__
    for name in requests:
        if name not in answers:
            reasons.setdefault(name, f"silent for {seconds:g} s")
    if reasons:
        told = "; ".join(f"{name} ({reason})" for name, reason in sorted(reasons.items()))
        raise FederationError(
            f"no answer from {told}; nothing was taken from the others. Ask again when all are back"
        )
    return {name: answers[name] for name in requests}
