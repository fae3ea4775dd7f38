"""One image and its truth, and a folder of them as it was downloaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from canal.errors import DataError


@dataclass(frozen=True, order=True)
class Case:
    """An image, the masks that make up its truth, and who must stay together with it.

    Args:
        id: unique in its data set and the same on every machine: a path without suffix.
        image: one file, or one for each channel.
        masks: the union of these is the truth; none means that there is no label.
        group: patient or video sequence; cases of one group never part in a split.
        site: the folder of a hospital, where the layout has one.
        labels: voxel values that count as foreground in a label map; empty means a grey mask,
            thresholded at 128.
    """

    id: str
    image: tuple[Path, ...]
    masks: tuple[Path, ...]
    group: str
    site: str = ""
    labels: tuple[int, ...] = ()


@dataclass(frozen=True)
class Problem:
    """Something to fix before training.

    Args:
        file: which file.
        what: is wrong with it.
        remedy: what to do.
        blocks: nothing can be read until it is mended: which of two files is a case, whose mask
            is whose, or who is on an image, would not be what the folder means.
    """

    file: str
    what: str
    remedy: str
    blocks: bool = False


@dataclass(frozen=True)
class DataSet:
    """Cases in the layout of one official download.

    Args:
        layout: what was recognised.
        root: the folder.
        cases: sorted by id.
        problems: files that do not fit the layout.
        spatial_dims: 2 for images, 3 for volumes.
    """

    layout: str
    root: Path
    cases: tuple[Case, ...]
    problems: tuple[Problem, ...] = field(default=())
    spatial_dims: int = 2

    def check(self) -> None:
        """Refuse a folder in which one person could pass for another, or for several."""
        for problem in self.problems:
            if problem.blocks:
                raise DataError(f"{self.root}: {problem.file} {problem.what}; {problem.remedy}")

    def select(self, ids: list[str] | tuple[str, ...]) -> tuple[Case, ...]:
        """The cases with these ids, in this order."""
        by_id = {case.id: case for case in self.cases}
        missing = [name for name in ids if name not in by_id]
        if missing:
            raise DataError(
                f"{missing[0]} is not among the {len(by_id)} cases of {self.root}; "
                "give the folder that the ids were listed from"
            )
        return tuple(by_id[name] for name in ids)
