"""`canal init` and `canal teacher`: the shared initialisation, and what a site makes of it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from canal.cli.flags import with_settings
from canal.cli.network import load_part, measure, refuse_cohorts, refuse_overlap
from canal.learning.settings import ModelSettings, Settings

teacher_app = typer.Typer(no_args_is_help=True)
_Data = Annotated[Path, typer.Option(help="The folder of the data set.")]
_Split = Annotated[Path | None, typer.Option(help="A split; without it, all cases.")]
_Out = Annotated[Path, typer.Option(help="The run folder; a stopped run goes on there.")]


@with_settings("data", "model", "training")
def init(
    *,
    out: _Out,
    public_seed: Annotated[int, typer.Option(help="Of the random weights; public.")] = 0,
    data: Annotated[
        Path | None, typer.Option(help="The recipient's non-private images, to train on.")
    ] = None,
    split: _Split = None,
    part: Annotated[str, typer.Option(help="Part of the split to train on.")] = "recipient",
    dims: Annotated[int, typer.Option(min=2, max=3, help="2 for images, 3 for volumes.")] = 2,
    after: Annotated[
        Path | None, typer.Option(help="Go on from this initialisation; its network is kept.")
    ] = None,
    unlabelled: Annotated[
        Path | None,
        typer.Option(help="More non-private images, which the network of --after labels itself."),
    ] = None,
    settings: Settings,
) -> None:
    """Make the weights that all teachers start from: public random, or trained on public images."""
    from canal.cli.progress import training
    from canal.errors import InvalidValueError
    from canal.learning.networks import UNetArchitecture
    from canal.learning.teacher import initialise, train_further

    if split is not None:
        refuse_cohorts(split, part)
    if after is not None:
        _refuse(after, data, settings.model, public_seed)
    elif unlabelled is not None:
        raise InvalidValueError(
            "--unlabelled images are labelled by an initialisation; give it with --after"
        )
    if unlabelled is not None and data is not None:
        refuse_overlap(unlabelled, data, "--unlabelled")
    arrays = None if data is None else load_part(data, split, part, settings.data)
    with training("initialisation", settings.training.steps) as report:
        if after is not None and arrays is not None:
            more = None
            if unlabelled is not None:
                alike = replace(settings.data, channels=arrays.images.shape[1])
                more = load_part(unlabelled, None, part, alike, unlabelled=True).without_labels()
            made = train_further(
                out, after, arrays, settings.training, unlabelled=more, report=report
            )
        else:
            dims = dims if arrays is None else arrays.images.ndim - 2
            channels = (settings.data.channels or 3) if arrays is None else arrays.images.shape[1]
            made = initialise(
                out,
                UNetArchitecture(
                    in_channels=channels,
                    spatial_dims=dims,
                    base_channels=settings.model.base_channels,
                    norm=settings.model.norm,
                ),
                seed=public_seed,
                size=(settings.data.size,) * dims,
                arrays=arrays,
                settings=settings.training,
                report=report,
            )
    typer.echo(f"{out}: initialisation {made.initialisation[:12]}, tap {made.tap}")


def _refuse(after: Path, data: Path | None, model: ModelSettings, seed: int) -> None:
    """Refuse to go on without images, or with another network than there is."""
    from canal.errors import InvalidValueError
    from canal.learning import checkpoint

    if data is None:
        raise InvalidValueError("--after goes on training; give the images to train on: --data")
    if seed:
        raise InvalidValueError(
            "--public-seed draws a new network, and --after keeps one; give one"
        )
    there = checkpoint.describe(after).architecture
    for name, default in asdict(ModelSettings()).items():
        asked = getattr(model, name)
        if asked not in (default, there[name]):
            raise InvalidValueError(
                f"{name} = {asked!r}, but {after} has {there[name]!r}; --after keeps the network"
            )


@teacher_app.command()
@with_settings("data", "training")
def train(
    *,
    init: Annotated[Path, typer.Option(help="Folder of the shared initialisation.")],
    data: _Data,
    out: _Out,
    split: _Split = None,
    cohort: Annotated[str, typer.Option(help="Part of the split to train on.")] = "site-1",
    without: Annotated[
        str, typer.Option(help="Leave out this patient, for the canary of `canal audit`.")
    ] = "",
    settings: Settings,
) -> None:
    """Train a teacher on one site's cohort, from the shared initialisation."""
    from canal.cli.progress import training
    from canal.learning.teacher import train as make

    arrays = load_part(data, split, cohort, settings.data)
    if without:
        arrays = arrays.without(without)
    name = cohort if split is not None else ""
    with training(name or "teacher", settings.training.steps) as report:
        made = make(out, init, arrays, settings.training, name=name, report=report)
    typer.echo(f"{out}: teacher from {made.initialisation[:12]}")


@teacher_app.command()
@with_settings("data")
def evaluate(
    *,
    teacher: Annotated[Path, typer.Option(help="Folder of the teacher.")],
    data: _Data,
    split: _Split = None,
    part: Annotated[str, typer.Option(help="Part of the split to measure on.")] = "test",
    out: Annotated[
        Path | None, typer.Option(help="Where scores.csv and grid.png go; the teacher's folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    settings: Settings,
) -> None:
    """Measure Dice, IoU and HD95 of every image; write a table and a picture."""
    measure(teacher, data, split, part, out, settings, as_json=as_json)
