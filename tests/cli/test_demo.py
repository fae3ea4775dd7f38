"""The demo: the whole story, small; stopped anywhere, it goes on."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from canal.cli.demo import ADAPTERS, COMMANDS, HOSPITALS, RELEASES, chapters
from canal.features.store import Release
from canal.learning import checkpoint
from canal.privacy import Ledger
from canal.release.store import open_release
from canal.release.verification import verify

CANAL = Path(sys.executable).parent / "canal"
SMALL = ("--images", "60", "--queries", "8", "--size", "32", "--steps", "2", "--rounds", "1")
PRIVATE = (*RELEASES, ADAPTERS)
ARMS = ("alone", *PRIVATE, "noise-only", "noiseless", "pooled")


def call(home, *arguments, **more):
    return subprocess.Popen(
        [CANAL, "demo", *SMALL, *arguments],
        cwd=home,
        env=os.environ | {"CANAL_CACHE": str(home / "cache"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def finished(process, code=0):
    said, complained = process.communicate(timeout=300)
    assert process.returncode == code, complained
    assert "Traceback" not in complained
    return said if code == 0 else complained


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A demo that was killed when the second teacher had begun, and typed again."""
    home = tmp_path_factory.mktemp("demo")
    process = call(home, start_new_session=True)
    until = time.monotonic() + 120
    while not (home / "canal-demo" / "teachers" / HOSPITALS[1]).exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (home / "said").write_text(finished(call(home)))
    return home


def test_everything_is_there(home):
    out = home / "canal-demo"
    for name in ARMS:
        assert checkpoint.describe(out / "students" / name).notes["mode"] == (
            name if name not in RELEASES else "release"
        )
        assert (out / "students" / name / "scores.csv").is_file()
    for name in PRIVATE:
        assert all(check.passed is not False for check in verify(out / "releases" / name))
        assert open_release(out / "releases" / name).private
    assert not Release.open(out / "releases" / "noiseless").private
    assert "<svg" in (out / "report.html").read_text()


def test_what_it_says_is_for_people(home):
    said = (home / "said").read_text()
    lines = said.splitlines()
    assert lines[-1] == "canal-demo/report.html"
    assert lines[0].startswith("1/9 Three hospitals")
    for words in ("Alone", "CANAL, patient’s ε = 8", "Noise only", "patient ε", "AUC"):
        assert words in said
    for words in ("CANAL adapters, ε = 8", "if replaced", "about 20 of them, as is stated"):
        assert words in said
    table = next(at for at, line in enumerate(lines) if line.startswith("student"))
    assert all(len(line) <= 80 for line in lines[table : table + 1 + len(ARMS)])


@pytest.mark.slow
def test_typed_again_it_changes_nothing(home):
    """Networks and releases are found finished; nothing is paid twice."""
    out = home / "canal-demo"
    before = {
        path: path.stat().st_mtime_ns
        for path in out.rglob("*")
        if path.name in ("weights.safetensors", "manifest.json")
    }
    assert len(before) == 1 + len(HOSPITALS) + len(ARMS) + len(PRIVATE) + 1
    paid = charges(out)
    assert len(paid) == 2 * len(PRIVATE)  # reserved and committed
    assert finished(call(home)).splitlines()[-1] == "canal-demo/report.html"
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert charges(out) == paid


def charges(out):
    """Everything in the ledgers but the budgets, which may be said again."""
    return {
        (path.name, row.action, row.key)
        for path in out.glob("ledger-*.sqlite")
        for row in Ledger(path).rows()
        if row.action != "budget"
    }


def test_interrupted_it_stops_and_says_how_to_go_on(tmp_path):
    """As in a terminal: whoever runs the tests may have told their children to ignore it."""
    process = call(
        *(tmp_path, "--steps", "2000"),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        until = time.monotonic() + 120
        while not (tmp_path / "canal-demo" / "init" / "settings.json").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, complained = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, complained
    assert "type the demo again, and it goes on" in complained
    assert not (tmp_path / "canal-demo" / "teachers").exists()


def test_another_demo_in_the_same_folder_is_refused(home):
    assert "holds another demo; give another --out" in finished(
        call(home, "--epsilon", "4"), code=2
    )


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "canal-demo").mkdir()
    (tmp_path / "canal-demo" / "thesis.tex").write_text("x")
    assert "is not empty; give another --out" in finished(call(tmp_path), code=2)
    assert [path.name for path in (tmp_path / "canal-demo").iterdir()] == ["thesis.tex"]


def test_commands_are_written_down_as_typed(home):
    """One line a command; the story of other settings is another one."""
    story = chapters(images=60, queries=8, size=32, steps=2, rounds=1, epsilon=8, seed=0)
    typed = (home / "canal-demo" / COMMANDS).read_text().splitlines()
    commands = [line for line in typed if line and not line.startswith("#")]
    assert commands == [f"canal {each}" for chapter in story for each in chapter.commands]
    assert all(shlex.split(line)[0] == "canal" for line in commands)
    assert story != chapters(images=60, queries=8, size=32, steps=2, rounds=1, epsilon=8, seed=1)
