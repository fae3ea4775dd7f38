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


@experiment_app.command()
@with_settings("training")
def attacks(
    *,
    data: Annotated[Path, typer.Option(help="Folder that holds the public data sets.")],
    out: Annotated[Path, typer.Option(help="Where the cells go.")] = Path("results/attacks"),
    runs: Annotated[Path, typer.Option(help="Where trainings go.")] = Path("runs/attacks"),
    seeds: Annotated[int, typer.Option(help="How many, from 0.")] = 5,
    size: Annotated[int, typer.Option(help="Pixels a side.")] = 64,
    queries: Annotated[int, typer.Option(help="N, the recipient's images.")] = 200,
    shadows: Annotated[int, typer.Option(help="Teachers that the patient attack trains.")] = 12,
    settings: Settings,
) -> None:
    """Attack releases on ISIC 2018: membership of images and patients, inversion."""
    from dataclasses import replace

    from canal.cli.progress import counting_named
    from canal.experiments.attacks import AttacksCell, markdown, run_cell
    from canal.experiments.roc_figure import figure

    cells = []
    for seed in range(seeds):
        cell = AttacksCell(
            seed=seed,
            size=size,
            queries=queries,
            shadows=shadows,
            training=replace(settings.training, seed=seed),
        )
        with counting_named(f"seed {seed}") as show:
            cells.append(run_cell(cell, data, runs, out, report=show))
    for attack in ("images", "patients"):
        (out / f"{attack}.svg").write_text(figure(cells[0], attack))
    typer.echo(markdown(cells))
