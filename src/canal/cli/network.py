"""What commands on networks have in common: images of a part, and how good a network is on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from canal.data.case import ACCEPTABLE
from canal.learning.settings import DataSettings, Settings

if TYPE_CHECKING:
    from canal.data.arrays import Arrays

KeepHealthy = Annotated[
    bool,
    typer.Option(
        "--keep-healthy/--no-keep-healthy", help="Keep cases that are known to show no lesion."
    ),
]
Accept = Annotated[
    list[str] | None,
    typer.Option(
        help="Take what `canal data check` finds under this name: " + ", ".join(ACCEPTABLE) + ".",
        show_default=False,
    ),
]
# Below this share of its size a bottleneck that varies over images does not vary.
FLAT = 0.1


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

    from canal.learning import checkpoint, evaluation
    from canal.learning.networks import Tap, variation
    from canal.learning.prediction import predict, sample

    network, made = checkpoint.load(folder)
    # The network knows what it was made for.
    known = replace(settings.data, size=made.size[0], channels=made.architecture["in_channels"])
    arrays = load_part(data, split, part, known)
    predicted = predict(network, arrays)
    found = evaluation.scores(predicted, arrays)
    out = folder if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    evaluation.write_csv(out / "scores.csv", found)
    evaluation.write_grid(out / "grid.png", arrays, predicted, found)
    summary = evaluation.summary(found)
    features = Tap(network, made.tap).features(sample(arrays))
    summary["bottleneck_variation"] = varies = variation(features)
    if varies < FLAT and len(features) > 1 and made.notes.get("role") == "teacher":
        typer.echo(
            f"{folder}: the bottleneck says nearly the same about every image (it varies by "
            f"{100 * varies:.1f} % of its size), so a release of it has nothing to tell; train "
            "with larger images, or with a lower --learning-rate",
            err=True,
        )
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
            keep_healthy=settings.keep_healthy,
            unlabelled=unlabelled,
            accept=settings.accept,
            progress=progress,
        )


def refuse_cohorts(split: Path, part: str) -> None:
    """What is asked about, or public, must not be what a hospital trained on."""
    from canal.data.split import Split
    from canal.errors import InvalidValueError

    parts = Split.read(split)
    private = {name for ids in parts.cohorts.values() for name in ids}
    if not private.isdisjoint(parts.part(part)):
        raise InvalidValueError(
            f"part {part!r} holds images that a hospital trains on; give the recipient's own"
        )


def refuse_overlap(public: Path, private: Path, flag: str) -> None:
    """Refuse a folder of public images inside one that may hold a cohort's, or around it."""
    from canal.errors import InvalidValueError

    ours, theirs = public.resolve(), private.resolve()
    if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
        raise InvalidValueError(
            f"{public} and {private} have images in common, and they may be a cohort's; give "
            f"{flag} a folder of its own, of public images"
        )
