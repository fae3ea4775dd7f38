"""The privacy card in a terminal, and the same for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from canal.release.store import Folder


def summary(release: Folder) -> dict[str, Any]:
    """A release in a few entries."""
    return {
        "path": str(release.path),
        "kind": release.manifest.kind,
        "private": release.private,
        "stamp": release.statement["stamp"],
        **release.content,
        "digest": release.digest,
        "guarantee": {
            unit: entry["epsilon"] for unit, entry in release.statement["guarantee"].items()
        },
        "ledger": release.manifest.ledger,
    }


def warn(release: Folder) -> None:
    """Say on standard error that a release protects nobody, if that is so."""
    if release.statement["stamp"]:
        typer.echo(f"{release.path}: {release.statement['stamp']}", err=True)


def print_card(release: Folder) -> None:
    """Everything that the statement says."""
    from rich.console import Console

    from canal.release.record import said_of_overlap

    print_guarantee(release)
    console = Console(highlight=False)
    for title in ("protected", "not_protected", "trust", "mechanism", "assumptions"):
        console.print(f"[bold]{title.replace('_', ' ').capitalize()}[/]")
        for sentence in release.statement[title]:
            console.print(f"- {sentence}", markup=False)
    console.print("[bold]Overlap[/]")
    for sentence in said_of_overlap(release.manifest.record["overlap"]):
        console.print(f"- {sentence}", markup=False)
    console.print()


def print_made(release: Folder, out: Path, *, as_json: bool, private: Path | None = None) -> None:
    """What was made, and what is to be done with it.

    Args:
        release: that was made.
        out: its folder, as it was typed.
        as_json: for programs.
        private: what is not to be handed out, if it is here.
    """
    if as_json:
        print_json(summary(release))
        return
    print_guarantee(release)
    fate = "is to be handed out" if release.private else "protects nobody"
    stays = "" if private is None else f" {private.name} beside it stays with you."
    typer.echo(f"{out} {fate}; `canal release show {out}` or {out / 'card.html'} says all.{stays}")


def print_guarantee(release: Folder) -> None:
    """What was asked for, and the epsilon of every unit."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from canal.privacy.units import RELATIONS
    from canal.release.digits import short, upwards

    console, said, plan = Console(highlight=False), release.statement, release.plan
    if said["stamp"]:
        console.print(f"[bold red]{said['stamp']}[/]")
    first, rest = release.words
    console.print(
        f"[bold]{first}[/]{rest}; asked for: epsilon {plan.epsilon:g} at delta "
        f"{short(plan.delta)}, unit [bold]{plan.unit}[/], {plan.conversion} conversion"
    )
    names = {}
    if "relation" in said:
        names = {unit: f"{unit} ({relation})" for relation, unit in RELATIONS.items()}
    table = Table(box=box.SIMPLE_HEAD)
    for number, name in enumerate(("unit", "epsilon", "what it means")):
        table.add_column(name, justify="right" if number == 1 else "left")
    for unit, entry in said["guarantee"].items():
        style = "bold" if unit == plan.unit else ""
        table.add_row(
            names.get(unit, unit), short(upwards(entry["epsilon"])), entry["reading"], style=style
        )
    console.print(table)


def print_json(content: Any) -> None:
    """For programs."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False))
