"""A look at every file before anyone trains on it: what is there, and what is to be fixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from canal.data.case import Case, DataSet, Problem, is_volume
from canal.data.decode import GREY_TOLERANCE, WHITE, Seen, decode
from canal.data.duplicates import THRESHOLD, groups_of, similar_pairs, thumbnail
from canal.errors import DataError


@dataclass(frozen=True)
class Check:
    """What was found in a data set.

    Args:
        layout: what was recognised.
        cases: how many have an image and a mask.
        groups: patients or sequences, where the layout names them; else as many as cases.
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
        """As plain values."""
        return asdict(self)


def problems_of(cases: Sequence[Case], seen: Sequence[Seen], root: Path) -> list[Problem]:
    """What is to be fixed before anything is learned from these cases.

    Args:
        cases: that were decoded.
        seen: of each.
        root: the folder.
    """
    found = [
        Problem(
            relative((*case.image, *case.masks)[flaw.file], root),
            flaw.what,
            flaw.remedy,
            flaw.name,
        )
        for case, one in zip(cases, seen, strict=True)
        for flaw in one.flaws
    ]
    if any(one.white for one in seen):
        found += [
            Problem(
                relative(case.masks[0], root),
                f"holds no value above {one.dark}, where other masks of this data set are white",
                WHITE,
                "mask-values",
            )
            for case, one in zip(cases, seen, strict=True)
            if one.dark
        ]
    truths = sum(bool(case.masks) for case in cases)
    if truths and sum(one.empty for one in seen) == truths:
        found.append(
            Problem(
                str(root),
                f"holds {truths} masks, and none has any foreground",
                f"look at one of them; {WHITE}",
                "empty-masks",
            )
        )
    return found


def unreadable(case: Case, root: Path, message: str) -> Problem:
    """The file first: a case may have several, and only one of them is broken."""
    what, _, remedy = message.rpartition("; ")
    for path in (*case.image, *case.masks):
        if what.startswith(f"{path} "):
            return Problem(relative(path, root), what.removeprefix(f"{path} "), remedy)
    return Problem(case.id, what, remedy)


def relative(path: Path, root: Path) -> str:
    """A file as it is called in its folder."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


@dataclass(frozen=True)
class _Look:
    grey: bool = False
    seen: Seen | None = None
    thumbnail: np.ndarray | None = None
    problem: Problem | None = None


def check(data: DataSet, *, progress: Callable[[int], None] = lambda _: None) -> Check:
    """Decode every image and mask of a data set and report.

    Args:
        data: as listed by `canal.data.readers.read`.
        progress: called with 1 for every case.
    """
    looks = []
    with ThreadPoolExecutor() as pool:
        for look in pool.map(partial(_look, root=data.root), data.cases):
            looks.append(look)
            progress(1)
    good = [
        (case, look, look.seen)
        for case, look in zip(data.cases, looks, strict=True)
        if look.seen is not None
    ]
    duplicates: list[tuple[str, ...]] = []
    if good:
        rows = np.array([look.thumbnail for _, look, _ in good])
        duplicates = groups_of(similar_pairs(rows, THRESHOLD), [case.id for case, _, _ in good])
    sizes = Counter(" x ".join(map(str, seen.size)) for _, _, seen in good)
    problems = list(data.problems) + [look.problem for look in looks if look.problem]
    problems += problems_of([c for c, _, _ in good], [seen for _, _, seen in good], data.root)
    if not data.cases:
        problems.append(
            Problem(str(data.root), "holds no case with image and mask", "check the download")
        )
    return Check(
        layout=data.layout,
        cases=len(data.cases),
        groups=len({case.patient for case in data.cases}),
        sites=dict(Counter(case.site for case in data.cases if case.site)),
        sizes=dict(sizes.most_common()),
        channels=dict(Counter("grey" if look.grey else "colour" for _, look, _ in good)),
        empty_masks=tuple(case.id for case, _, seen in good if seen.empty),
        near_duplicates=tuple(duplicates),
        problems=tuple(problems),
    )


def _look(case: Case, root: Path) -> _Look:
    try:
        image, _, seen = decode(case, size=None, channels=3)
        small = thumbnail(case)
    except DataError as error:
        return _Look(problem=unreadable(case, root, str(error)))
    grey = is_volume(case.image[0]) or bool(
        np.ptp(image[:3].astype(np.int16), axis=0).max() <= GREY_TOLERANCE
    )
    return _Look(grey, seen, small)
