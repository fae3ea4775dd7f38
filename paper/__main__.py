"""`python -m paper run GRID …` makes trials; `python -m paper tables` writes what they found."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from canal.errors import CanalError, InvalidValueError
from paper.documents import ROOT, outdated, written
from paper.grids import GRIDS, PAPER_SIZE, SMOKE
from paper.scenario import Folders, check_data
from paper.trial import Results, Trial, run

RESULTS = Path(__file__).parent / "results"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do as asked; gives the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        done: int = asked.do(asked)
    except CanalError as error:
        print(f"paper: {error}", file=sys.stderr)
        return 2
    return done


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paper", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    runs = commands.add_parser("run", help="Make the trials of grids; a stopped run goes on.")
    runs.set_defaults(do=_run)
    runs.add_argument(
        "grids",
        nargs="+",
        choices=[*GRIDS, "all", "smoke"],
        metavar="GRID",
        help=f"{', '.join(GRIDS)}; all of them; or smoke, one tiny trial of every arm.",
    )
    runs.add_argument("--data", type=Path, help="Folder that holds the public data sets.")
    runs.add_argument("--seeds", type=int, help="How many, from 0 on; as many as in the documents.")
    runs.add_argument("--jobs", type=int, default=1, help="Scenarios that are made at a time.")
    tables = commands.add_parser("tables", help="Write every table and figure of the documents.")
    tables.set_defaults(do=_tables)
    how = tables.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="Write nothing; fail if one is outdated.")
    how.add_argument("--print", nargs="+", choices=GRIDS, metavar="GRID", help="Print its tables.")
    for each in (runs, tables):
        each.add_argument("--results", type=Path, help="Their folder; of other sizes in RUNS.")
        each.add_argument("--runs", type=Path, default=Path("runs"), help="Trainings and releases.")
        each.add_argument("--preset", choices=["cpu", "paper"], default="cpu", help="The size.")
        each.add_argument(
            *("--set", "-s"),
            action="append",
            default=[],
            metavar="FIELD=VALUE",
            help="A setting of all scenarios, such as size=32.",
        )
    return parser


def _results(asked: argparse.Namespace) -> Results:
    """Those of the documents, or of the size that is asked for."""
    changes: dict[str, Any] = dict(PAPER_SIZE) if asked.preset == "paper" else {}
    for each in asked.set:
        name, _, value = each.partition("=")
        try:
            changes[name] = json.loads(value)
        except ValueError:
            changes[name] = value
    other = asked.runs / "results" if changes else RESULTS
    return Results(asked.results or other, changes)


def _run(asked: argparse.Namespace) -> int:
    results = _results(asked)
    names = [*GRIDS] if "all" in asked.grids else asked.grids
    wanted: dict[str, Sequence[Trial]] = {
        name: GRIDS[name].trials(asked.seeds or GRIDS[name].seeds)
        for name in names
        if name != "smoke"
    }
    if "smoke" in names:
        results, wanted = Results(asked.runs / "results"), {"smoke": SMOKE}
    if any(not trial.scenario.synthetic for trials in wanted.values() for trial in trials):
        if asked.data is None:
            raise InvalidValueError("give --data, the folder of the public data sets")
        check_data(asked.data, results.folder)
    if asked.jobs > 1:  # processes share the cores
        share = max(1, (os.cpu_count() or 1) // asked.jobs)
        os.environ.update(dict.fromkeys(THREADS, f"{share}"))
    failed: dict[str, str] = {}
    folders = Folders(asked.data or asked.runs, asked.runs)
    for name, trials in wanted.items():
        missing = results.missing(trials)
        path, tell = results.folder / f"{name}.jsonl", _Progress(name, len(missing))
        failed |= run(missing, folders, path, jobs=asked.jobs, tell=tell)
        results = Results(results.folder, results.changes)  # the next grid may share some
    if failed:
        raise InvalidValueError(
            f"{len(failed)} trials could not be made (see above); the same command tries those "
            "again, and no others"
        )
    return 0


class _Progress:
    """A line for every trial, with the time that is left."""

    def __init__(self, grid: str, total: int) -> None:
        self.grid, self.total, self.done, self.began = grid, total, 0, time.monotonic()

    def __call__(self, name: str, seconds: float, failure: str | None) -> None:
        self.done += 1
        pace = (time.monotonic() - self.began) / self.done
        left = round(pace * (self.total - self.done) / 60)
        said = f"failed: {failure}" if failure else f"{seconds:.0f} s"
        at = f"{self.grid} {self.done}/{self.total}"
        print(f"{at} {name}: {said}; about {left} min left", file=sys.stderr, flush=True)


def _tables(asked: argparse.Namespace) -> int:
    results = _results(asked)
    if asked.print or results.changes:
        for grid in asked.print or GRIDS:
            print("\n".join(make(results) for make in GRIDS[grid].tables.values()))
        return 0
    files = written(results)
    old = outdated(files)
    for path in old:
        if asked.check:
            print(f"{path.relative_to(ROOT)} is outdated; `python -m paper tables` writes it")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path])
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if asked.check and old else 0


if __name__ == "__main__":
    sys.exit(main())
