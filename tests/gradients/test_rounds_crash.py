"""Killed anywhere, the same arguments finish a release of adapters: same bytes, one charge."""

import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from canal.gradients.mechanism import COUNT_STEP, PatientSum
from canal.release.mechanism import LocalFederation
from canal.release.verification import verify
from gradients.place import Killed, Place, assert_charged_once
from release.place import SECRET, keys_in

WORKER = Path(__file__).parent / "rounds_worker.py"


def killing(monkeypatch, at):
    """Die at this call of fsync, which is everywhere something must have reached the disk."""
    calls, fsync = itertools.count(1), os.fsync

    def counted(handle):
        if next(calls) == at:
            raise Killed
        fsync(handle)

    monkeypatch.setattr(os, "fsync", counted)
    return calls


def assert_nothing_is_half_done(place, reference):
    """Whole or not at all, never beside its key; what was paid for can still be made."""
    sealed = (place.private / "release" / "manifest.json").exists()
    if place.out.exists():
        assert place.files() == reference
        assert not keys_in(place.out.parent.parent)
    elif place.charges() and not sealed:
        assert place.secret.read_bytes() == SECRET
    if place.charges("commit"):
        assert place.out.exists() or sealed


COUNTED = {"count": 0.05, "rounds": 2}


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """Where keys go."""
    (tmp_path / "memory").mkdir()
    monkeypatch.setenv("CANAL_KEYS", str(tmp_path / "memory"))


@pytest.fixture
def reference(places, make_release, monkeypatch):
    """What a run with this secret publishes when nobody stops it, and how often it syncs."""
    monkeypatch.setattr(secrets, "token_bytes", lambda count: SECRET)
    place = places()
    with monkeypatch.context() as counting:
        calls = killing(counting, -1)
        make_release(place.out, plan=COUNTED, ledger=place.ledger)
    assert_charged_once(place)
    return place.files(), next(calls) - 1


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))]
)
def test_killed_anywhere_the_same_arguments_finish_it(
    part, places, make_release, reference, monkeypatch
):
    """At every sync, in turn: the same bytes in the end, and one charge."""
    whole, count = reference
    assert count > 15
    for point in range(1 + part, count + 1, 4):
        place = places()
        with monkeypatch.context() as patched:
            killing(patched, point)
            with pytest.raises(Killed):
                make_release(place.out, plan=COUNTED, ledger=place.ledger)
        assert_nothing_is_half_done(place, whole)
        make_release(place.out, plan=COUNTED, ledger=place.ledger)
        assert place.files() == whole
        assert_charged_once(place)
        assert not os.path.lexists(place.secret)
        assert not keys_in(place.out.parent.parent)
        assert all(check.passed for check in verify(place.out, place.ledger))


@pytest.mark.parametrize("images", [1, 9, 15])
def test_killed_while_patients_are_asked(images, places, make_release, reference):
    """In the middle of a round; and once more after the first one of the next run."""
    place, seen = places(), itertools.count(1)

    def progress(count):
        if next(seen) * 4 > images:
            raise Killed

    def report(told):
        raise Killed

    arguments = {"plan": COUNTED, "ledger": place.ledger}
    with pytest.raises(Killed):
        make_release(place.out, progress=progress, **arguments)
    assert_nothing_is_half_done(place, reference[0])
    with pytest.raises(Killed):
        make_release(place.out, report=report, **arguments)
    assert not place.out.exists()
    make_release(place.out, **arguments)
    assert place.files() == reference[0]
    assert_charged_once(place)


def test_rounds_that_were_done_are_not_asked_for_again(places, make_release):
    place, asked = places(), []

    def stop(told):
        if told.number == 2:
            raise Killed

    with pytest.raises(Killed):
        make_release(place.out, ledger=place.ledger, report=stop)
    told = []
    make_release(
        place.out,
        ledger=place.ledger,
        progress=asked.append,
        report=told.append,
    )
    assert sum(asked) == 12, "one round of twelve images"
    assert [each.number for each in told] == [1, 2, 3]


def test_nothing_is_published_while_a_site_is_away(places, make_release, monkeypatch):
    """It has a key of its own, and has not destroyed it; ours does not wait."""
    place = places()

    def away(cohorts, manifest):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(LocalFederation, "finish", away)
        with pytest.raises(Killed):
            make_release(place.out, ledger=place.ledger)
    assert not place.out.exists()
    assert not os.path.lexists(place.secret)
    make_release(place.out, ledger=place.ledger)
    assert_charged_once(place)
    assert all(check.passed for check in verify(place.out, place.ledger))


@pytest.mark.slow
def test_killed_for_good(tmp_path, init):
    """`kill -9` of a process of its own, while it pays, asks and publishes."""

    def run(place, kill_at=0):
        return subprocess.run(
            [sys.executable, WORKER, place.out, place.ledger.path, init, str(kill_at)],
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=120,
        )

    whole = Place(tmp_path / "whole")
    done = run(whole)
    assert done.returncode == 0, done.stderr
    count = int(done.stdout)
    reference = whole.files()
    for point in (count // 3, count // 2, count - 3):
        place = Place(tmp_path / f"killed at {point}")
        assert run(place, point).returncode == -signal.SIGKILL
        assert_nothing_is_half_done(place, reference)
        assert run(place).returncode == 0
        assert place.files() == reference
        assert_charged_once(place)


def test_a_count_that_was_drawn_stays(places, make_release, monkeypatch):
    """It is on disk before the first round; a run that goes on does not draw another."""
    place = places()

    def stop(told):
        raise Killed

    with pytest.raises(Killed):
        make_release(place.out, ledger=place.ledger, plan={"count": 0.05}, report=stop)
    drawn = json.loads((place.private / "statistics.json").read_bytes())["patients"]
    monkeypatch.setattr(PatientSum, "count", lambda *_: pytest.fail("patients were counted again"))
    release = make_release(place.out, ledger=place.ledger, plan={"count": 0.05})
    assert release.patients == max(1.0, drawn * COUNT_STEP)


def test_numbers_that_were_measured_again_in_other_bits_are_not_taken(places, make_release, shared):
    """Other threads, another machine: a release that was begun is finished with its own numbers."""
    place = places()

    def stop(told):
        raise Killed

    with pytest.raises(Killed):
        make_release(place.out, ledger=place.ledger, report=stop)
    real = shared().start
    other = replace(real.public, length=real.public.length * (1 + 1e-9))
    again = replace(real, public=other)
    release = make_release(place.out, ledger=place.ledger, start=again)
    assert release.manifest.statistics["length"] == real.public.length
    assert len({key for key, *_ in place.charges()}) == 1
    assert set(place.charges().values()) == {1}
