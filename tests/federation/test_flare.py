"""Server and three sites as processes of their own, from their kits, over mutual TLS."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

from canal.errors import FederationError

pytest.importorskip("nvflare", reason="NVIDIA FLARE is absent; pip install 'canal[federation]'")

from canal.federation.job import connected, status, wait
from federation.hosts import SITES, Hosts, answers, running


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with running(Hosts(tmp_path_factory.mktemp("hosts"))) as all_up:
        yield all_up


def test_bytes_reach_each_site_and_come_back(hosts: Hosts) -> None:
    job, out = hosts.order("hello NAME", "who", "fill:13000", "bye NAME", "who")
    found = wait(hosts.kits.admin, job, seconds=90, every=0.5)
    assert (found.state, found.reason) == ("FINISHED:COMPLETED", "")
    assert found.sites == SITES
    hello, who, fill, bye, again = (one["answers"] for one in answers(out))
    assert hello == {name: f"back:hello {name}" for name in SITES}
    assert bye == {name: f"back:bye {name}" for name in SITES}
    long = bytes(range(256)) * 13000
    assert set(fill.values()) == {f"{len(long)} bytes, {hashlib.sha256(long).hexdigest()}"}
    # One process a site, opened once, with the folder that the site itself has named.
    assert who == again
    assert [json.loads(who[name])[0] for name in SITES] == list(SITES)
    assert len({json.loads(one)[1] for one in who.values()}) == 3
    assert {json.loads(one)[2] for one in who.values()} == {1}
    check_nothing_lies_about(hosts)


def check_nothing_lies_about(hosts: Hosts) -> None:
    """What the server keeps is in its kit, and no line of a site's log is among it."""
    kit = hosts.kits.server
    assert list((kit / "jobs").iterdir())
    assert (kit / "snapshots").is_dir()
    kept = b"".join(path.read_bytes() for path in kit.rglob("*") if path.is_file())
    assert b"Hospital" not in kept.replace(b"canal.federation.flare.Hospital", b"")


def test_a_killed_site_is_named_and_nothing_is_taken_from_the_others(hosts: Hosts) -> None:
    job, out = hosts.order("who", "sleep:120")
    pids = {name: json.loads(one)[1] for name, one in answers(out)[0]["answers"].items()}
    time.sleep(1)
    os.kill(pids["south"], signal.SIGKILL)
    began = time.monotonic()
    _, asked = answers(out, 2)
    assert time.monotonic() - began < 30
    assert list(asked["answers"]) == ["error"]
    assert "south (gone)" in asked["answers"]["error"]
    found = wait(hosts.kits.admin, job, seconds=90, every=0.5)
    assert (found.is_over, found.complete) == (True, False)
    assert "south (gone)" in found.reason


def test_a_server_killed_and_started_again_takes_new_orders(hosts: Hosts) -> None:
    lost, out = hosts.order("who", "sleep:120")
    answers(out)
    hosts.kill("server")
    with pytest.raises(FederationError, match=r"the server at localhost:\d+ does not answer"):
        connected(hosts.kits.admin)
    hosts.start("server")
    hosts.wait_for(*SITES)
    job, out = hosts.order("hello NAME")
    assert wait(hosts.kits.admin, job, seconds=120, every=0.5).complete
    assert answers(out)[0]["answers"]["west"] == "back:hello west"
    found = status(hosts.kits.admin, lost)
    assert (found.state, found.is_over, found.complete) == ("LOST", True, False)
