"""`canal init` and `canal teacher`: the shared initialisation, and what a site makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from canal.cli.flags import with_settings
from canal.teachers.settings import DataSettings, Settings

if TYPE_CHECKING:
    from canal.data.cache import Arrays

teacher_app = typer.Typer(no_args_is_help=True, help="Train a teacher at a site, and measure it.")
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
    settings: Settings,
) -> None:
    """Make the weights that all teachers start from: public random, or trained on public images."""
    from canal.cli.progress import training
    from canal.models.unet import UNetArchitecture
    from canal.teachers.run import initialise

    arrays = None if data is None else _load(data, split, part, settings.data)
    if arrays is not None:
        dims = arrays.images.ndim - 2
    architecture = UNetArchitecture(
        in_channels=(settings.data.channels or 3) if arrays is None else arrays.images.shape[1],
        spatial_dims=dims,
        base_channels=settings.model.base_channels,
        norm=settings.model.norm,
    )
    with training("initialisation", settings.training.steps) as report:
        made = initialise(
            out,
            architecture,
            seed=public_seed,
            size=(settings.data.size,) * dims,
            arrays=arrays,
            settings=settings.training,
            report=report,
        )
    typer.echo(f"{out}: initialisation {made.initialisation[:12]}, tap {made.tap}")


@teacher_app.command()
@with_settings("data", "training")
def train(
    *,
    init: Annotated[Path, typer.Option(help="Folder of the shared initialisation.")],
    data: _Data,
    out: _Out,
    split: _Split = None,
    cohort: Annotated[str, typer.Option(help="Part of the split to train on.")] = "site-1",
    settings: Settings,
) -> None:
    """Train a teacher on one site's cohort, from the shared initialisation."""
    from canal.cli.progress import training
    from canal.teachers.run import train as make

    arrays = _load(data, split, cohort, settings.data)
    name = cohort if split is not None else ""
    with training(name or "teacher", settings.training.steps) as report:
        made = make(out, init, arrays, settings.training, name=name, report=report)
    typer.echo(f"{out}: teacher of {made.notes['images']} images from {made.initialisation[:12]}")


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
    from dataclasses import replace

    from canal.models import checkpoint
    from canal.teachers import evaluate as measure

    network, made = checkpoint.load(teacher)
    # The network knows what it was made for.
    known = replace(settings.data, size=made.size[0], channels=made.architecture["in_channels"])
    arrays = _load(data, split, part, known)
    predicted = measure.predict(network, arrays)
    found = measure.scores(predicted, arrays)
    out = teacher if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    measure.write_csv(out / "scores.csv", found)
    measure.write_grid(out / "grid.png", arrays, predicted, found)
    summary = measure.summary(found)
    if as_json:
        import json

        typer.echo(json.dumps(summary, indent=1))
        return
    low, high = summary["dice_interval"]
    distance = "-" if summary["hd95"] is None else f"{summary['hd95']:.1f} px"
    typer.echo(
        f"{summary['images']} images: Dice {100 * summary['dice']:.1f} "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f}), IoU {100 * summary['iou']:.1f}, "
        f"HD95 {distance}\n{out / 'scores.csv'}, {out / 'grid.png'}"
    )


def _load(path: Path, split: Path | None, part: str, settings: DataSettings) -> Arrays:
    from canal.cli.progress import counting
    from canal.data import cache
    from canal.data.readers import read
    from canal.data.split import Split

    data = read(path, normal=settings.normal)
    wanted = None if split is None else Split.read(split).part(part)
    with counting("decoding", len(data.cases)) as progress:
        arrays = cache.load(
            data.cases,
            size=(settings.size,) * data.spatial_dims,
            channels=settings.channels or None,
            progress=progress,
        )
    return arrays if wanted is None else arrays.rows(wanted)
