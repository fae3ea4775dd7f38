"""`canal experiment`: the tables of the documentation, one command each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from canal.cli.flags import with_settings
from canal.teachers.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from canal.experiments.cell import Cell, Places

experiment_app = typer.Typer(
    no_args_is_help=True, help="Make the tables of the documentation; a stopped run goes on."
)
_Data = Annotated[Path, typer.Option(help="Folder that holds the public data sets.")]
_Out = Annotated[Path, typer.Option(help="Where the cells go.")]
_Runs = Annotated[Path, typer.Option(help="Where trainings and releases go.")]
_Size = Annotated[int, typer.Option(help="Pixels a side.")]
_Jobs = Annotated[int, typer.Option(help="Cells made at a time, each in a process of its own.")]


@experiment_app.command()
@with_settings("model", "training")
def teachers(
    *,
    data: _Data,
    out: _Out = Path("results/teachers"),
    runs: _Runs = Path("runs"),
    size: _Size = 64,
    jobs: _Jobs = 1,
    settings: Settings,
) -> None:
    """Train teachers on Kvasir-SEG, BUSI and ISIC 2018 and measure them (docs/teachers.md)."""
    from canal.experiments.cell import Places
    from canal.experiments.stage import DATA_SETS, Scene
    from canal.experiments.teachers import TeachersCell, markdown

    places = Places(data, runs, out)
    cells = [
        TeachersCell(_scene(Scene(name, size=size), settings), random=name == "BUSI")
        for name in DATA_SETS
    ]
    typer.echo(markdown(_made(cells, places, jobs)))


@experiment_app.command()
@with_settings("model", "training")
def attacks(
    *,
    data: _Data,
    out: _Out = Path("results/attacks"),
    runs: _Runs = Path("runs"),
    seeds: Annotated[int, typer.Option(help="How many, from 0.")] = 5,
    size: _Size = 64,
    queries: Annotated[int, typer.Option(help="N, the recipient's images.")] = 200,
    shadows: Annotated[int, typer.Option(help="Teachers that the patient attack trains.")] = 12,
    canaries: Annotated[int, typer.Option(help="Patients without whom a teacher is trained.")] = 2,
    decoder_steps: Annotated[int, typer.Option(help="Of each inversion.")] = 600,
    jobs: _Jobs = 1,
    settings: Settings,
) -> None:
    """Attack releases on ISIC 2018: membership of images and patients, inversion."""
    from dataclasses import replace

    from canal.experiments.attacks import ARMS, AttackCell, NetworksCell, markdown
    from canal.experiments.cell import Places
    from canal.experiments.roc_figure import figure
    from canal.experiments.stage import Scene

    places = Places(data, runs, out)
    scene = _scene(Scene("ISIC 2018", size=size, recipient=queries), settings)
    networks = [
        NetworksCell(replace(scene, seed=seed), shadows=shadows, canaries=canaries)
        for seed in range(seeds)
    ]
    cells = [AttackCell(each, arm, decoder_steps) for each in networks for arm in ARMS]
    made = _made(cells, places, jobs)
    for attack in ("images", "patients"):
        (out / f"{attack}.svg").write_text(figure(made[: len(ARMS)], attack))
    typer.echo(markdown(made))


def _scene(scene: Any, settings: Settings) -> Any:
    """A scene with the network and the training that were asked for."""
    from dataclasses import replace

    return replace(
        scene,
        seed=settings.training.seed,
        base_channels=settings.model.base_channels,
        norm=settings.model.norm,
        training=replace(settings.training, seed=0),
    )


def _made(cells: Sequence[Cell], places: Places, jobs: int) -> list[dict[str, Any]]:
    """The results of all cells; those that fail are named, and then there is no table."""
    from canal.cli.progress import watching
    from canal.errors import InvalidValueError
    from canal.experiments.grid import missing, run_grid

    with watching(len(missing(cells, places))) as watch:
        failed = run_grid(cells, places, jobs=jobs, watch=watch)
    if failed:
        raise InvalidValueError(
            f"{len(failed)} cells could not be made (see above); the same command tries those "
            "again, and no others"
        )
    return [cell.result(places) for cell in cells]
