"""`canal experiment`: the tables of the documentation, one command each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from canal.cli.flags import with_settings
from canal.learning.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from canal.experiments.cell import Cell, Places

experiment_app = typer.Typer(
    no_args_is_help=True, help="Make the tables of the documentation; a stopped run goes on."
)
_Data = Annotated[Path, typer.Option(help="Folder that holds the public data sets.")]
_Out = Annotated[Path, typer.Option(help="File of lines (JSONL), one a finished cell.")]
_FIGURES = Path("docs/figures")
_Runs = Annotated[Path, typer.Option(help="Where trainings and releases go.")]
_Size = Annotated[int, typer.Option(help="Pixels a side.")]
_Jobs = Annotated[int, typer.Option(help="Cells made at a time, each in a process of its own.")]


@experiment_app.command()
@with_settings("model", "training")
def teachers(
    *,
    data: _Data,
    out: _Out = Path("paper/results/teachers.jsonl"),
    runs: _Runs = Path("runs"),
    size: _Size = 64,
    jobs: _Jobs = 1,
    settings: Settings,
) -> None:
    """Train teachers on Kvasir-SEG, BUSI and ISIC 2018 and measure them (docs/teachers.md)."""
    from canal.experiments.cell import Places
    from canal.experiments.stage import PAPERS, Scene
    from canal.experiments.teachers import TeachersCell, markdown

    places = Places(data, runs, out)
    cells = [
        TeachersCell(_scene(Scene(name, size=size), settings), random=name == "BUSI")
        for name in PAPERS
    ]
    _make(cells, places, jobs)
    typer.echo(markdown([cell.result(places) for cell in cells]))


@experiment_app.command()
@with_settings("model", "training")
def attacks(
    *,
    data: _Data,
    out: _Out = Path("paper/results/attacks.jsonl"),
    runs: _Runs = Path("runs"),
    seeds: Annotated[int, typer.Option(help="How many, from --seed on.")] = 5,
    size: _Size = 64,
    queries: Annotated[int, typer.Option(help="N, the recipient's images.")] = 200,
    canaries: Annotated[int, typer.Option(help="Patients without whom a teacher is trained.")] = 2,
    decoder_steps: Annotated[int, typer.Option(help="Of each inversion.")] = 600,
    jobs: _Jobs = 1,
    settings: Settings,
) -> None:
    """Attack releases on ISIC 2018: membership of images, inversion, and one patient less."""
    from dataclasses import replace

    from canal.experiments.attack_table import markdown
    from canal.experiments.attacks import ARMS, AttackCell, NetworksCell
    from canal.experiments.cell import Places
    from canal.experiments.roc_figure import figure
    from canal.experiments.stage import Scene

    places = Places(data, runs, out)
    scene = _scene(Scene("ISIC 2018", size=size, recipient=queries), settings)
    networks = [
        NetworksCell(replace(scene, seed=scene.seed + seed), canaries=canaries)
        for seed in range(seeds)
    ]
    cells = [AttackCell(each, arm, decoder_steps) for each in networks for arm in ARMS]
    _make(cells, places, jobs)
    made = [cell.result(places) for cell in cells]
    _FIGURES.mkdir(parents=True, exist_ok=True)
    (_FIGURES / "images.svg").write_text(figure(made[: len(ARMS)]))
    typer.echo(markdown(made))


@experiment_app.command()
def patients(
    *,
    data: _Data,
    out: Annotated[
        Path, typer.Option(help="A file of lines, to which every finished cell is added.")
    ] = Path("paper/results/patients.jsonl"),
    runs: _Runs = Path("runs"),
    seeds: Annotated[int, typer.Option(help="How many, from 0 on.")] = 2,
    jobs: _Jobs = 1,
) -> None:
    """Look for patients and canaries in releases of features and of gradient rounds."""
    from canal.experiments.cell import Places
    from canal.experiments.patients import cells
    from canal.experiments.patients_table import markdown

    places, made = Places(data, runs, out), cells(seeds)
    _make(made, places, jobs)
    typer.echo(markdown([cell.result(places) for cell in made]))


def _paper(name: str, about: str) -> None:
    """A command for one table or figure."""

    @experiment_app.command(name, help=about)
    def run(
        *,
        data: Annotated[
            Path | None, typer.Option(help="Folder that holds the public data sets.")
        ] = None,
        out: Annotated[
            Path | None,
            typer.Option(help="File of lines; paper/results/PRESET.jsonl unless given."),
        ] = None,
        runs: _Runs = Path("runs"),
        preset: Annotated[
            Literal["cpu", "paper"],
            typer.Option(help="cpu: 64 px, for two cores; paper: 256 px, for a GPU."),
        ] = "cpu",
        smoke: Annotated[
            bool, typer.Option("--smoke", help="Seconds, on invented images: does all of it run?")
        ] = False,
        jobs: _Jobs = 1,
    ) -> None:
        from canal.errors import InvalidValueError
        from canal.experiments.cell import Places
        from canal.experiments.paper import EXPERIMENTS, write_synthetic
        from canal.experiments.preset import PRESETS

        if smoke:
            data = write_synthetic(runs / "data")
            out = runs / "smoke.jsonl" if out is None else out
        elif data is None:
            raise InvalidValueError("give --data, the folder of the data sets, or --smoke")
        size = PRESETS["smoke" if smoke else preset]
        out = Path("paper/results") / f"{preset}.jsonl" if out is None else out
        figures = runs / "figures" if smoke else _FIGURES
        chosen = list(EXPERIMENTS) if name == "all" else [name]
        places = Places(data, runs, out)
        _make([cell for each in chosen for cell in EXPERIMENTS[each].cells(size)], places, jobs)
        for each in chosen:
            for file, drawn in EXPERIMENTS[each].figures(size, places).items():
                figures.mkdir(parents=True, exist_ok=True)
                (figures / file).write_text(drawn)
            typer.echo(EXPERIMENTS[each].page(size, places))


for _name, _about in (
    ("table1", "CANAL against uniform noise, with every control."),
    ("ensemble-size", "Dice against the number of teachers."),
    ("qualitative", "Outlines of students at epsilon 2."),
    ("composition", "Released once, against fresh noise at every step."),
    ("federation", "Three real hospitals with polyps, each in turn the recipient."),
    ("levers", "What each change to the paper's mechanism does, in Dice and in dB."),
    ("gains", "What each choice of the adapters is worth, on invented hospitals."),
    ("adapters", "Patients that teach the shared network, against rivals at their epsilon."),
    ("all", "All of docs/results.md, and the tables of adapters."),
):
    _paper(_name, _about)


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


def _make(cells: Sequence[Cell], places: Places, jobs: int) -> None:
    """Make all cells; those that fail are named, and then there is no table."""
    from canal.cli.progress import watching
    from canal.errors import InvalidValueError
    from canal.experiments.grid import missing, run_grid
    from canal.experiments.stage import check_data

    check_data(places)
    with watching(len(missing(cells, places))) as watch:
        failed = run_grid(cells, places, jobs=jobs, watch=watch)
    if failed:
        raise InvalidValueError(
            f"{len(failed)} cells could not be made (see above); the same command tries those "
            "again, and no others"
        )
