"""CVC-ClinicDB: `Original/` beside `Ground Truth/`, and `metadata.csv` from frame to sequence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from canal.data.case import DataSet, Problem
from canal.data.readers.listing import folder_named, groups_from_csv, images_in, pair_up
from canal.data.readers.options import Options

LAYOUT = "CVC-ClinicDB"
_NO_SEQUENCES = Problem(
    "metadata.csv",
    "is not there or names no sequences, so that frames of one video would be torn apart",
    "add it with the columns frame_id and sequence_id",
    "missing-sequences",
)


def recognises(root: Path) -> bool:
    """Whether frames and their truth are here, as PNG, TIF or at the top."""
    return _folders(root) is not None


def read(root: Path, options: Options) -> DataSet:
    """List every frame, grouped by video sequence."""
    folders = _folders(root)
    assert folders is not None  # noqa: S101  # recognises() came first
    # Someone may point to `PNG/` itself, beside which the sequences are.
    listed = next((p for p in (root, root.parent) if (p / "metadata.csv").is_file()), root)
    groups = groups_from_csv(listed / "metadata.csv")
    data = pair_up(
        LAYOUT,
        root,
        images_in(folders[0]),
        images_in(folders[1]),
        image_id=lambda path: path.stem,
        mask_id=lambda path: path.stem,
        groups=groups,
        unlabelled=options.unlabelled,
    )
    return data if groups else replace(data, problems=(*data.problems, _NO_SEQUENCES))


def _folders(root: Path) -> tuple[Path, Path] | None:
    for place in (folder_named(root, "PNG"), folder_named(root, "TIF"), root):
        if place is not None:
            original, truth = folder_named(place, "Original"), folder_named(place, "Ground Truth")
            if original and truth:
                return original, truth
    return None
