"""What commands on networks have in common: images of a part, and how good a network is on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from canal.teachers.settings import DataSettings, Settings

if TYPE_CHECKING:
    from canal.data.cache import Arrays


def measure(
    folder: Path,
    data: Path,
    split: Path | None,
    part: str,
    out: Path | None,
    settings: Settings,
    *,
    as_json: bool,
) -> None:
    """Measure a network, write `scores.csv` and `grid.png`, print the summary."""
    from dataclasses import replace

    from canal.models import checkpoint
    from canal.teachers import evaluate

    network, made = checkpoint.load(folder)
    # The network knows what it was made for.
    known = replace(settings.data, size=made.size[0], channels=made.architecture["in_channels"])
    arrays = load_part(data, split, part, known)
    predicted = evaluate.predict(network, arrays)
    found = evaluate.scores(predicted, arrays)
    out = folder if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    evaluate.write_csv(out / "scores.csv", found)
    evaluate.write_grid(out / "grid.png", arrays, predicted, found)
    summary = evaluate.summary(found)
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


def load_part(
    path: Path,
    split: Path | None,
    part: str,
    settings: DataSettings,
    *,
    unlabelled: bool = False,
) -> Arrays:
    """Decode a data set, or one part of it."""
    from canal.cli.progress import counting
    from canal.data.load import load

    with counting("decoding", None) as progress:
        return load(
            path,
            size=settings.size,
            split=split,
            part=part,
            channels=settings.channels or None,
            normal=settings.normal,
            unlabelled=unlabelled,
            progress=progress,
        )
