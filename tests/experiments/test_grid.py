"""The grid: everything once, in order, in processes that may die; and on from where it was."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from canal.errors import InvalidValueError
from canal.experiments.cell import Places
from canal.experiments.grid import Watch, missing, run_grid
from canal.experiments.preset import PRESETS
from canal.experiments.students import NetworksCell, StudentCell
from canal.plain import later
from cells import Broken, Killed, NeedsRefused, Placed, Refused, Sleepy


@pytest.fixture
def places(tmp_path):
    return Places(tmp_path / "data", tmp_path / "runs", tmp_path / "results")


def begun(places):
    return {path.name: path.read_text().count("begun") for path in places.runs.iterdir()}


def test_what_is_needed_comes_first_and_everything_once(places):
    cells = [Sleepy("late", needs=("early", "earlier")), Sleepy("early")]
    told = []
    watch = Watch(
        begin=lambda cell: told.append(cell.name),
        end=lambda cell, failure, left: told.append((failure, left)),
    )
    assert [cell.name for cell in missing(cells, places)] == ["early", "earlier", "late"]
    assert run_grid(cells, places, watch=watch) == {}
    assert [word for word in told if isinstance(word, str)] == ["early", "earlier", "late"]
    assert told[-1] == (None, 0.0)
    assert missing(cells, places) == []
    assert run_grid(cells, places) == {}
    assert begun(places) == {"early": 1, "earlier": 1, "late": 1}
    made = cells[0].result(places)
    assert made["word"] == "late"
    assert made["cell"]["needs"] == ["early", "earlier"]


def test_a_setting_that_came_later_changes_no_name_until_it_is_used():
    @dataclass(frozen=True)
    class Grown(Sleepy):
        deform: float = field(default=0.0, metadata=later())

    Grown.__name__ = "Sleepy"
    assert Grown("a").slug == Sleepy("a").slug
    assert Grown("a", deform=1.0).slug != Sleepy("a").slug


def test_cells_that_were_made_are_found_under_the_names_that_they_have():
    """Names of two that are on disk: whoever changes what they are made of changes these."""
    scene = PRESETS["cpu"].scenes("BUSI", 1)[0]
    assert StudentCell(scene, "alone").slug == "busi-0-alone-d86a87a8c218fc0e"
    assert NetworksCell(scene).slug == "busi-0-networks-b64cf4afaa40b8ad"


def test_another_setting_or_meaning_is_another_cell(monkeypatch):
    one = Sleepy("a")
    assert replace(one, seconds=0.1).digest != one.digest
    assert Broken("a").digest != one.digest
    before = one.digest
    monkeypatch.setattr(Sleepy, "version", 2)
    assert one.digest != before


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_fails_is_named_and_the_rest_goes_on(places, jobs):
    cells = [Refused(), NeedsRefused("waits"), Broken("b"), Sleepy("fine"), NeedsRefused("too")]
    told = {}
    watch = Watch(end=lambda cell, failure, left: told.update({cell.name: failure}))
    failed = run_grid(cells, places, jobs=jobs, watch=watch)
    more = places.runs / f"{cells[2].slug}.error.txt"
    assert failed == {
        cells[0].slug: "the way out is a door",
        cells[1].slug: "needs a, which failed",
        cells[4].slug: "needs a, which failed",
        cells[
            2
        ].slug: f"ZeroDivisionError: by nothing (more in {places.runs / cells[2].slug}.error.txt)",
    }
    assert told == {cell.name: failed.get(cell.slug) for cell in cells}
    assert "ZeroDivisionError" in more.read_text()


def test_workers_share_the_cores_and_may_die(places):
    cells = [Killed("k"), *(Sleepy(word, seconds=0.5) for word in "abcd")]
    heard = []
    watch = Watch(report=lambda cell, what, done, total: heard.append((cell.name, what)))
    failed = run_grid(cells, places, jobs=2, watch=watch)
    assert failed == {cells[0].slug: "its process ended with code -9"}
    made = [cell.result(places) for cell in cells[1:]]
    assert os.getpid() not in {each["pid"] for each in made}
    assert len({each["pid"] for each in made}) == 2
    assert {each["threads"] for each in made} == {max(1, os.cpu_count() // 2)}
    assert sorted(heard) == [(word, "sleeping") for word in "abcd"]


def test_workers_are_where_no_other_is(places):
    """Two cells of one place would wait for what both need; at the end there is no other."""
    cells = [Placed(f"{where}{n}", seconds=0.2, where=where) for where in "ab" for n in range(3)]
    told = []
    watch = Watch(
        begin=lambda cell: told.append(cell.name), end=lambda cell, *_: told.append(cell.name)
    )
    assert run_grid(cells, places, jobs=2, watch=watch) == {}
    assert told[:2] == ["a0", "b0"]
    begun = list(dict.fromkeys(told))
    assert [name for name in begun if name[0] == "a"] == ["a0", "a1", "a2"]
    assert [name for name in begun if name[0] == "b"] == ["b0", "b1", "b2"]
    scene = PRESETS["cpu"].scenes("BUSI", 1)[0]
    assert StudentCell(scene, "alone").place == NetworksCell(scene).place == "busi-0"


def test_killed_it_goes_on_where_it_was(places, tmp_path):
    """A real process, really killed, between its second and its last cell."""
    code = (
        "from pathlib import Path; from cells import Sleepy; import sys;"
        "from canal.experiments.cell import Places; from canal.experiments.grid import run_grid;"
        "places = Places(*(Path(name) for name in sys.argv[1:]));"
        "run_grid([Sleepy(w, seconds=s) for w, s in zip('abc', (0.0, 0.0, 600.0))], places)"
    )
    names = [str(place) for place in (places.data, places.runs, places.results)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", code, *names], env=env) as process:
        wait_for(places.runs / "c")
        process.kill()
    cells = [Sleepy("a"), Sleepy("b"), Sleepy("c", seconds=600.0)]
    assert [cell.name for cell in missing(cells, places)] == ["c"]
    assert run_grid([*cells[:2], Sleepy("c")], places) == {}
    assert begun(places) == {"a": 1, "b": 1, "c": 2}


def test_workers_end_with_their_grid(places):
    """A grid that is killed leaves nobody behind who would write where the next one works."""
    code = (
        "from pathlib import Path; from cells import Sleepy; import sys;"
        "from canal.experiments.cell import Places; from canal.experiments.grid import run_grid;"
        "places = Places(*(Path(name) for name in sys.argv[1:]));"
        "__name__ == '__main__' and run_grid([Pid(w) for w in 'ab'], places, jobs=2)"
    ).replace("Sleepy", "Pid")
    names = [str(place) for place in (places.data, places.runs, places.results)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", code, *names], env=env) as process:
        pids = [int(wait_for(places.runs / f"{word}.pid")) for word in "ab"]
        process.kill()
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def wait_for(path):
    deadline = time.monotonic() + 60
    while not (path.is_file() and path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return path.read_text()


def alive(pid):
    """Whether a process runs; one that ended and was not yet collected does not."""
    try:
        return "Z" not in (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1][:3]
    except FileNotFoundError:
        return False


def test_no_jobs_is_refused(places):
    with pytest.raises(InvalidValueError, match="jobs = 0"):
        run_grid([], places, jobs=0)
