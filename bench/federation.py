"""The federation: what a secure sum, mutual TLS and more sites cost; needs NVIDIA FLARE and Linux.

What is timed is `canal.release.publish.publish`, whether the sites are processes of their own
or teachers in this one: from the agreement over one pass of all queries to the published folder.
FLARE's start of a job is no part of it. Public statistics are there already, as after a crash: they
take longer than all the rest, and are the same work on both sides.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import torch

from bench.hospitals import Federation, Measured, in_the_simulator, over_mtls
from bench.lab import KILOBYTES, Lab
from bench.loopback import carry
from bench.ratio import Ratio

QUERIES, ROUNDS = 2048, 3
FEW, MANY = 3, 12
FEWER_QUERIES = 512


def ratios() -> Iterator[Ratio]:
    """Every comparison of the federation; none where it cannot run, with the reason."""
    reason = _hindrance()
    if reason:
        print(f"federation: skipped, {reason}", file=sys.stderr)
        return
    with (
        tempfile.TemporaryDirectory(prefix="canal-") as name,
        # Decoded images stay out of the user's cache, in all processes that start from here.
        patch.dict(os.environ, CANAL_CACHE=str(Path(name) / "cache")),
    ):
        yield from secure_sum_and_tls(Path(name))
        yield from cost_as_sites_grow(Path(name))


def _hindrance() -> str:
    if importlib.util.find_spec("nvflare") is None:
        return "NVIDIA FLARE is absent; pip install 'canal[federation]'"
    if sys.platform != "linux":
        return "processes are found and measured in Linux's /proc"
    return ""


def secure_sum_and_tls(folder: Path) -> Iterator[Ratio]:
    """Secure sum against trusted, and trusted against one process and the bytes; in turns."""
    lab = Lab.make(folder / "mtls", FEW, QUERIES)
    with over_mtls(lab) as hospitals:
        rounds = list(_rounds(lab, hospitals))
    shutil.rmtree(lab.folder)
    what = f"{QUERIES:,} queries of {KILOBYTES} KB, {FEW} sites over mTLS, statistics given"
    yield _typical(
        f"secure-sum release: {what}",
        "trusted, same running federation",
        [(secure, trusted) for secure, trusted, _ in rounds],
        at_most=1.5,
    )
    yield _typical(
        f"trusted release: {what}",
        "in one process, and the same bytes over loopback TLS",
        [(trusted, alone) for _, trusted, alone in rounds],
        at_most=2.0,
    )


def _rounds(lab: Lab, hospitals: Federation) -> Iterator[tuple[float, float, float]]:
    """Seconds of a secure sum, of a trusted one, and of one process with the bytes behind it."""
    hospitals.release("trusted")
    # More threads than idle cores are far slower than one: the rival takes what serves it best.
    tries = 2 * [1, torch.get_num_threads()]
    threads = min(tries, key=lambda count: lab.alone("trusted", count, queries="few")[0])
    for _ in range(ROUNDS):
        secure = hospitals.release("secure-sum")
        trusted = hospitals.release("trusted")
        alone, manifest = lab.alone("trusted", threads)
        if manifest != trusted.manifest:
            raise RuntimeError("what is compared is not the same release")
        assert hospitals.kits is not None  # noqa: S101  # over mTLS there are kits
        wire = carry(hospitals.kits, trusted.requests, trusted.answers)
        yield secure.seconds, trusted.seconds, alone + wire


def cost_as_sites_grow(folder: Path) -> Iterator[Ratio]:
    """What a query costs a site and the server, divided by K: as much at 12 sites as at 3, or less.

    In CPU time: where twelve sites share a few cores, wall time says nothing. Of the server's, what
    FLARE spends on sites that nothing is asked of is taken off: that goes by the clock. Both
    simulations are up at once, 15 sites in all, and take turns.
    """
    labs = [Lab.make(folder / f"sites-{count}", count, FEWER_QUERIES) for count in (MANY, FEW)]
    with in_the_simulator(labs[0]) as many, in_the_simulator(labs[1]) as few:
        for warm in (many, few):
            warm.release("secure-sum")
        rounds = [(many.release("secure-sum"), few.release("secure-sum")) for _ in range(ROUNDS)]
    for who, cost in (
        ("a site", _of_a_site),
        ("the server (less its idling)", _of_the_server),
    ):
        yield _typical(
            f"CPU of {who} for a query, over K: secure sum, K = {MANY}, simulator, "
            f"{FEWER_QUERIES} queries, statistics given",
            f"K = {FEW}",
            [(cost(large), cost(small)) for large, small in rounds],
            at_most=1.2,
        )


def _of_a_site(found: Measured) -> float:
    return statistics.median(found.site_cpu) / len(found.site_cpu) / FEWER_QUERIES


def _of_the_server(found: Measured) -> float:
    return found.server_cpu / len(found.site_cpu) / FEWER_QUERIES


def _typical(
    what: str, against: str, rounds: list[tuple[float, float]], *, at_most: float
) -> Ratio:
    """The round whose ratio is the median; from seconds."""
    ordered = sorted(rounds, key=lambda each: each[0] / each[1])
    ours, theirs = ordered[len(ordered) // 2]
    return Ratio(what, against, ours * 1e3, theirs * 1e3, target=1 / at_most)
