"""Trials: one arm in one scenario. Each is made once, is a line of results, and goes on if killed.

A line is found by a digest of all settings, so another setting never finds a stale result. Trials
of one scenario share its networks, so one process makes them one after the other; `jobs` scenarios
are at work at a time. A trial that fails is reported, and the rest goes on.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, ClassVar

from canal.errors import CanalError, InvalidValueError
from paper.scenario import Folders, Report, Scenario, Study, changed, digest

# Told about a trial: its name, the seconds that it took, and why it failed, if it did.
Tell = Callable[[str, float, str | None], None]


@dataclass(frozen=True)
class Arm(ABC):
    """What is done in a scenario: settings as data, and how to carry them out."""

    kind: ClassVar[str]  # as results name it

    @property
    def name(self) -> str:
        """For people: what kind, and the settings that are not at their defaults."""
        return " ".join([self.kind, *_words(changed(self))])

    @abstractmethod
    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Plain values that follow from scenario and settings.

        Args:
            study: the scenario on disk.
            folder: of this trial alone.
        """


def _words(settings: Mapping[str, Any]) -> list[str]:
    """Settings in settings are said like others."""
    words = []
    for name, value in settings.items():
        words += _words(value) if isinstance(value, dict) else [f"{name}={value}"]
    return words


@dataclass(frozen=True)
class Trial:
    """An arm in a scenario.

    Args:
        scenario: data and shared networks.
        arm: what is done with them.
    """

    scenario: Scenario
    arm: Arm

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scenario.name} {self.arm.name}"

    @property
    def settings(self) -> dict[str, Any]:
        """All that is not at its default, as plain values."""
        arm = {"kind": self.arm.kind, **changed(self.arm)}
        return {"scenario": changed(self.scenario), "arm": arm}

    @property
    def key(self) -> str:
        """Digest of all settings."""
        return digest(self.settings)

    def at(self, changes: Mapping[str, Any]) -> Trial:
        """In a scenario that differs in these fields."""
        return replace(self, scenario=replace(self.scenario, **changes))

    def folder(self, folders: Folders) -> Path:
        """Where its trainings and releases are kept."""
        return folders.runs / f"{self.scenario.name}-{self.arm.kind}-{self.key}"

    def run(self, folders: Folders, report: Report = lambda *told: None) -> dict[str, Any]:
        """Carry it out; nothing is kept but what the folder of runs has."""
        return self.arm.run(self.scenario.study(folders, report), self.folder(folders))


@dataclass(eq=False)
class Results:
    """Finished trials: a JSONL file for each grid, read together.

    Args:
        folder: of the files.
        changes: fields of all scenarios, for another size of the same experiments.
    """

    folder: Path
    changes: Mapping[str, Any] = field(default_factory=dict)
    _lines: dict[str, dict[str, Any]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for path in sorted(self.folder.glob("*.jsonl")):
            self._lines |= {line["key"]: line for line in _read(path)}

    def __contains__(self, trial: Trial) -> bool:
        return trial.at(self.changes).key in self._lines

    def __getitem__(self, trial: Trial) -> dict[str, Any]:
        """What a trial found."""
        trial = trial.at(self.changes)
        if trial.key not in self._lines:
            raise InvalidValueError(
                f"{self.folder} has no result of {trial.name} ({trial.key}); `python -m paper run` "
                "makes it"
            )
        result: dict[str, Any] = self._lines[trial.key]["result"]
        return result

    def missing(self, trials: Sequence[Trial]) -> list[Trial]:
        """Trials that are still to be made, each once, in the scenarios that are meant."""
        found = {each.key: each for each in (trial.at(self.changes) for trial in trials)}
        return [trial for key, trial in found.items() if key not in self._lines]


def _read(path: Path) -> list[dict[str, Any]]:
    """All whole lines; of a last one that was cut off, nothing."""
    return [
        json.loads(line)
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]


def keep(path: Path, trial: Trial, result: dict[str, Any], seconds: float) -> None:
    """Add a line, whole or not at all, to a file that other processes may be writing.

    Args:
        path: of the grid's file.
        trial: that was made.
        result: plain values.
        seconds: that it took.
    """
    line = {"key": trial.key, **trial.settings, "result": result, "seconds": round(seconds, 1)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if path.is_file() else "w+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)  # what a killed process began to write
        file.seek(whole)
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def run(
    trials: Sequence[Trial],
    folders: Folders,
    path: Path,
    *,
    jobs: int = 1,
    tell: Tell = lambda *told: None,
) -> dict[str, str]:
    """Make trials; gives why some of them failed, by name.

    Args:
        trials: all that are to be made.
        folders: where to read and work.
        path: of the grid's results.
        jobs: processes; 1 works in this one.
        tell: told of every trial that ended.
    """
    if jobs < 1:
        raise InvalidValueError(f"jobs = {jobs!r} must be at least 1")
    groups: dict[Scenario, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.scenario, []).append(trial)
    failed: dict[str, str] = {}

    def heard(name: str, seconds: float, failure: str | None) -> None:
        if failure is not None:
            failed[name] = failure
        tell(name, seconds, failure)

    if jobs == 1 or len(groups) <= 1:
        for group in groups.values():
            _make(group, folders, path, heard)
    else:
        _in_processes(list(groups.values()), folders, path, min(jobs, len(groups)), heard)
    return failed


def _make(trials: Sequence[Trial], folders: Folders, path: Path, tell: Tell) -> None:
    for trial in trials:
        started, failure = time.monotonic(), None
        try:
            result = trial.run(folders)
            keep(path, trial, result, time.monotonic() - started)
        except CanalError as error:
            failure = str(error)
        except Exception as error:  # one trial must not take the others with it
            where = trial.folder(folders).with_suffix(".error.txt")
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_text(traceback.format_exc())
            failure = f"{type(error).__name__}: {error} (more in {where})"
        tell(trial.name, time.monotonic() - started, failure)


def _in_processes(
    groups: list[list[Trial]], folders: Folders, path: Path, jobs: int, tell: Tell
) -> None:
    """A process for each scenario, so many at a time; one that dies takes no other with it."""
    context, threads = multiprocessing.get_context("spawn"), max(1, (os.cpu_count() or 1) // jobs)
    working: dict[Connection, Any] = {}
    try:
        while groups or working:
            while groups and len(working) < jobs:
                ours, theirs = context.Pipe(duplex=False)
                arguments = (theirs, groups.pop(0), folders, path, threads)
                process = context.Process(target=_work, args=arguments, daemon=True)
                process.start()
                theirs.close()
                working[ours] = process
            heard = wait(list(working))
            for connection in [each for each in working if each in heard]:
                try:
                    tell(*connection.recv())
                except EOFError:
                    process = working.pop(connection)
                    process.join()
                    if process.exitcode:
                        tell(f"process {process.pid}", 0.0, f"it ended with {process.exitcode}")
    finally:
        for process in working.values():
            process.terminate()


def _work(
    connection: Connection, trials: Sequence[Trial], folders: Folders, path: Path, threads: int
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grid is interrupted, and ends its processes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    _make(trials, folders, path, lambda *told: connection.send(told))


def _end_with_parent() -> None:
    """A process whose grid was killed must not go on writing where the next one works."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
