"""Three hospitals as processes of their own over mutual TLS: real releases, real kills."""
# a fixture is imported, and asked for by the same name

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is absent; pip install 'canal[federation]'")

from canal.features.ensemble import load_ensemble
from canal.features.queries import Queries
from canal.features.store import Release
from canal.federation.aggregate import read_images
from canal.federation.job import submit, wait
from canal.federation.settings import Order
from canal.learning import checkpoint
from canal.privacy import Ledger
from canal.release.verification import verify
from federation.hosts import SITES, Hosts, processes, running, until
from federation.local import ask_alone, teach_alone


@pytest.fixture(scope="module")
def hosts(tmp_path_factory, checkpoints, asked):
    folder = tmp_path_factory.mktemp("hospitals")
    made = Hosts(folder, stand_in=False)
    for site, teacher in zip(SITES, checkpoints.teachers, strict=True):
        home, startup = folder / "sites" / site, made.kits.sites[site] / "startup"
        shutil.copytree(teacher, home / "teacher")
        terms = {
            "name": site,
            "images": str(asked),
            "certificate": str(startup / "client.crt"),
            "key": str(startup / "client.key"),
            "trust": ["trusted", "secure-sum"],
            "research": True,
            "again": True,
        }
        lines = (f"{key} = {json.dumps(value)}" for key, value in terms.items())
        (home / "site.toml").write_text("\n".join(lines))
        (home / "roster.json").write_text(json.dumps(dict(made.kits.roster)))
        Ledger(home / "ledger.sqlite").set_budget(site, "patient", epsilon=60.0, delta=1e-5)
    with running(made):
        yield made


@pytest.fixture
def give(hosts, asked, checkpoints, tmp_path):
    """Write an order; gives its path."""

    def give(name="release", **choices):
        known = {
            "queries": str(asked),
            "init": str(checkpoints.init),
            "out": str(tmp_path / name),
            "wait": 0.2,
        } | choices
        plan = known.pop("plan", {"epsilon": 8.0, "released": 12})
        lines = [f"{key} = {json.dumps(value)}" for key, value in known.items()]
        lines += ["[plan]", *(f"{key} = {json.dumps(value)}" for key, value in plan.items())]
        path = tmp_path / f"{name}.toml"
        path.write_text("\n".join(lines))
        return path

    return give


def carry_out(hosts, path, seconds=180.0):
    job = submit(hosts.kits.admin, str(path), seconds=60)
    return wait(hosts.kits.admin, job, seconds=seconds, every=0.5)


def charges(hosts, site):
    rows = Ledger(hosts.folder / "sites" / site / "ledger.sqlite").rows()
    return [row for row in rows if row.action == "reserve" and row.unit == "patient"]


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def alone(path, checkpoints, folder):
    """The same order, carried out in this process."""
    order = Order.read(path)
    ensemble = load_ensemble(checkpoints.teachers, checkpoints.init)
    queries = Queries.of(read_images(order, checkpoint.describe(checkpoints.init)))
    told = order.colluding if order.trust == "secure-sum" else 0
    plan = ensemble.plan(queries, order.preset, trust=order.trust, colluding=told, **order.plan)
    return ask_alone(folder, ensemble, queries, plan, order.seed)


@pytest.mark.slow  # in memory this is shown in the quick suite
@pytest.mark.parametrize("trust", ["secure-sum", "trusted"])
def test_a_release_over_mtls_is_byte_for_byte_that_of_one_process(
    hosts, give, checkpoints, tmp_path, trust
):
    path = give(trust, trust=trust, seed=4, preset="paper")
    found = carry_out(hosts, path)
    assert (found.complete, found.reason) == (True, "")
    made = alone(path, checkpoints, tmp_path / "alone")
    assert files(tmp_path / trust) == files(made.path)


@pytest.mark.slow
def test_adapters_over_mtls_are_byte_for_byte_those_of_one_process(hosts, give, asked, tmp_path):
    plan = {"epsilon": 8.0, "patients": 120, "rounds": 2, "directions": 7}
    path = give("taught", release="adapters", trust="secure-sum", seed=4, plan=plan)
    found = carry_out(hosts, path)
    assert (found.complete, found.reason) == (True, "")
    made = teach_alone(Order.read(path), dict.fromkeys(SITES, asked), tmp_path / "alone")
    assert files(tmp_path / "taught") == files(made.path)


def kill_a_site(hosts, job):
    """The process of a job at one site, without mercy; if it is there yet, or still."""
    for pid in processes(hosts.kits.sites["south"]):
        if job in command_of(pid):
            os.kill(pid, signal.SIGKILL)


def check_paid_once(hosts, before, folder):
    made = Release.open(folder)
    assert made.private
    session = folder.with_name(folder.name + ".private") / "session"
    for site in SITES:
        assert len(charges(hosts, site)) == before[site] + 1
        ledger = Ledger(hosts.folder / "sites" / site / "ledger.sqlite")
        assert all(check.passed for check in verify(made.path, ledger))
        home = hosts.folder / "sites" / site / "sessions" / session.read_text().split()[0]
        assert (home / "finished").read_text() == made.manifest.digest
        assert not (home / "secret").exists()


@pytest.mark.slow  # sites in this process are stopped everywhere by the quick suite
def test_killed_while_it_runs_it_comes_to_its_end_and_nobody_pays_twice(hosts, give, tmp_path):
    """A site's process, once it has paid; then the same order again."""
    before = {site: len(charges(hosts, site)) for site in SITES}
    path = give("killed", plan={"epsilon": 4.0, "released": 12})
    session = tmp_path / "killed.private" / "session"
    job = submit(hosts.kits.admin, str(path), seconds=60)
    until(session.is_file, 60)
    victim = hosts.folder / "sites" / "south" / "sessions" / session.read_text().split()[0]
    until((victim / "agreement.json").is_file, 60)
    kill_a_site(hosts, job)
    found = wait(hosts.kits.admin, job, seconds=120, every=0.5)
    assert found.is_over
    assert found.complete or "south" in found.reason
    found = carry_out(hosts, path)
    assert (found.complete, found.reason) == (True, "")
    check_paid_once(hosts, before, tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("who", ["site", "server"])
@pytest.mark.parametrize("delay", [0.0, 0.2, 0.5, 1.0])
def test_killed_at_any_time(hosts, give, tmp_path, who, delay):
    """From the first word of a session on: before, while and after a site has sent its part."""
    before = {site: len(charges(hosts, site)) for site in SITES}
    path = give("killed", plan={"epsilon": 1.0, "released": 12})
    job = submit(hosts.kits.admin, str(path), seconds=60)
    until((tmp_path / "killed.private" / "session").is_file, 60)
    time.sleep(delay)
    if who == "site":
        kill_a_site(hosts, job)
        wait(hosts.kits.admin, job, seconds=120, every=0.5)
    else:
        hosts.kill("server")
        hosts.start("server")
        hosts.wait_for(*SITES)
    assert all(len(charges(hosts, site)) <= before[site] + 1 for site in SITES)
    found = carry_out(hosts, path)
    assert (found.complete, found.reason) == (True, "")
    check_paid_once(hosts, before, tmp_path / "killed")


@pytest.mark.slow
def test_a_site_that_hangs_is_named_and_the_release_goes_on_later(hosts, give, tmp_path):
    before = {site: len(charges(hosts, site)) for site in SITES}
    path = give("hung", plan={"epsilon": 1.0, "released": 12})
    job = submit(hosts.kits.admin, str(path), seconds=8)
    until((tmp_path / "hung.private" / "session").is_file, 60)
    hung = [pid for pid in processes(hosts.kits.sites["west"]) if job in command_of(pid)]
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    found = wait(hosts.kits.admin, job, seconds=120, every=0.5)
    for pid in hung:
        os.kill(pid, signal.SIGKILL)
    assert found.complete or "west" in found.reason
    found = carry_out(hosts, path)
    assert (found.complete, found.reason) == (True, "")
    check_paid_once(hosts, before, tmp_path / "hung")


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
