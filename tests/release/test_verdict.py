"""What is said first of a release that was checked, and with which exit code."""

import hashlib
import json
import shutil

import pytest

from budgets import just_enough
from canal.features.release import create
from canal.privacy import Ledger
from canal.release.card import render
from canal.release.digits import short, upwards
from canal.release.manifest import CARD, MANIFEST, Manifest
from canal.release.shard import shard_name
from canal.release.verification import verdict
from tiny import SITES
from typed import call_here
from victim import Victim


@pytest.fixture(scope="module")
def home(tmp_path_factory, ensemble, queries, make_plan):
    """A release of the paper's preset that was paid for, and two that protect nobody."""
    folder = tmp_path_factory.mktemp("verdict")
    ledger, plan = Ledger(folder / "ledger.sqlite"), make_plan("paper")
    just_enough(ledger, plan, ensemble.cohorts)
    ledger.set_budget(SITES, "patient", epsilon=1e3, delta=1e-5)
    create(folder / "paper", ensemble, queries, plan, ledger=ledger)
    create(folder / "seeded", ensemble, queries, make_plan(), seed=1)
    clear = make_plan(allocation="none")
    create(folder / "clear", ensemble, queries, clear, seed=1, not_private=True)
    return folder


def test_the_patients_epsilon_comes_first_whatever_was_asked_for(home):
    promised = json.loads((home / "paper" / MANIFEST).read_text())["statement"]["guarantee"]
    patients = short(upwards(promised["patient"]["epsilon"]))
    assert promised["patient"]["epsilon"] > 3 * promised["paper"]["epsilon"]
    first, *more = call_here(home, "release", "verify", "paper").splitlines()
    assert first == f"A patient's epsilon: {patients}, at delta 1e-5."
    assert more[0] == promised["patient"]["reading"]
    assert "another number: 8 in the paper's accounting, which is a guarantee for nobody" in more[1]
    found = json.loads(call_here(home, "release", "verify", "paper", "--json"))
    assert found["patient"]["epsilon"] == promised["patient"]["epsilon"]
    assert found["headline"][0] == first
    assert (found["holds"], found["private"]) == (True, True)


@pytest.mark.parametrize("name", ["seeded", "clear"])
def test_what_protects_nobody_is_no_success(name, home):
    """A script that goes on after exit code 0 stops here, unless it says that it knows."""
    words = ("release", "verify", name)
    said = call_here(home, *words, code=2)
    assert said.startswith("A patient's epsilon: none. NOT PRIVATE: ")
    assert "FAILS" not in said
    assert "--allow-not-private accepts it" in said
    found = json.loads(call_here(home, *words, "--json", code=2))
    assert (found["holds"], found["private"]) == (True, False)
    assert call_here(home, *words, "--allow-not-private").startswith("A patient's epsilon: none.")


def test_knowing_that_nobody_is_protected_excuses_no_forgery(home, tmp_path):
    shutil.copytree(home / "clear", tmp_path / "r")
    (tmp_path / "r" / CARD).write_text("all is well")
    said = call_here(home, "release", "verify", tmp_path / "r", "--allow-not-private", code=2)
    assert said.startswith("A patient's epsilon: none. NOT PRIVATE")
    assert "1 check FAILS (card)" in said


def test_digests_that_do_not_match_are_named(home, tmp_path):
    """Which file, what was expected, what was found: of every file, in full for programs."""
    shutil.copytree(home / "paper", tmp_path / "r")
    shard = tmp_path / "r" / shard_name(0)
    stated = hashlib.sha256(shard.read_bytes()).hexdigest()
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    held = hashlib.sha256(content).hexdigest()
    (tmp_path / "r" / CARD).write_text("all is well")
    ledger = Ledger(home / "ledger.sqlite")
    found = verdict(tmp_path / "r", ledger)
    assert found.failed == ["shards", "card"]
    assert "2 checks FAIL (shards, card): do not rely on it" in found.lines()[0]
    seen = {check.what: check for check in found.checks}
    assert f"SHA-256 {stated[:16]}… expected, {held[:16]}… found" in seen["shards"].detail
    assert seen["shards"].numbers["files"] == {shard_name(0): {"expected": stated, "found": held}}
    assert (
        seen["card"].numbers["files"][CARD]["found"] == hashlib.sha256(b"all is well").hexdigest()
    )
    # What another file holds is not looked at for noise.
    assert seen["noise"].passed is seen["repeats"].passed is None


def test_another_manifest_is_named_by_the_ledger_that_paid(home, tmp_path):
    shutil.copytree(home / "paper", tmp_path / "r")
    victim = Victim(tmp_path / "r", render)
    before = Manifest.read(victim.folder).digest
    victim.forge(victim.content() | {"record": victim.content()["record"] | {"purpose": "another"}})
    found = verdict(victim.folder, Ledger(home / "ledger.sqlite"))
    assert found.failed == ["ledger"]
    (files,) = (each.numbers["files"] for each in found.checks if each.what == "ledger")
    assert files == {MANIFEST: {"expected": [before], "found": Manifest.read(victim.folder).digest}}


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 3}'])
def test_a_folder_of_which_nothing_can_be_read(content, tmp_path):
    (tmp_path / MANIFEST).write_text(content)
    found = verdict(tmp_path)
    assert found.failed == ["manifest"]
    assert found.lines()[0].startswith("A patient's epsilon: unknown. 1 check FAILS (manifest)")
    assert not found.private
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("odd", [None, "x", -1, 1e400, [], {}, True])
def test_whatever_a_forger_puts_into_a_statement_something_is_said(odd, home, tmp_path):
    """And never that a patient's epsilon is such a thing, without a warning."""
    shutil.copytree(home / "paper", tmp_path / "r")
    victim = Victim(tmp_path / "r", render)
    for entry in ("guarantee", "delta", "unit", "stamp", "epsilon_asked"):
        content = victim.content()
        content["statement"][entry] = odd if odd != 1e400 else 1e300
        victim.forge(content)
        found = verdict(victim.folder)
        if content["statement"] != victim.content()["statement"]:
            assert "statement" in found.failed
            assert "FAIL" in found.lines()[0]
            found.to_json()


@pytest.mark.parametrize("odd", [None, "x", 3, [], {}])
def test_whatever_stands_for_a_whole_entry_something_is_said(odd, home, tmp_path):
    """Statistics that were a number ended in a traceback; a kind that nobody knows is no other."""
    shutil.copytree(home / "paper", tmp_path / "r")
    victim = Victim(tmp_path / "r", render)
    for entry in victim.content():
        victim.forge(victim.content() | {entry: odd})
        found = verdict(victim.folder, Ledger(home / "ledger.sqlite"))
        assert found.failed, entry
        found.to_json()
