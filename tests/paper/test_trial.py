"""Trials: each once, in processes that may die, on from where they were; keys of all settings."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from canal.errors import InvalidValueError
from idle_arms import Broken, Killed, Refused, Sleepy
from paper.arms import FeatureRelease, Student
from paper.scenario import Folders, Scenario
from paper.trial import Results, Trial, keep, run

HERE, THERE = Scenario("BUSI"), Scenario("BUSI", seed=1)
CHANGES = {"seed": 1, "sites": 4, "test": 0.3, "deform": 1.0}


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path / "data", tmp_path / "runs")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "grid.jsonl"


def begun(folders):
    return {each.name: len(each.read_text().split()) for each in folders.runs.iterdir()}


@pytest.mark.parametrize("jobs", [1, 2])
def test_everything_is_made_once_and_found_again(jobs, folders, path):
    trials = [Trial(scenario, Sleepy(word)) for word in "ab" for scenario in (HERE, THERE)]
    assert Results(path.parent).missing(trials + trials) == trials
    told = []
    assert run(trials, folders, path, jobs=jobs, tell=lambda *each: told.append(each)) == {}
    assert sorted((name, failure) for name, _, failure in told) == [
        (f"busi-{seed} {word}", None) for seed in (0, 1) for word in "ab"
    ]
    results = Results(path.parent)
    assert results.missing(trials) == []
    assert all(trial in results and results[trial]["word"] == trial.arm.word for trial in trials)
    assert begun(folders) == {"a": 2, "b": 2}
    # A process works where no other does: two of one scenario would wait for what both need.
    pids = [{results[Trial(at, Sleepy(word))]["pid"] for word in "ab"} for at in (HERE, THERE)]
    assert [len(each) for each in pids] == [1, 1]
    assert (pids[0] == pids[1]) == (jobs == 1)
    if jobs == 2:
        threads = {results[trial]["threads"] for trial in trials}
        assert threads == {max(1, os.cpu_count() // 2)}


def test_what_is_not_there_is_named(path):
    with pytest.raises(InvalidValueError, match=r"no result of busi-0 a .* makes it"):
        Results(path.parent)[Trial(HERE, Sleepy("a"))]


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_fails_is_named_and_the_rest_goes_on(jobs, folders, path):
    broken = Trial(HERE, Broken("b"))
    trials = [Trial(HERE, Refused("a")), broken, *(Trial(at, Sleepy("c")) for at in (HERE, THERE))]
    more = broken.folder(folders).with_suffix(".error.txt")
    assert run(trials, folders, path, jobs=jobs) == {
        "busi-0 a": "the way out is a door",
        "busi-0 b": f"ZeroDivisionError: by nothing (more in {more})",
    }
    assert "ZeroDivisionError" in more.read_text()
    assert Results(path.parent).missing(trials) == trials[:2]


def test_a_process_that_dies_takes_no_other_with_it(folders, path):
    trials = [Trial(HERE, Killed()), Trial(HERE, Sleepy("a")), Trial(THERE, Sleepy("b"))]
    (failure,) = run(trials, folders, path, jobs=2).values()
    assert failure == "it ended with -9"
    assert Results(path.parent).missing(trials) == trials[:2]


CODE = """
import sys
from pathlib import Path
from idle_arms import Sleepy
from paper.scenario import Folders, Scenario
from paper.trial import Trial, run
place = Path(sys.argv[1])
if __name__ == "__main__":
    trials = [Trial(Scenario("BUSI", n), Sleepy(w, s)) for n, w, s in {trials}]
    run(trials, Folders(place, place / "runs"), place / "results/grid.jsonl", jobs={jobs})
"""


def begin(code, place):
    script = place / "made.py"
    script.write_text(code)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, str(script), str(place)], env=env)


def test_killed_it_goes_on_where_it_was(folders, path, tmp_path):
    """A real process, really killed, between its second and its last trial."""
    wanted = [(0, "a", 0.0), (0, "b", 0.0), (0, "c", 600.0)]
    with begin(CODE.format(trials=wanted, jobs=1), tmp_path) as process:
        wait_for(folders.runs / "c")
        process.kill()
    trials = [Trial(HERE, Sleepy(word, seconds)) for _, word, seconds in wanted]
    assert Results(path.parent).missing(trials) == trials[2:]
    assert run([Trial(HERE, Sleepy("c"))], folders, path) == {}
    assert begun(folders) == {"a": 1, "b": 1, "c": 2}


def test_processes_end_with_their_grid(folders, tmp_path):
    """One that is killed leaves nobody behind who would write where the next one works."""
    wanted = [(0, "a", 600.0), (1, "b", 600.0)]
    with begin(CODE.format(trials=wanted, jobs=2), tmp_path) as process:
        pids = [int(wait_for(folders.runs / word)) for word in "ab"]
        process.kill()
    deadline = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


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


def test_a_line_that_was_cut_off_is_no_result_and_harms_none(path):
    one, two, three = (Trial(HERE, Sleepy(word)) for word in "abc")
    keep(path, one, {}, 0.0)
    keep(path, two, {}, 0.0)
    path.write_bytes(path.read_bytes()[:-9])
    assert Results(path.parent).missing([one, two]) == [two]
    keep(path, three, {}, 0.0)
    assert Results(path.parent).missing([one, two, three]) == [two]
    assert [json.loads(line)["arm"]["word"] for line in path.read_text().splitlines()[1:]] == ["c"]


def test_another_setting_is_another_trial():
    trial = Trial(HERE, Student("release", FeatureRelease()))
    others = [
        *(trial.at({name: value}) for name, value in CHANGES.items()),
        replace(trial, arm=replace(trial.arm, wiener=True)),
        replace(trial, arm=replace(trial.arm, control="noiseless")),
        replace(trial, arm=Student("release", FeatureRelease(epsilon=7.9))),
        replace(trial, arm=Sleepy()),
        replace(trial, arm=Broken()),
    ]
    assert len({each.key for each in (trial, *others)}) == 10
    assert trial.at({"seed": 0}).key == trial.key
    # Whole numbers are numbers, and what is not said is the default.
    same = Student(control="release", release=FeatureRelease(epsilon=8))
    assert replace(trial, arm=same).key == trial.key


def test_a_setting_that_came_later_changes_no_key_until_it_is_used():
    @dataclass(frozen=True)
    class Grown(Sleepy):
        deform: float = 0.0

    assert Trial(HERE, Grown()).key == Trial(HERE, Sleepy()).key
    assert Trial(HERE, Grown(deform=1.0)).key != Trial(HERE, Sleepy()).key


def test_results_of_another_size_are_other_results(path):
    trial = Trial(HERE, Sleepy())
    keep(path, trial.at({"size": 256}), {"word": "large"}, 0.0)
    large = Results(path.parent, {"size": 256})
    assert large[trial] == {"word": "large"}
    assert trial not in Results(path.parent)


def test_no_jobs_is_refused(folders, path):
    with pytest.raises(InvalidValueError, match="jobs = 0"):
        run([], folders, path, jobs=0)
