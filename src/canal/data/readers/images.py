"""A folder of images and nothing else: queries without labels, or pictures to segment."""

from __future__ import annotations

from pathlib import Path

from canal.data.case import Case, DataSet
from canal.data.readers.listing import (
    VOLUME_SUFFIXES,
    groups_from_csv,
    images_in,
    stem,
    ungrouped,
)
from canal.data.readers.options import Options

LAYOUT = "images alone"


def recognises(root: Path) -> bool:
    """Whether there is any image below the folder."""
    return root.is_dir() and bool(_files(root))


def read(root: Path, options: Options) -> DataSet:  # noqa: ARG001
    """List every image, without a label."""
    groups = groups_from_csv(root / "metadata.csv")
    cases = []
    for path in _files(root):
        where = path.relative_to(root)
        name = (where.parent / stem(path.name)).as_posix()
        cases.append(Case(name, (path,), (), groups.get(name, name)))
    volumes = any(path.name.endswith(VOLUME_SUFFIXES) for path in _files(root))
    problems = ungrouped(cases, groups, {""} if groups else set())
    dims = 3 if volumes else 2
    return DataSet(LAYOUT, root, tuple(sorted(cases)), tuple(problems), spatial_dims=dims)


def _files(root: Path) -> list[Path]:
    volumes = sorted(path for path in root.rglob("*") if path.name.endswith(VOLUME_SUFFIXES))
    return volumes or images_in(root)
