"""`canal experiment`: the tables of the documentation, one command each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from canal.cli.flags import with_settings
from canal.teachers.settings import Settings

experiment_app = typer.Typer(
    no_args_is_help=True, help="Make the tables of the documentation; a stopped run goes on."
)


@experiment_app.command()
@with_settings("training")
def teachers(
    *,
    data: Annotated[Path, typer.Option(help="Folder that holds the public data sets.")],
    out: Annotated[Path, typer.Option(help="Where the cells go.")] = Path("results/teachers"),
    runs: Annotated[Path, typer.Option(help="Where trainings go.")] = Path("runs/teachers"),
    size: Annotated[int, typer.Option(help="Pixels a side.")] = 64,
    settings: Settings,
) -> None:
    """Train teachers on Kvasir-SEG, BUSI and ISIC 2018 and measure them (docs/teachers.md)."""
    from canal.cli.progress import training
    from canal.experiments.teachers import DATA_SETS, TeachersCell, markdown, run_cell

    cells = []
    for name in DATA_SETS:
        cell = TeachersCell(
            name,
            seed=settings.training.seed,
            size=size,
            random=name == "BUSI",
            training=settings.training,
        )
        with training(name, settings.training.steps) as show:
            cells.append(run_cell(cell, data, runs, out, report=show))
    typer.echo(markdown(cells))
