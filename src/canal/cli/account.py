"""`canal account`: what a release costs, under every unit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from canal.cli.card import print_json


def account(
    folder: Annotated[Path, typer.Argument(help="The release folder.")],
    delta: Annotated[
        float | None, typer.Option(help="Another delta than the plan's.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what a release costs: epsilon under every unit, and each part's share."""
    from canal.release.store import open_release
    from canal.release.verification import account as price

    found = price(open_release(folder), delta)
    if as_json:
        print_json(found)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from canal.release.digits import short, upwards

    if found["stamp"]:
        typer.secho(found["stamp"], fg=typer.colors.RED, bold=True)
    table = Table(
        box=box.SIMPLE_HEAD, title=f"At delta {short(found['delta'])}", title_justify="left"
    )
    parts = list(found["units"][found["unit"]]["shares"])
    for number, name in enumerate(("unit", "epsilon", "exact", "rho", *parts)):
        table.add_column(name, justify="right" if number else "left")
    for name, entry in found["units"].items():
        shares = [
            "-" if entry["shares"].get(part) is None else f"{entry['shares'][part]:.1%}"
            for part in parts
        ]
        costs = [short(upwards(entry[kind])) for kind in ("epsilon", "epsilon_exact", "rho")]
        table.add_row(name, *costs, *shares, style="bold" if name == found["unit"] else "")
    Console(highlight=False).print(table)
