"""Transport: carries messages between an aggregator and the sites, and promises nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol


class Transport(Protocol):
    """To all sites of one federation.

    Guarantees:
        What `ask` returns has exactly the sites that were asked. Whoever answers is the one who
        was asked; what it answers, nobody vouches for.
    """

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites."""

    def ask(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send each site its message, and wait for all answers.

        Raises:
            FederationError: a site did not answer; it is named, and no answer is given.
        """


class InMemory:
    """Sites in this process; for tests and rehearsals.

    Args:
        handlers: by name, what answers a message.
    """

    def __init__(self, handlers: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self.handlers = dict(handlers)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites."""
        return tuple(self.handlers)

    def ask(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Have every site answer in a thread of its own."""
        with ThreadPoolExecutor(max(1, len(requests))) as pool:
            asked = {
                name: pool.submit(self.handlers[name], request)
                for name, request in requests.items()
            }
            return {name: answer.result() for name, answer in asked.items()}
