"""A folder as arrays: read, select a part, decode once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from canal.data import cache
from canal.data.cache import Arrays
from canal.data.readers import read
from canal.data.split import Split


def load(
    path: Path | str,
    *,
    size: int = 64,
    split: Path | str | None = None,
    part: str = "recipient",
    channels: int | None = None,
    normal: bool = True,
    unlabelled: bool = False,
    accept: Collection[str] = (),
    progress: Callable[[int], None] = lambda count: None,
) -> Arrays:
    """Read a data set, or one part of it, in any layout that we know; refuse what is to be fixed.

    All that `canal data check` finds is found here too, so nobody learns from, or pays for, data
    that are not what they seem.

    Args:
        path: the folder, as it was downloaded.
        size: pixels a side.
        split: file of a split; None for all cases.
        part: of the split: `test`, `recipient`, `pooled` (all but the test), or a cohort.
        channels: 3 or 1; found out from the images if not given.
        normal: keep cases that are known to show no lesion.
        unlabelled: take images without a mask too.
        accept: names of findings that are taken as they are, of `canal.data.case.ACCEPTABLE`.
        progress: called with 1 for every case that had to be decoded.
    """
    data = read(Path(path), normal=normal, unlabelled=unlabelled)
    data.check(accept)
    cases = data.cases
    if split is not None:
        parts = Split.read(Path(split))
        parts.check_groups(data.cases)
        cases = data.select(parts.part(part))
    # Found out from the whole, so that all parts of a data set agree.
    channels = cache.count_channels(data.cases) if channels is None else channels
    return cache.load(
        cases,
        size=(size,) * data.spatial_dims,
        channels=channels,
        root=data.root,
        accept=accept,
        progress=progress,
    )
