"""Server and three sites as processes of their own, from their kits, over mutual TLS."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from canal.errors import FederationError

pytest.importorskip("nvflare", reason="NVIDIA FLARE is absent; pip install 'canal[federation]'")

from canal.federation.console import tell
from canal.federation.job import connected, simulate, status, wait, write_job
from canal.federation.kit import AGGREGATION, HOSPITAL
from federation.hosts import SITES, Hosts, answers, environment, networks, running


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with running(Hosts(tmp_path_factory.mktemp("hosts"))) as all_up:
        yield all_up


@pytest.mark.slow
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
    check_all_is_under_tls(hosts)


def check_nothing_lies_about(hosts: Hosts) -> None:
    """What the server keeps is in its kit, and no line of a site's log is among it."""
    kit = hosts.kits.server
    assert list((kit / "jobs").iterdir())
    assert (kit / "snapshots").is_dir()
    kept = b"".join(path.read_bytes() for path in kit.rglob("*") if path.is_file())
    assert b"Hospital" not in kept.replace(b"canal.federation.flare.Hospital", b"")


def check_all_is_under_tls(hosts: Hosts) -> None:
    """Between the processes of one party as well as between parties."""
    for name in ("server", *SITES):
        lines = (hosts.folder / f"{name}.log").read_text().splitlines()
        made = [line for line in lines if "Connection [" in line and "is created" in line]
        assert made
        assert all(" SSL " in line for line in made)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_server_killed_and_started_again_takes_new_orders(hosts: Hosts) -> None:
    lost, out = hosts.order("who", "sleep:10")
    answers(out)
    hosts.kill("server")
    hosts.start("server")
    hosts.wait_for(*SITES)
    job, out = hosts.order("hello NAME")
    assert wait(hosts.kits.admin, job, seconds=120, every=0.5).complete
    assert answers(out)[0]["answers"]["west"] == "back:hello west"
    found = status(hosts.kits.admin, lost)
    assert (found.state, found.is_over, found.complete) == ("LOST", True, False)


def check_code_is_refused(hosts: Hosts, folder: Path) -> None:
    """A job that brings code ends, and no site has it."""
    write_job(folder / "job", "order.json", SITES)
    custom = folder / "job" / "app" / "custom"
    custom.mkdir()
    (custom / "ours.py").write_text("print('here')")
    job = tell(hosts.kits.admin, "submit", folder=str(folder / "job"))
    found = wait(hosts.kits.admin, job, seconds=90, every=0.5)
    assert (found.is_over, found.complete) == (True, False)
    for kit in hosts.kits.sites.values():
        assert not list(kit.rglob("ours.py"))


@pytest.mark.slow
def test_a_job_that_brings_code_is_refused(hosts: Hosts, tmp_path: Path) -> None:
    check_code_is_refused(hosts, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["server", "client"])
def test_a_job_that_names_another_class_does_not_run(
    hosts: Hosts, tmp_path: Path, side: str
) -> None:
    write_job(tmp_path / "job", "order.json", SITES)
    config = tmp_path / "job" / "app" / "config" / f"config_fed_{side}.json"
    ours = {"server": AGGREGATION, "client": HOSPITAL}[side]
    theirs = "nvflare.app_common.np.np_trainer.NPTrainer"
    config.write_text(config.read_text().replace(ours, theirs))
    job = tell(hosts.kits.admin, "submit", folder=str(tmp_path / "job"))
    # FLARE may take more than a minute over a server that fails to load its job.
    found = wait(hosts.kits.admin, job, seconds=240, every=0.5)
    assert (found.is_over, found.complete) == (True, False)


@pytest.mark.slow
def test_a_hung_site_is_named_in_time(hosts: Hosts) -> None:
    job, out = hosts.order("who", "sleep:2", "hello", seconds=8)
    pids = {name: json.loads(one)[1] for name, one in answers(out)[0]["answers"].items()}
    os.kill(pids["west"], signal.SIGSTOP)
    try:
        found = wait(hosts.kits.admin, job, seconds=90, every=0.5)
        assert not found.complete
        assert "west (silent for 8 s)" in found.reason
        assert "north" not in found.reason
        assert answers(out, 2)[1]["seconds"] < 12
    finally:
        os.kill(pids["west"], signal.SIGKILL)


@pytest.mark.slow
def test_a_site_killed_with_its_parent_is_noticed_and_comes_back(hosts: Hosts) -> None:
    job, out = hosts.order("who", "sleep:20", seconds=25)
    answers(out)
    hosts.kill("north")
    found = wait(hosts.kits.admin, job, seconds=120, every=0.5)
    assert not found.complete
    assert "north" in found.reason
    hosts.start("north")
    hosts.wait_for(*SITES)
    job, out = hosts.order("hello NAME")
    assert wait(hosts.kits.admin, job, seconds=120, every=0.5).complete


@pytest.mark.slow
def test_a_site_that_cannot_open_its_folder_keeps_the_reason_to_itself(hosts: Hosts) -> None:
    settings = hosts.kits.sites["south"] / "local" / "canal.json"
    before = settings.read_text()
    settings.write_text('{"folder": "/nowhere/at/all"}')
    try:
        job, _ = hosts.order("hello NAME")
        found = wait(hosts.kits.admin, job, seconds=120, every=0.5)
    finally:
        settings.write_text(before)
    assert not found.complete
    assert found.reason.startswith("south could not start")
    kept = b"".join(one.read_bytes() for one in hosts.kits.server.rglob("*") if one.is_file())
    assert b"/nowhere/at/all" not in kept


# What a server would ask that forgot its own policy, or never had one.
READ = """
import os, sys
from nvflare.fuel.flare_api.flare_api import new_secure_session
try:
    session = new_secure_session("admin@canal.org", sys.argv[1])
    print("SAID", session.cat_target(sys.argv[2], file="local/roster.json"))
except Exception as error:
    print("REFUSED", error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.slow
def test_a_server_without_a_policy_gets_neither_code_into_a_site_nor_files_out(
    tmp_path: Path,
) -> None:
    hosts = Hosts(tmp_path)
    with pytest.raises(FederationError, match=r"the server at localhost:\d+ does not answer"):
        connected(hosts.kits.admin)
    # Two sites have no policy against being read either; one of them has left its door open too.
    for kit in (hosts.kits.server, hosts.kits.sites["north"], hosts.kits.sites["south"]):
        policy = json.loads((kit / "local" / "authorization.json").read_text())
        policy["permissions"]["lead"]["shell_commands"] = "any"
        if kit == hosts.kits.server:
            policy["permissions"]["lead"]["byoc"] = "any"
        (kit / "local" / "authorization.json").write_text(json.dumps(policy))
    start = hosts.kits.sites["south"] / "start"
    flares = "nvflare.private.fed.app.client.client_train"
    start.write_text(start.read_text().replace("canal.federation.doorkeeper", flares))
    with running(hosts):
        for name, is_read in (("north", False), ("south", True)):
            ran = subprocess.run(
                [sys.executable, "-P", "-c", READ, str(hosts.kits.admin), name],
                capture_output=True,
                timeout=60,
                check=True,
            )
            found = hosts.kits.roster["north"].encode() in ran.stdout
            assert found == is_read, ran.stdout + ran.stderr
        check_code_is_refused(hosts, tmp_path)
        said = (tmp_path / "server.log").read_text()
        assert all(f"{name}: NVFLARE_ERROR: BYOC not permitted" in said for name in SITES)


@pytest.mark.slow
def test_parties_in_networks_of_their_own(tmp_path: Path) -> None:
    with networks(["server", *SITES]) as (address, prefix):
        hosts = Hosts(tmp_path, server=address, prefix=prefix)
        with running(hosts):
            job, out = hosts.order("hello NAME", "fill:1000")
            assert wait(hosts.kits.admin, job, seconds=120, every=0.5).complete
            assert answers(out)[0]["answers"]["north"] == "back:hello north"


@pytest.mark.slow
def test_the_simulator_runs_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    sites = {name: tmp_path / "sites" / name for name in SITES}
    for folder in sites.values():
        folder.mkdir(parents=True)
    out = tmp_path / "answers.json"
    order = tmp_path / "order.json"
    order.write_text(json.dumps({"steps": ["who", "hello NAME"], "out": str(out)}))
    simulate(tmp_path / "run", sites, order)
    who, hello = (one["answers"] for one in answers(out))
    assert [json.loads(who[name])[0] for name in SITES] == list(SITES)
    assert len({json.loads(one)[1] for one in who.values()}) == 3
    assert hello["west"] == "back:hello west"
    order.write_text("this is no order")
    with pytest.raises(FederationError, match="JSONDecodeError"):
        simulate(tmp_path / "again", sites, order)
