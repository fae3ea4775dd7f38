"""`canal student`: distil from a release, measure, and segment images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from canal.cli.card import warn
from canal.cli.flags import with_settings
from canal.cli.network import load_part, measure
from canal.learning.settings import Settings

student_app = typer.Typer(no_args_is_help=True)
_Data = Annotated[Path, typer.Option(help="The folder of the data set.")]
_Split = Annotated[Path | None, typer.Option(help="A split; without it, all cases.")]
_Student = Annotated[Path, typer.Option(help="Folder of the student.")]


@student_app.command()
@with_settings("data", "training", "distill")
def train(
    *,
    init: Annotated[Path, typer.Option(help="Folder of the shared initialisation.")],
    data: _Data,
    out: Annotated[Path, typer.Option(help="The run folder; a stopped run goes on there.")],
    release: Annotated[Path | None, typer.Option(help="The release to learn from.")] = None,
    mode: Annotated[
        Literal["release", "noiseless", "noise-only", "adapters", "predictions", "alone", "pooled"],
        typer.Option(
            help="From features: release. From adapters: start there (adapters), or learn what "
            "they say of any image (predictions). The others are controls to compare with."
        ),
    ] = "release",
    split: _Split = None,
    part: Annotated[str, typer.Option(help="Part of the split that is the recipient's.")] = (
        "recipient"
    ),
    unlabelled: Annotated[
        Path | None,
        typer.Option(help="A folder of more images, whose labels are not read: predictions."),
    ] = None,
    settings: Settings,
) -> None:
    """Train a student: its own labels, and what was released."""
    from dataclasses import replace

    from canal.cli.progress import training
    from canal.errors import InvalidValueError
    from canal.release.store import open_release
    from canal.student import WITHOUT_RELEASE
    from canal.student import train as make

    opened = None if release is None or mode in WITHOUT_RELEASE else open_release(release)
    if unlabelled is not None and mode != "predictions":
        raise InvalidValueError(f"mode {mode} has no use for --unlabelled; predictions has")
    if mode == "pooled":
        if split is None:
            raise InvalidValueError("mode pooled takes everybody's images but the test's: --split")
        part = "pooled"
    arrays = load_part(data, split, part, settings.data, unlabelled=True)
    if unlabelled is not None:
        alike = replace(settings.data, channels=arrays.images.shape[1])
        more = load_part(unlabelled, None, part, alike, unlabelled=True)
        arrays = arrays.beside(more.without_labels())
    with training(f"student, {mode}", settings.training.steps) as report:
        made = make(
            *(out, init, arrays, settings.training, settings.distill),
            release=opened,
            mode=mode,
            report=report,
        )
    if opened is not None:
        warn(opened)
    typer.echo(f"{out}: student of {made.notes['images']} images, {mode}")


@student_app.command()
@with_settings("data")
def evaluate(
    *,
    student: _Student,
    data: _Data,
    split: _Split = None,
    part: Annotated[str, typer.Option(help="Part of the split to measure on.")] = "test",
    out: Annotated[
        Path | None, typer.Option(help="Where scores.csv and grid.png go; the student's folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    settings: Settings,
) -> None:
    """Measure Dice, IoU and HD95 of every image; write a table and a picture."""
    measure(student, data, split, part, out, settings, as_json=as_json)


@student_app.command()
def predict(
    *,
    student: _Student,
    images: Annotated[Path, typer.Option(help="A folder of images; no masks are needed.")],
    out: Annotated[Path, typer.Option(help="Folder for the masks.")],
) -> None:
    """Segment a folder of images: a mask for each, PNG or NIfTI."""
    from canal.cli.progress import counting
    from canal.data.readers import read
    from canal.learning import checkpoint
    from canal.learning.prediction import write_masks

    network, made = checkpoint.load(student)
    found = read(images, unlabelled=True)
    with counting("segmenting", len(found.cases)) as progress:
        written = write_masks(network, made, found.cases, out, progress)
    typer.echo(f"{out}: {len(written)} masks")
