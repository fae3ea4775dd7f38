"""A release under `kill -9`: the same bytes in the end, one charge, and nothing half-published."""

import errno
import itertools
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from budgets import enough_for_patients
from canal.data.synthetic import write as write_synthetic
from canal.privacy import Ledger
from canal.release.manifest import CARD, MANIFEST
from canal.release.verification import verify
from release.place import (
    SECRET,
    SITES,
    UNITS,
    Place,
    assert_finished,
    assert_nothing_is_half_done,
    keep_the_secret,
)

CANAL = Path(sys.executable).parent / "canal"
PHASES = (
    *("open", "secret", "pay", "claim", "statistics"),
    *("shards", "manifest", "seal", "commit", "destroy", "tell", "publish", "finish"),
)
BEFORE_THE_CLAIM = ("before", "open", "secret", "pay")


@pytest.fixture
def places(tmp_path):
    """A new place each time it is called."""
    numbers = itertools.count()

    def make(preset="honest"):
        made = Place(tmp_path / f"place-{next(numbers)}")
        enough_for_patients(made.ledger, SITES)
        made.ledger.set_budget(SITES, UNITS[preset], epsilon=20.0, delta=1e-5)
        return made

    return make


@pytest.fixture(scope="module")
def references():
    return {}


@pytest.fixture
def undisturbed(work, make_plan, places, references):
    """What a run with this secret publishes when nobody stops it, and the steps that it takes.

    The first step of each phase, and those that touch files.
    """

    def run(preset="honest", *, epsilon=8.0, **change):
        asked = (preset, epsilon, *change.items())
        if asked not in references:
            place = places(preset)
            plan = make_plan(preset, epsilon=epsilon)
            given = {"kill_at": -1, "system_gives": SECRET.hex()}
            said = work(place.out, place.ledger.path, plan, **given, **change)
            assert "error" not in said, said
            references[asked] = place.files(), said["phases"], said["operations"]
        return references[asked]

    return run


def steps_of(phases, phase):
    """First and last step of a phase, as a range."""
    names, starts = zip(*phases, strict=True)
    number = names.index(phase)
    return range(starts[number], starts[number + 1])


@pytest.mark.parametrize(
    ("preset", "part"),
    [
        pytest.param("honest", 0, marks=pytest.mark.slow),
        pytest.param("honest", 1, marks=pytest.mark.slow),
        pytest.param("honest", 2, marks=pytest.mark.slow),
        ("paper", 3),
        pytest.param("paper", 4, marks=pytest.mark.slow),
    ],
)
def test_killed_anywhere_the_same_command_finishes_it(
    preset, part, work, make_plan, places, undisturbed
):
    """100 kills at counted points, one or more in every phase; some runs die twice.

    A point is a line of our code, an instruction of SQLite's machine, or an operation on files;
    with public statistics there is one just behind each of the latter. A run that finds a secret
    must take it up: the first run draws it and the reference has the same, so another would show
    in every byte.
    """
    reference, phases, operations = undisturbed(preset)
    assert len([name for name in reference if name.endswith(".safetensors")]) == 3
    rng, plan, hit, twice = random.Random(part), make_plan(preset), Counter(), 0
    points = [rng.choice(steps_of(phases, phase)) for phase in PHASES]
    if preset == "honest":
        points += [step + 1 for step in operations[part::3]]
    while len(points) < (26 if preset == "honest" else 14):  # 100 in all
        points.append(rng.randrange(1, phases[-1][1]))
    for number, point in enumerate(points):
        place = places(preset)
        arguments = (place.out, place.ledger.path, plan)
        said = work(*arguments, kill_at=point, system_gives=SECRET.hex())
        assert said["signal"] == signal.SIGKILL
        hit[said["died"]] += 1
        assert_nothing_is_half_done(place, reference)
        keep_the_secret(place)
        if number % 4 == 0:
            said = work(*arguments, kill_at=rng.randrange(1, phases[-1][1]))
            twice += "died" in said
            assert_nothing_is_half_done(place, reference)
        said = work(*arguments)
        assert "error" not in said, said
        assert_finished(place, reference)
    assert set(PHASES) <= set(hit)
    assert twice >= 2


@pytest.mark.parametrize(
    "change", [{"epsilon": 4.0}, {"repaint": "case-003"}, {"seed": 5}], ids=lambda c: next(iter(c))
)
def test_after_a_kill_other_arguments_are_refused_or_charged_anew(
    change, work, make_plan, places, undisturbed
):
    """Before the claim they make a release of their own; after it, none. Nothing is mixed."""
    reference, phases, _ = undisturbed()
    other, *_ = undisturbed(**change)
    assert other.keys() == reference.keys()
    assert not set(other.values()) & set(reference.values())
    rng, refused, anew = random.Random(11), 0, 0
    for phase in ("secret", "pay", "claim", "statistics", "shards", "commit", "publish"):
        place = places()
        mine = (place.out, place.ledger.path, make_plan())
        theirs = (place.out, place.ledger.path, make_plan(epsilon=change.get("epsilon", 8.0)))
        rest = {name: value for name, value in change.items() if name != "epsilon"}
        point = rng.choice(steps_of(phases, phase))
        assert work(*mine, kill_at=point, system_gives=SECRET.hex())["died"] == phase
        keep_the_secret(place)
        paid = place.paid()
        said = work(*theirs, **rest)
        if (place.private / "claim.json").read_bytes().count(b"case-003") and "error" in said:
            refused += 1
            assert said["error"] == "ReleaseError"
            assert str(place.out) in said["says"]
            assert "\n" not in said["says"]
            assert place.paid() == paid
            assert_nothing_is_half_done(place, reference)
            work(*mine)
            assert_finished(place, reference)
        else:
            anew += 1
            assert phase in (*BEFORE_THE_CLAIM, "claim")
            # What the ledger was charged before stands in manifest and card.
            told = {MANIFEST, CARD} if paid and "seed" not in change else set()
            made = place.files()
            assert made.keys() == other.keys()
            assert all(made[name] == other[name] for name in made.keys() - told)
            if "seed" in change:
                assert place.paid() == paid
            else:
                assert len(place.paid()) == len(paid) + 1
    assert refused >= 4
    assert anew >= 2


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2))]
)
def test_any_operation_on_files_may_fail(part, work, make_plan, places, undisturbed):
    """A full or read-only disk at every open, rename, mkdir, link, unlink and fsync in turn."""
    reference, *_ = undisturbed()
    place, plan = places(), make_plan()
    there = work(place.out, place.ledger.path, plan, fail_at=-1, errno=0)["operations"]
    assert there > 40
    told = 0
    for number in range(1 + part, there + 1, 3):
        place = places()
        arguments = (place.out, place.ledger.path, plan)
        code = (errno.ENOSPC, errno.EROFS, errno.EACCES)[number % 7 % 3]
        said = work(*arguments, fail_at=number, errno=code, system_gives=SECRET.hex())
        if "error" in said:
            told += 1
            assert said["error"] in ("ReleaseError", "SecretError"), said
            assert os.strerror(code) in said["says"]
            assert "\n" not in said["says"]
        assert_nothing_is_half_done(place, reference)
        keep_the_secret(place)
        said = work(*arguments)
        assert "error" not in said, said
        assert_finished(place, reference)
    assert told > 0.8 * there / 3


@pytest.mark.parametrize("finished", [False, True])
def test_an_id_is_not_released_again_with_other_content(
    finished, work, make_plan, places, undisturbed
):
    _, phases, _ = undisturbed()
    place = places()
    arguments = (place.out, place.ledger.path, make_plan())
    point = steps_of(phases, "shards")[-1]
    work(*arguments, **({} if finished else {"kill_at": point}))
    assert place.out.exists() == finished
    before = place.files() if finished else None
    rows = place.ledger.rows()
    said = work(*arguments, repaint="case-007")
    assert said["error"] == "ReleaseError"
    assert "query 'case-007' has other content" in said["says"]
    assert place.ledger.rows() == rows
    assert (place.files() if finished else None) == before


def test_a_finished_release_made_again_is_the_same_and_free(work, make_plan, places):
    place = places()
    arguments = (place.out, place.ledger.path, make_plan())
    assert "error" not in work(*arguments)
    before, rows = place.files(), place.ledger.rows()
    assert "error" not in work(*arguments)
    assert (place.files(), place.ledger.rows()) == (before, rows)


@pytest.mark.parametrize("phase", ["claim", "manifest"])
def test_without_its_secret_a_release_is_another_one_and_charged_anew(
    phase, work, make_plan, places, undisturbed
):
    """Memory was cleared by a reboot. Nobody is charged again before somebody decided it."""
    reference, phases, _ = undisturbed()
    place = places()
    arguments = (place.out, place.ledger.path, make_plan())
    work(*arguments, kill_at=steps_of(phases, phase)[0], system_gives=SECRET.hex())
    assert len(place.paid()) == 1
    assert place.secret.is_symlink()
    shutil.rmtree(place.secret.readlink().parent)
    for _ in range(2):
        said = work(*arguments)
        assert said["error"] == "SecretLostError"
        for words in ("stays charged", f"remove {place.private}", "charged anew"):
            assert words in said["says"]
        assert "\n" not in said["says"]
        assert len(place.paid()) == 1
    shutil.rmtree(place.private)
    assert "error" not in work(*arguments)
    assert len(place.paid()) == 2
    assert not set(place.files().values()) & set(reference.values())
    assert all(check.passed for check in verify(place.out, place.ledger))


def test_sealed_a_release_needs_no_secret_any_more(work, make_plan, places, undisturbed):
    """A reboot between the last noise and the publication costs nothing."""
    reference, phases, _ = undisturbed()
    for phase in ("commit", "destroy", "tell", "publish"):
        place = places()
        arguments = (place.out, place.ledger.path, make_plan())
        work(*arguments, kill_at=steps_of(phases, phase)[-1], system_gives=SECRET.hex())
        for kept in place.memory.iterdir():
            shutil.rmtree(kept)
        assert "error" not in work(*arguments)
        assert_finished(place, reference)


def test_killed_while_the_ledger_is_started(tmp_path):
    """Tables are written, the journal is still there: SQLite takes them back, and we begin anew."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    header = struct.pack(">8sIIIII", bytes.fromhex("d9d505f920a163d7"), 0, 1, 0, 512, 4096)
    (tmp_path / "ledger.sqlite-journal").write_bytes(header.ljust(512, b"\0"))
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_budget("north", "patient", epsilon=8.0, delta=1e-5)
    assert len(ledger.rows()) == 1


@pytest.mark.slow  # a process that is killed at every step is in the quick suite
def test_the_command_killed_at_any_time(tmp_path, checkpoints):
    """Three kills in time of the real command, from the moment that it works in its folder."""
    write_synthetic(tmp_path / "data", 12, size=(32, 32), channels=1)
    environment = os.environ | {"CANAL_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    def start(place):
        teachers = [word for folder in checkpoints.teachers for word in ("--teacher", folder)]
        where = ("--queries", "data", "--init", checkpoints.init, "--out", place.out)
        return subprocess.Popen(
            [CANAL, "release", "create", *teachers, *where, "--ledger", place.ledger.path],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def prepare(name):
        place = Place(tmp_path / name)
        place.ledger.set_budget(SITES, "patient", epsilon=20.0, delta=1e-5)
        place.give_secret()
        return place

    def finish(place):
        process = start(place)
        err = process.communicate(timeout=120)[1]
        assert process.returncode == 0, err
        return place.files()

    reference = finish(prepare("reference"))
    rng, killed = random.Random(2026), 0
    for number in range(3):
        place = prepare(f"killed-{number}")
        process = start(place)
        lock = place.private / "lock"
        while not lock.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.25))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        killed += process.returncode == -signal.SIGKILL
        finish(place)
        assert_finished(place, reference)
    assert killed >= 2
