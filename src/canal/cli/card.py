"""The privacy card in a terminal, and the same for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from canal.release.store import Release


def summary(release: Release) -> dict[str, Any]:
    """A release in a few entries."""
    return {
        "path": str(release.path),
        "private": release.private,
        "stamp": release.statement["stamp"],
        "queries": len(release),
        "channels": release.channels.tolist(),
        "digest": release.manifest.digest,
        "guarantee": {
            unit: entry["epsilon"] for unit, entry in release.statement["guarantee"].items()
        },
        "ledger": release.manifest.ledger,
    }


def print_card(release: Release) -> None:
    """Everything that the statement says."""
    from rich.console import Console

    print_guarantee(release)
    console = Console(highlight=False)
    for title in ("protected", "not_protected", "trust", "mechanism", "assumptions"):
        console.print(f"[bold]{title.replace('_', ' ').capitalize()}[/]")
        for sentence in release.statement[title]:
            console.print(f"- {sentence}", markup=False)
    console.print()


def print_guarantee(release: Release) -> None:
    """What was asked for, and the epsilon of every unit."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from canal.release.digits import short, upwards

    console, said, plan = Console(highlight=False), release.statement, release.plan
    if said["stamp"]:
        console.print(f"[bold red]{said['stamp']}[/]")
    people = plan.participants
    console.print(
        f"[bold]{len(release.channels)} of {plan.channels} channels[/] of {people.queries} queries "
        f"from {people.teachers} teachers; asked for: epsilon {plan.epsilon:g} at delta "
        f"{short(plan.delta)}, unit [bold]{plan.unit}[/], {plan.conversion} conversion"
    )
    table = Table(box=box.SIMPLE_HEAD)
    for number, name in enumerate(("unit", "epsilon", "what it means")):
        table.add_column(name, justify="right" if number == 1 else "left")
    for unit, entry in said["guarantee"].items():
        style = "bold" if unit == plan.unit else ""
        table.add_row(unit, short(upwards(entry["epsilon"])), entry["reading"], style=style)
    console.print(table)


def print_json(content: Any) -> None:
    """For programs."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False))
