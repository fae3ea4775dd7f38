"""Checks every file of a data set before anyone trains on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canal.data.case import Case, DataSet, Problem, is_volume
from canal.data.decode import GREY_TOLERANCE, WHITE, Inspection, decode
from canal.data.duplicates import THRESHOLD, groups_of, similar_pairs, thumbnail
from canal.errors import DataError


@dataclass(frozen=True)
class Check:
    """The findings of a look at every file of a data set.

    Args:
        layout: what was recognised.
        cases: how many have an image and a mask.
        groups: patients or sequences, where records name them; else as many as cases.
        sites: cases by hospital folder.
        sizes: how many images have which size, most frequent first.
        channels: how many images are grey, and how many in colour.
        empty_masks: ids of cases without foreground.
        near_duplicates: groups of near-identical images, which a split keeps together.
        problems: what is to be fixed.
    """

    layout: str
    cases: int
    groups: int
    sites: dict[str, int]
    sizes: dict[str, int]
    channels: dict[str, int]
    empty_masks: tuple[str, ...]
    near_duplicates: tuple[tuple[str, ...], ...]
    problems: tuple[Problem, ...]

    def to_json(self) -> dict[str, Any]:
        """Values that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True)
class _Readable:
    """A case whose files could be decoded."""

    case: Case
    inspection: Inspection
    grey: bool
    thumbnail: NDArray[np.float32]


def check(data: DataSet, *, progress: Callable[[int], None] = lambda _: None) -> Check:
    """Decode every image and mask of a data set and report.

    Args:
        data: as listed by `canal.data.readers.read`.
        progress: called with 1 for every case.
    """
    good, problems = [], list(data.problems)
    with ThreadPoolExecutor() as pool:
        for found in pool.map(lambda case: _read(case, data.root), data.cases):
            progress(1)
            if isinstance(found, Problem):
                problems.append(found)
            else:
                good.append(found)
    cases, inspections = [each.case for each in good], [each.inspection for each in good]
    problems += problems_of(cases, inspections, data.root)
    if not data.cases:
        what, remedy = "holds no case with image and mask", "check the download"
        problems.append(Problem(str(data.root), what, remedy))
    thumbnails = np.array([each.thumbnail for each in good])
    pairs = similar_pairs(thumbnails, THRESHOLD) if good else []
    sizes = Counter(" x ".join(map(str, each.size)) for each in inspections)
    return Check(
        layout=data.layout,
        cases=len(data.cases),
        groups=len({case.patient for case in data.cases}),
        sites=dict(Counter(case.site for case in data.cases if case.site)),
        sizes=dict(sizes.most_common()),
        channels=dict(Counter("grey" if each.grey else "colour" for each in good)),
        empty_masks=tuple(each.case.id for each in good if each.inspection.empty),
        near_duplicates=tuple(groups_of(pairs, [case.id for case in cases])),
        problems=tuple(problems),
    )


def _read(case: Case, root: Path) -> _Readable | Problem:
    try:
        image, _, inspection = decode(case, size=None, channels=3)
        small = thumbnail(case)
    except DataError as error:
        return unreadable(case, root, str(error))
    # Every channel of a volume is grey.
    tinge = 0 if is_volume(case.image[0]) else np.ptp(image[:3].astype(np.int16), axis=0).max()
    return _Readable(case, inspection, bool(tinge <= GREY_TOLERANCE), small)


def problems_of(
    cases: Sequence[Case], inspections: Sequence[Inspection], root: Path
) -> list[Problem]:
    """Find problems to fix before anything is learned from these cases.

    Args:
        cases: that were decoded.
        inspections: one for each.
        root: the folder.
    """
    found = []
    for case, one in zip(cases, inspections, strict=True):
        files = (*case.image, *case.masks)
        for flaw in one.flaws:
            file = relative(files[flaw.file], root)
            found.append(Problem(file, flaw.what, flaw.remedy, flaw.name))
    if any(one.white for one in inspections):
        for case, one in zip(cases, inspections, strict=True):
            if one.dark:
                file = relative(case.masks[0], root)
                above = f"holds no value above {one.dark}"
                what = f"{above}, where other masks of this data set are white"
                found.append(Problem(file, what, WHITE, "mask-values"))
    truths = sum(bool(case.masks) for case in cases)
    if truths and sum(one.empty for one in inspections) == truths:
        what = f"holds {truths} masks, and none has any foreground"
        found.append(Problem(str(root), what, f"look at one of them; {WHITE}", "empty-masks"))
    return found


def unreadable(case: Case, root: Path, message: str) -> Problem:
    """The problem of a case that cannot be decoded; names the file, where the message does."""
    what, _, remedy = message.rpartition("; ")
    for path in (*case.image, *case.masks):
        if what.startswith(f"{path} "):
            return Problem(relative(path, root), what.removeprefix(f"{path} "), remedy)
    return Problem(case.id, what, remedy)


def relative(path: Path, root: Path) -> str:
    """The name of a file below the folder of its data set."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
