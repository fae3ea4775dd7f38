"""Run the benchmarks and print a table of ratios; exit code 1 if one misses its target."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

from bench import adapters, attacks, demo, federation, privacy, release, student, training

SUITES = {
    "privacy": privacy.ratios,
    "training": training.ratios,
    "release": release.ratios,
    "student": student.ratios,
    "adapters": adapters.ratios,
    "attacks": attacks.ratios,
    "federation": federation.ratios,
    "demo": demo.ratios,
}


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; all if none is named")
    parser.add_argument("--json", action="store_true", help="for programs")
    chosen = parser.parse_args()
    for suite in set(chosen.suites) - set(SUITES):
        parser.error(f"there is no suite {suite!r}; choose from {', '.join(SUITES)}")
    console = Console(stderr=chosen.json)
    if not console.is_terminal:
        console.width = 130
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("what", "against"):
        table.add_column(name)
    for name in ("ours", "theirs", "speed", "asked", ""):
        table.add_column(name, justify="right")
    found = []
    for suite in chosen.suites or SUITES:
        for ratio in SUITES[suite]():
            found.append(ratio)
            console.print(f"{ratio.what} [dim]against {ratio.against}[/]: {ratio.speed:.3g} x")
            table.add_row(
                ratio.what,
                ratio.against,
                f"{ratio.ours:.4g} {ratio.unit}",
                f"{ratio.theirs:.4g} {ratio.unit}",
                f"{ratio.speed:.3g} x",
                f"{ratio.target:.3g} x",
                "[green]yes[/]" if ratio.reached else "[red]no[/]",
            )
    if chosen.json:
        rows = [asdict(ratio) | {"speed": ratio.speed} for ratio in found]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        console.print(table)
    return 0 if all(ratio.reached for ratio in found) else 1


if __name__ == "__main__":
    sys.exit(main())
