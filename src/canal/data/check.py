"""A look at every file before anyone trains on it: what is there, and what is to be fixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from canal.data.case import Case, DataSet, Problem
from canal.data.decode import (
    GREY_TOLERANCE,
    MASK_THRESHOLD,
    decode_image,
    decode_mask,
    is_volume,
    open_picture,
)
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


@dataclass(frozen=True)
class _Look:
    size: tuple[int, ...] = ()
    grey: bool = False
    empty: bool = False
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
        (case, look)
        for case, look in zip(data.cases, looks, strict=True)
        if look.thumbnail is not None
    ]
    duplicates: list[tuple[str, ...]] = []
    if good:
        rows = np.array([look.thumbnail for _, look in good])
        duplicates = groups_of(similar_pairs(rows, THRESHOLD), [case.id for case, _ in good])
    sizes = Counter(" x ".join(map(str, look.size)) for _, look in good)
    problems = list(data.problems) + [look.problem for look in looks if look.problem]
    if not data.cases:
        problems.append(
            Problem(str(data.root), "holds no case with image and mask", "check the download")
        )
    return Check(
        layout=data.layout,
        cases=len(data.cases),
        groups=len({case.group for case in data.cases}),
        sites=dict(Counter(case.site for case in data.cases if case.site)),
        sizes=dict(sizes.most_common()),
        channels=dict(Counter("grey" if look.grey else "colour" for _, look in good)),
        empty_masks=tuple(case.id for case, look in good if look.empty),
        near_duplicates=tuple(duplicates),
        problems=tuple(problems),
    )


def _look(case: Case, root: Path) -> _Look:
    try:
        image = decode_image(case, size=None, channels=3)
        mask = decode_mask(case, size=None)
        small = thumbnail(case)
    except DataError as error:
        return _Look(problem=_unreadable(case, root, str(error)))
    size = image.shape[1:]
    problem = None
    if mask.shape[1:] != size:
        problem = Problem(
            _relative(case.masks[0], root),
            f"has size {mask.shape[1:]}, its image {size}",
            "export the mask at the size of its image",
        )
    elif image.min() == image.max():
        problem = Problem(
            _relative(case.image[0], root),
            "is an image of one colour",
            "replace the file or take it out",
        )
    elif not mask.any() and (dark := _brightest(case)):
        problem = Problem(
            _relative(case.masks[0], root),
            f"holds no value above {dark}, and counts as empty below {MASK_THRESHOLD}",
            "save masks as 0 and 255",
        )
    grey = is_volume(case.image[0]) or bool(
        np.ptp(image[:3].astype(np.int16), axis=0).max() <= GREY_TOLERANCE
    )
    return _Look(size, grey, not mask.any(), small, problem)


def _brightest(case: Case) -> int:
    """The highest grey in masks drawn by value; a JPEG has grey where there is nothing."""
    drawn = [path for path in case.masks if path.suffix.lower() not in (".jpg", ".jpeg")]
    if case.labels or not drawn:
        return 0
    return max(int(np.asarray(open_picture(path).convert("L")).max()) for path in drawn)


def _unreadable(case: Case, root: Path, message: str) -> Problem:
    """The file first: a case may have several, and only one of them is broken."""
    what, _, remedy = message.rpartition("; ")
    for path in (*case.image, *case.masks):
        if what.startswith(f"{path} "):
            return Problem(_relative(path, root), what.removeprefix(f"{path} "), remedy)
    return Problem(case.id, what, remedy)


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
