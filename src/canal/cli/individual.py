"""Figures of patients: shown to whoever sits at the terminal, and to nobody else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer


def show(figures: Sequence[str], private: Path | None) -> None:
    """To whoever sits there, and to no file that a shell makes of it."""
    from canal.attacks.individual import STAYS

    if sys.stdout.isatty():
        for sentence in figures:
            typer.echo(sentence)
        typer.echo(STAYS)
    elif private is None:
        typer.echo(
            "This is no terminal, so figures of patients are not printed; --private FILE keeps "
            "them for the hospital."
        )
