"""What a thousand kills found: lines of a file, and the table of them in the documentation."""

import json
from pathlib import Path

from kills.trial import KINDS, STAGES

# How far a command had come, as a reader would say it.
_REACHED = ("not charged", "charged", "sealed", "committed", "in its place", "done")
PUBLICATION = ("sealed", "committed", "published", "over")


def read(path: Path) -> list[dict]:
    """Every kill, in the order in which it came."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def written(line: dict) -> str:
    """One of them, as it stands in the file."""
    return json.dumps(line, separators=(",", ":")) + "\n"


def table(lines: list[dict]) -> str:
    """Kills by command: how many, how far they had come, what was found."""
    heads = ("command", "kills", *_REACHED, *KINDS)
    rows = [heads, ("---", *("---:" for _ in heads[1:]))]
    names = list(dict.fromkeys(line["command"] for line in lines))
    for name in (*sorted(names), None):
        mine = [line for line in lines if name in (line["command"], None)]
        reached = (sum(line["at"] == each for line in mine) for each in STAGES)
        found = (sum(line[kind] for line in mine) for kind in KINDS)
        numbers = (len(mine), *reached, *found)
        rows.append((name or "all", *map(str, numbers)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
