"""ISIC 2018 Task 1: `…_Input/ISIC_*.jpg` beside `…_GroundTruth/ISIC_*_segmentation.png`."""

from __future__ import annotations

from pathlib import Path

from canal.data.case import DataSet
from canal.data.readers.listing import images_in, pair_up
from canal.data.readers.options import Options

LAYOUT = "ISIC 2018 Task 1"


def recognises(root: Path) -> bool:
    """Whether an input and a ground-truth folder of the challenge are here."""
    return bool(_folders(root, "_Input")) and bool(_folders(root, "_GroundTruth"))


def read(root: Path, options: Options) -> DataSet:
    """List every lesion; training, validation and test folders alike."""
    inputs, truths = _folders(root, "_Input"), _folders(root, "_GroundTruth")
    return pair_up(
        LAYOUT,
        root,
        [path for folder in inputs for path in images_in(folder)],
        [path for folder in truths for path in images_in(folder)],
        image_id=lambda path: path.stem,
        mask_id=lambda path: path.stem.removesuffix("_segmentation"),
        unlabelled=options.unlabelled,
    )


def _folders(root: Path, suffix: str) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(
        child
        for child in root.iterdir()
        if child.is_dir() and child.name.startswith("ISIC") and child.name.endswith(suffix)
    )
