"""Bytes over the loopback device: plain sockets with mutual TLS, a thread for each end."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from canal.federation.provision import Kits

SECONDS = 30.0  # of silence, after which something is wrong
_CHUNK = 1 << 20


def carry(kits: Kits, requests: Mapping[str, int], answers: Mapping[str, int]) -> float:
    """Seconds from the last handshake until all bytes arrived.

    Args:
        kits: whose certificates are shown and checked.
        requests: by site, how many bytes the server sends it.
        answers: by site, how many it sends back.
    """
    ready = threading.Barrier(2 * len(requests) + 1)
    server = _context(kits.server / "startup", "server", ssl.Purpose.CLIENT_AUTH)

    def at_the_server(name: str, plain: socket.socket) -> None:
        with server.wrap_socket(plain, server_side=True) as wire:
            ready.wait(SECONDS)
            _send(wire, requests[name])
            _receive(wire, answers[name])

    def at_the_site(name: str, plain: socket.socket) -> None:
        site = _context(kits.sites[name] / "startup", "client", ssl.Purpose.SERVER_AUTH)
        with site.wrap_socket(plain, server_hostname="localhost") as wire:
            ready.wait(SECONDS)
            _receive(wire, requests[name])
            _send(wire, answers[name])

    with (
        socket.create_server(("localhost", 0)) as door,
        ThreadPoolExecutor(2 * len(requests)) as pool,
    ):
        ends = []
        for name in requests:
            # One after the other, so that the server knows who is at the other end.
            there = socket.create_connection(door.getsockname(), timeout=SECONDS)
            here, _ = door.accept()
            here.settimeout(SECONDS)
            ends += [pool.submit(at_the_site, name, there), pool.submit(at_the_server, name, here)]
        ready.wait(SECONDS)
        start = time.perf_counter()
        for end in ends:
            end.result()
        return time.perf_counter() - start


def _context(startup: Path, role: str, purpose: ssl.Purpose) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cafile=str(startup / "rootCA.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(str(startup / f"{role}.crt"), str(startup / f"{role}.key"))
    return context


def _send(wire: ssl.SSLSocket, count: int) -> None:
    chunk = memoryview(bytes(_CHUNK))
    for start in range(0, count, _CHUNK):
        wire.sendall(chunk[: min(_CHUNK, count - start)])


def _receive(wire: ssl.SSLSocket, count: int) -> None:
    chunk = memoryview(bytearray(_CHUNK))
    while count:
        got = wire.recv_into(chunk[: min(_CHUNK, count)])
        if not got:
            raise ConnectionError(f"{count:,} bytes did not come")
        count -= got
