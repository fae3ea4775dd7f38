"""A grid: many cells, made in the order of what they need, several at a time.

Every worker is a process of its own with its share of the cores, and works where no other does
as long as it can: two in one place would wait for what both of them need. A cell that fails is
reported, and so are those that needed it; the rest goes on. Killed at any time, a grid goes on
where it was.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from canal.errors import CanalError, InvalidValueError
from canal.experiments.cell import Cell, Places, Report

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Watch:
    """Who is told how a grid goes; by default nobody.

    Args:
        begin: a cell is begun.
        report: how far it is: what, done, total.
        end: it is there, or why it is not; and the seconds that are left, as far as is known.
    """

    begin: Callable[[Cell], None] = lambda cell: None
    report: Callable[[Cell, str, int, int], None] = lambda cell, what, done, total: None
    end: Callable[[Cell, str | None, float | None], None] = lambda cell, failure, left: None


@dataclass
class _Queue:
    """Which cells are left, and which of them can be made now."""

    cells: dict[str, Cell]
    here: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def next(self, beside: Collection[str] = ()) -> Cell | None:
        """The first that can be made now, best one that is not of the places named."""
        ready = [
            cell
            for slug, cell in self.cells.items()
            if slug not in self.begun and {other.slug for other in cell.after} <= self.here
        ]
        found = next((cell for cell in ready if cell.place not in beside), next(iter(ready), None))
        if found is not None:
            self.begun.add(found.slug)
        return found

    def waiting(self, failed: Cell) -> list[Cell]:
        """Cells that were to come after this one."""
        return [
            cell
            for slug, cell in self.cells.items()
            if slug not in self.begun and any(other.slug == failed.slug for other in cell.after)
        ]

    def end(self, cell: Cell, failure: str | None, seconds: float) -> None:
        if failure is None:
            self.here.add(cell.slug)
            self.seconds.setdefault(type(cell).__name__, []).append(seconds)
        else:
            self.failed[cell.slug] = failure

    def left(self, jobs: int) -> float | None:
        """Seconds, if any cell was made; a kind that was not takes as long as the others."""
        every = [seconds for known in self.seconds.values() for seconds in known]
        if not every:
            return None
        total = 0.0
        for slug, cell in self.cells.items():
            if slug not in self.here and slug not in self.failed:
                known = self.seconds.get(type(cell).__name__, every)
                total += sum(known) / len(known)
        return total / max(jobs, 1)


def run_grid(
    cells: Sequence[Cell], places: Places, *, jobs: int = 1, watch: Watch | None = None
) -> dict[str, str]:
    """Make all cells, and those that they need; gives why some are not there, by slug.

    Args:
        cells: what is wanted.
        places: where to read and write.
        jobs: processes; 1 works in this one.
        watch: is told how it goes.
    """
    if jobs < 1:
        raise InvalidValueError(f"jobs = {jobs!r} must be at least 1")
    watch = Watch() if watch is None else watch
    queue = _Queue(_with_needs(cells))
    for slug, cell in queue.cells.items():
        if cell.is_there(places):
            queue.here.add(slug)
            queue.begun.add(slug)
    jobs = min(jobs, len(queue.cells) - len(queue.here))
    (_run_here if jobs <= 1 else _run_apart)(queue, places, jobs, watch)
    return queue.failed


def missing(cells: Sequence[Cell], places: Places) -> list[Cell]:
    """Those that are not there yet, of these and of what they need."""
    return [cell for cell in _with_needs(cells).values() if not cell.is_there(places)]


def _with_needs(cells: Sequence[Cell]) -> dict[str, Cell]:
    """All of them by slug, what is needed first."""
    found: dict[str, Cell] = {}
    for cell in cells:
        found |= _with_needs(cell.after)
        found[cell.slug] = cell
    return found


def _finish(
    queue: _Queue, cell: Cell, failure: str | None, started: float, jobs: int, watch: Watch
) -> None:
    queue.end(cell, failure, time.monotonic() - started)
    watch.end(cell, failure, queue.left(jobs))
    if failure is not None:
        for other in queue.waiting(cell):
            if other.slug not in queue.begun:
                queue.begun.add(other.slug)
                why = f"needs {cell.name}, which failed"
                _finish(queue, other, why, time.monotonic(), jobs, watch)


def _run_here(queue: _Queue, places: Places, jobs: int, watch: Watch) -> None:
    while (cell := queue.next()) is not None:
        started = time.monotonic()
        watch.begin(cell)

        def report(what: str, done: int, total: int, cell: Cell = cell) -> None:
            watch.report(cell, what, done, total)

        _finish(queue, cell, _attempt(cell, places, report), started, jobs, watch)


def _attempt(cell: Cell, places: Places, report: Report) -> str | None:
    """Make a cell; why not, if it fails."""
    try:
        cell.result(places, report)
    except CanalError as error:
        return str(error)
    except Exception as error:  # one cell must not take the others with it
        path = places.runs / f"{cell.slug}.error.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc())
        return f"{type(error).__name__}: {error} (more in {path})"
    return None


@dataclass
class _Worker:
    """A process that makes one cell after the other."""

    process: Any
    connection: Connection
    cell: Cell | None = None
    started: float = 0.0

    @classmethod
    def start(cls, places: Places, threads: int) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_work, args=(theirs, places, threads), daemon=True)
        with _environment(dict.fromkeys(THREADS, str(threads))):
            process.start()
        theirs.close()
        return cls(process, ours)

    def give(self, cell: Cell) -> None:
        """Have it make a cell; one that died meanwhile says so when it is listened to."""
        self.cell, self.started = cell, time.monotonic()
        with suppress(BrokenPipeError):
            self.connection.send(cell)

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()
        self.connection.close()


def _run_apart(queue: _Queue, places: Places, jobs: int, watch: Watch) -> None:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    workers: list[_Worker] = []
    try:
        workers += [_Worker.start(places, threads) for _ in range(jobs)]
        while True:
            for place, worker in enumerate(workers):
                if worker.cell is None and not worker.process.is_alive():
                    workers[place] = _Worker.start(places, threads)
                beside = {other.cell.place for other in workers if other.cell is not None}
                if workers[place].cell is None and (cell := queue.next(beside)) is not None:
                    watch.begin(cell)
                    workers[place].give(cell)
            busy = [worker for worker in workers if worker.cell is not None]
            if not busy:
                return
            ready = wait([worker.connection for worker in busy])
            for worker in busy:
                if worker.connection in ready:
                    _listen(queue, worker, jobs, watch)
    finally:
        for worker in workers:
            worker.stop()


def _listen(queue: _Queue, worker: _Worker, jobs: int, watch: Watch) -> None:
    """Take one message of a worker; one that died says nothing more."""
    cell = worker.cell
    assert cell is not None  # noqa: S101
    try:
        message = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        message = ("end", f"its process ended with code {worker.process.exitcode}")
    if message[0] == "report":
        watch.report(cell, *message[1:])
        return
    worker.cell = None
    _finish(queue, cell, message[1], worker.started, jobs, watch)


def _work(connection: Connection, places: Places, threads: int) -> None:
    """What a worker does until nobody listens any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grid is interrupted, and ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    while True:
        try:
            cell = connection.recv()
        except EOFError:
            return

        def report(what: str, done: int, total: int) -> None:
            connection.send(("report", what, done, total))

        connection.send(("end", _attempt(cell, places, report)))


def _end_with_parent() -> None:
    """A worker whose grid was killed must not go on writing where the next one works."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables that a new process finds; ours are put back."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
