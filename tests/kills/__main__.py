"""Kill commands that charge, a thousand times: `make kills`, or `python -m kills --kills N`.

One line a kill goes to a file as soon as its trial is over; called again, it goes on there.
"""

import argparse
import importlib
import logging
import pkgutil
import signal
import sys
import tempfile
from pathlib import Path

import canal
from kills import table
from kills.commands import COMMANDS
from kills.trial import KINDS, Trials, adopt_orphans

RESULTS = Path(__file__).parents[2] / "results" / "kills.jsonl"
# Nothing that is killed here needs them.
NOT_LOADED = ("attacks", "federation.flare", "report")


def load_everything() -> None:
    """Import what commands would import, and compute a little, so that a fork finds it done."""
    import torch

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(canal.__path__, "canal."):
        short = module.name.removeprefix("canal.")
        if not short.startswith(NOT_LOADED) and not short.endswith(("__main__", "doorkeeper")):
            importlib.import_module(module.name)


def main() -> int:
    """Kill until there are as many lines as asked; exit code 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="in all, with those that are there")
    parser.add_argument("--batch", type=int, help="of those, how many now; all if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="commands whose names begin so")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and clear away what was made
    load_everything()
    adopt_orphans()
    commands = tuple(each for each in COMMANDS if each.name.startswith(given.only))
    known = table.read(given.results)
    goal = min(given.kills, len(known) + (given.batch or given.kills))
    number = 1 + max((line["trial"] for line in known), default=-1)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
    with (
        tempfile.TemporaryDirectory(prefix="canal-kills-", dir=memory) as folder,
        given.results.open("a") as out,
    ):
        trials = Trials(Path(folder), given.seed, commands)
        while len(known) < goal:
            lines = trials.make(number)
            known += lines
            out.writelines(table.written(line) for line in lines)
            out.flush()
            number += 1
            for line in lines:
                if any(line[kind] for kind in KINDS):
                    print(table.written(line), end="", flush=True)
    print(table.table(known))
    return int(any(line[kind] for line in known for kind in KINDS))


if __name__ == "__main__":
    sys.exit(main())
