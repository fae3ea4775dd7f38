"""What goes wrong on a real machine: one sentence, exit code 2, nothing half-published, none lost.

Once it is mended, the same command finishes the release, at no second charge.
"""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from canal.data.synthetic import write as write_synthetic
from canal.errors import ReleaseError
from canal.features.release import create
from canal.learning import checkpoint
from canal.learning.networks import BOTTLENECK
from canal.privacy import Ledger
from canal.release.verification import verify
from release.disk import Disk
from typed import here

CANAL = Path(sys.executable).parent / "canal"
SITES = ("north", "south", "west")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Twelve images, and a cache for what was decoded of them."""
    folder = tmp_path_factory.mktemp("data")
    write_synthetic(folder / "images", 12, size=(32, 32), channels=1)
    return folder


class Command:
    """`canal release create` as a person types it."""

    def __init__(self, folder, data, checkpoints, ledger):
        self.folder, self.data, self.ledger = folder, data, ledger
        self.teachers = dict(zip(SITES, checkpoints.teachers, strict=True))
        self.init, self.images = checkpoints.init, data / "images"
        self.out, self.ledger_path = folder / "release", ledger.path
        self.within = ()  # a command to run it by
        self.environment = os.environ | {"CANAL_CACHE": str(data / "cache"), "OMP_NUM_THREADS": "1"}
        self.environment.pop("CANAL_LEDGER", None)

    def words(self, *more, out=None):
        teachers = [word for path in self.teachers.values() for word in ("--teacher", path)]
        return [
            *("release", "create", *teachers, "--init", self.init),
            *("--queries", self.images, "--out", out or self.out),
            *(("--ledger", self.ledger_path) if self.ledger else ()),
            *more,
        ]

    def start(self, *more, out=None):
        return subprocess.Popen(
            [*self.within, CANAL, *self.words(*more, out=out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            text=True,
        )

    def ends(self, *more, out=None):
        """Exit code and what is said; in this process, where nothing asks for one of its own."""
        if not self.within:
            return here(self.data, self.data / "cache", *self.words(*more, out=out))
        process = self.start(*more, out=out)
        said = process.communicate(timeout=120)
        return process.returncode, *said

    def run(self, *words):
        """Exit code and what is said of another command."""
        return here(self.data, self.data / "cache", *words)

    def is_refused(self, *more, out=None):
        """Run it; give the one sentence that it says."""
        code, said, complained = self.ends(*more, out=out)
        assert code == 2, complained
        assert said == ""
        assert complained.startswith("canal: ")
        assert complained.count("\n") == 1
        return complained

    def succeeds(self, *more, out=None):
        code, _, complained = self.ends(*more, out=out)
        assert code == 0, complained

    def charges(self, action="reserve"):
        """How often each release was charged to each cohort under each unit, or finished there."""
        rows = [row for row in self.ledger.verify() if row.action == action]
        return Counter((row.key, row.cohort, row.unit, row.rho, row.draws) for row in rows)

    def is_paid(self):
        """Whether it was charged to all; never twice, and finished only when published."""
        charges = self.charges()
        assert len({key for key, *_ in charges}) <= 1
        assert set(charges.values()) <= {1}
        assert not self.charges("commit")
        return {cohort for _, cohort, *_ in charges} >= set(SITES)

    def assert_finished(self, out=None):
        """Whole, charged once, and the secret is gone."""
        out = out or self.out
        assert all(check.passed for check in verify(out, self.ledger))
        charges = self.charges()
        assert len({key for key, *_ in charges}) == 1
        assert set(charges.values()) == {1}
        assert charges == self.charges("commit")
        assert not (out.parent / f"{out.name}.private" / "secret").exists()


@pytest.fixture
def command(tmp_path, data, checkpoints, ledger):
    return Command(tmp_path, data, checkpoints, ledger)


@pytest.fixture
def make_disk(tmp_path):
    disks = []

    def make(options):
        disks.append(Disk(tmp_path / "disk", options))
        if not disks[-1].is_mounted():
            pytest.skip("this system lets us mount nothing")
        return disks[-1]

    yield make
    for disk in disks:
        disk.close()


@pytest.mark.parametrize(
    ("options", "charged"),
    [
        pytest.param("nr_inodes=3", False, marks=pytest.mark.slow),
        pytest.param("size=4k", True, marks=pytest.mark.slow),
        pytest.param("size=28k", True, marks=pytest.mark.slow),
    ],
)
def test_a_full_disk(options, charged, command, make_disk):
    """Full when the secret is to be kept, when the folder is claimed, when the card is written."""
    disk = make_disk(options)
    command.within = disk.enter
    out = disk.place / "release"
    said = command.is_refused(out=out)
    assert "No space left on device" in said
    assert not (disk.seen / "release").exists()
    assert command.is_paid() == charged
    disk.remount("size=1m,nr_inodes=100")
    command.succeeds(out=out)
    command.assert_finished(disk.seen / "release")


@pytest.mark.slow
def test_a_full_disk_under_the_ledger(command, make_disk):
    """The charge cannot be written, so nothing is read and nothing is published."""
    disk = make_disk("size=12k")
    command.within = disk.enter
    command.ledger_path, there = disk.place / "ledger.sqlite", disk.seen / "ledger.sqlite"
    shutil.copy(command.ledger.path, there)
    assert "cannot use the ledger" in command.is_refused()
    assert not command.out.exists()
    assert there.read_bytes() == command.ledger.path.read_bytes()
    disk.remount("size=1m")
    command.succeeds()
    shutil.copy(there, command.ledger.path)
    command.assert_finished()


@pytest.mark.slow
def test_a_file_that_may_not_grow(command):
    """Where nothing can be mounted, a limit on files stands in for a full disk."""
    command.within = ("sh", "-c", 'ulimit -f 32 && exec "$@"', "sh")  # 16 kB
    said = command.is_refused()
    assert "File too large" in said
    assert "pays nothing twice" in said
    assert not command.out.exists()
    assert command.is_paid()
    command.within = ()
    command.succeeds()
    command.assert_finished()


LIMITED = """
import resource, sys
from canal.errors import LedgerError
from canal.privacy import Ledger
ledger = Ledger(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
try:
    ledger.set_budget("east", "patient", epsilon=1.0, delta=1e-5)
except LedgerError as error:
    sys.exit(str(error))
"""


def test_the_ledger_says_why_it_cannot_write(ledger):
    call = [sys.executable, "-c", LIMITED, ledger.path]
    said = subprocess.run(call, capture_output=True, text=True).stderr
    assert "cannot use the ledger" in said
    assert "rollback" not in said


@pytest.mark.slow
def test_a_disk_that_is_read_only(command, make_disk):
    disk = make_disk("size=1m")
    disk.remount("ro")
    command.within = disk.enter
    out = disk.place / "release"
    said = command.is_refused(out=out)
    assert "Read-only file system" in said
    assert "run the same command again" in said
    assert not command.charges()
    disk.remount("rw")
    command.succeeds(out=out)
    command.assert_finished(disk.seen / "release")


@pytest.mark.parametrize(
    "out", ["/proc/release", pytest.param("/sys/kernel/release", marks=pytest.mark.slow)]
)
def test_a_folder_that_nobody_may_write_to(out, command):
    """The kernel refuses, even its own administrator."""
    said = command.is_refused(out=out)
    assert f"cannot write {out}.private" in said
    assert not command.charges()


@pytest.mark.slow
def test_a_budget_that_does_not_suffice(command, tmp_path):
    command.ledger = Ledger(tmp_path / "other.sqlite")
    command.ledger_path = command.ledger.path
    command.ledger.set_budget(SITES, "patient", epsilon=2.0, delta=1e-5)
    said = command.is_refused()
    assert "requested" in said
    assert "remaining" in said
    assert not command.charges()
    assert not command.out.exists()
    command.succeeds("--epsilon", "2")
    command.assert_finished()


@pytest.mark.slow
def test_no_ledger_at_all(command):
    command.ledger = None
    said = command.is_refused()
    assert "there is no ledger" in said
    assert "canal ledger budget" in said
    assert not command.out.exists()


def test_a_place_that_has_nothing_beside_it(ensemble, queries, make_plan):
    with pytest.raises(ReleaseError, match="choose another --out"):
        create(Path("/"), ensemble, queries, make_plan(), seed=1)


def spoilt(folder, source, spoil):
    """A copy of a teacher with other weights, its digests as they should be."""
    network, description = checkpoint.load(source)
    spoil(network.state_dict()[f"{BOTTLENECK}.convs.conv_1.adn.N.weight"])
    checkpoint.save(folder, network, description)
    return folder


@pytest.mark.parametrize("value", [3e38, math.nan])
def test_a_plan_may_give_up_for_a_teacher_that_returns_nan(command, value):
    """Features, or weights, that are no numbers."""
    good = command.teachers["south"]
    command.teachers["south"] = spoilt(command.folder / "bad", good, lambda w: w.fill_(value))
    said = command.is_refused("--broken-teacher", "refuse")
    assert "the teacher of 'south' returns NaN or infinity for query" in said
    assert "--broken-teacher zero" in said
    assert not command.out.exists()
    assert command.is_paid()


@pytest.mark.parametrize("value", [3e38, math.nan])
def test_by_default_no_teacher_stops_a_release(command, value):
    """Whether there is one hangs on nobody: the same end and the same charge as of others."""
    good = command.teachers["south"]
    command.teachers["south"] = spoilt(command.folder / "bad", good, lambda w: w.fill_(value))
    command.succeeds()
    command.assert_finished()


def test_a_query_that_cannot_be_decoded(command):
    command.images = command.folder / "images"
    shutil.copytree(command.data / "images", command.images)
    picture = sorted(command.images.glob("*/images/*.png"))[5]
    content = picture.read_bytes()
    picture.write_bytes(content[: len(content) // 2])
    assert picture.name in command.is_refused()
    assert_untouched(command)
    picture.write_bytes(content)
    command.succeeds()
    command.assert_finished()


def assert_untouched(command):
    """Nothing charged, nothing begun."""
    assert not command.charges()
    assert not command.out.exists()
    assert not (command.folder / "release.private").exists()


def test_two_runs_into_one_folder(command):
    """The second is sent away while the first is at work, which then goes on undisturbed."""
    first = command.start()
    secret = command.folder / "release.private" / "secret"
    while not secret.exists() and first.poll() is None:
        time.sleep(0.0005)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        assert "another run is at work on" in command.is_refused()
    finally:
        os.kill(first.pid, signal.SIGCONT)
    first.communicate(timeout=120)
    assert first.returncode == 0
    command.assert_finished()


@pytest.mark.slow
def test_a_ledger_without_budget(command, tmp_path):
    command.ledger = Ledger(tmp_path / "other.sqlite")
    command.ledger_path = command.ledger.path
    command.ledger.set_budget("elsewhere", "patient", epsilon=8.0, delta=1e-5)
    said = command.is_refused()
    assert "cohorts 'north', 'south', 'west' have no patient budget" in said
    assert "canal ledger budget" in said
    assert not command.charges()
    assert not command.out.exists()
    command.ledger.set_budget(SITES, "patient", epsilon=8.0, delta=1e-5)
    command.succeeds()
    command.assert_finished()


def test_a_ledger_that_forbids_what_it_is_not_charged_for(command):
    """`--ledger`, CANAL_LEDGER or the usual name: it is asked for a research run as well."""
    rules = ("--cohort", "north", "--seeded", "--noiseless")
    assert command.run("ledger", "forbid", command.ledger_path, *rules)[:2] == (
        0,
        "cohort north: noiseless and seeded releases are forbidden\n",
    )
    assert "--cohort north --seeded" in command.is_refused("--seed", "1")
    said = command.is_refused("--allocation", "none", "--not-private")
    assert "forbids noiseless releases of 'north'" in said
    assert not command.out.exists()
    code, _, complained = command.run("ledger", "forbid", command.ledger_path, *rules[:2])
    assert (code, complained.count("\n")) == (2, 1)
    command.run("ledger", "allow", command.ledger_path, *rules)
    command.succeeds("--seed", "1")
