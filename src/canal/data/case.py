"""Cases: an image, its truth and its patient; and a folder of them as it was downloaded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from canal.errors import DataError, InvalidValueError

# What a user may take knowingly (`--accept`), and what becomes of it then.
ACCEPTABLE = {
    "missing-mask": "an image without a mask is left out",
    "missing-image": "a mask without an image is left out",
    "missing-file": "an entry whose files are not there is left out",
    "missing-sequences": "every frame of a video passes for a patient",
    "mask-size": "a mask of another size than its image is stretched over it",
    "mask-values": "a mask with values that mean nothing certain is read as far as it can be",
    "blank-image": "an image of one colour is taken",
    "empty-masks": "a cohort without any foreground is taken",
}
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
VOLUME_SUFFIXES = (".nii.gz", ".nii")
_SHOWN = 3


@dataclass(frozen=True, order=True)
class Case:
    """An image, the masks that make up its truth, and the patient on it.

    Args:
        id: unique in its data set and the same on every machine: a path without suffix.
        image: one file, or one for each channel.
        masks: the union of these is the truth; none means that there is no label.
        patient: as `canal.data.patients` finds them.
        site: the folder of a hospital, where the layout has one.
        labels: voxel values that count as foreground in a label map; empty means a grey mask
            (see `canal.data.decode`).
    """

    id: str
    image: tuple[Path, ...]
    masks: tuple[Path, ...]
    patient: str
    site: str = ""
    labels: tuple[int, ...] = ()


@dataclass(frozen=True)
class Problem:
    """Something to fix before training.

    Args:
        file: which file.
        what: is wrong with it.
        remedy: what to do.
        name: by which a user may accept it, one of `ACCEPTABLE`; empty where nothing can be read
            until it is mended: which of two files is a case, whose mask is whose, or who is on an
            image, would not be what the folder means.
    """

    file: str
    what: str
    remedy: str
    name: str = ""


@dataclass(frozen=True)
class Options:
    """Choices of a user about reading a folder.

    Args:
        keep_healthy: keep cases that are known to show no lesion.
        unlabelled: keep images without a mask, which are problems otherwise.
    """

    keep_healthy: bool = True
    unlabelled: bool = False


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

    def check(self, accept: Collection[str] = ()) -> None:
        """Refuse files that do not fit the layout, unless they are accepted.

        Args:
            accept: names of what is taken as it is, of `ACCEPTABLE`.
        """
        refuse(self.problems, self.root, accept)

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


def is_volume(path: Path) -> bool:
    """Whether a file is a NIfTI volume."""
    return path.name.endswith(VOLUME_SUFFIXES)


def stem(name: str) -> str:
    """A file name without the suffix of an image or volume."""
    suffixes = (*VOLUME_SUFFIXES, *IMAGE_SUFFIXES)
    ending = next((end for end in suffixes if name.lower().endswith(end)), "")
    return name[: len(name) - len(ending)]


def folder_named(root: Path, *names: str) -> Path | None:
    """The sub-folder with one of these names, whatever their case."""
    if not root.is_dir():
        return None
    by_name = {child.name.lower(): child for child in root.iterdir() if child.is_dir()}
    return next((by_name[name.lower()] for name in names if name.lower() in by_name), None)


def check_accepted(accept: Collection[str]) -> None:
    """Refuse names of what nobody can accept."""
    for name in accept:
        if name not in ACCEPTABLE:
            raise InvalidValueError(
                f"accept = {name!r} is nothing that `canal data check` finds; choose of "
                f"{', '.join(ACCEPTABLE)}"
            )


def refuse(problems: Sequence[Problem], root: Path, accept: Collection[str] = ()) -> None:
    """Refuse data with problems that nobody accepted: the first files of each kind, and how many.

    Args:
        problems: that were found.
        root: the folder.
        accept: names of what is taken as it is, of `ACCEPTABLE`.
    """
    check_accepted(accept)
    kinds: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        if problem.name not in accept:
            # What must be mended is no kind of its own: each has a reason of its own.
            kind = (problem.name, "" if problem.name else problem.remedy)
            kinds.setdefault(kind, []).append(problem)
    sentences = []
    for (name, _), found in sorted(kinds.items()):
        first, others = found[0], [problem.file for problem in found[1:_SHOWN]]
        more = ", ".join([*others, "…"] if len(found) > _SHOWN else others)
        several = f" (and so {len(found) - 1} more: {more})" if more else ""
        way = f", or take it with --accept {name}: {ACCEPTABLE[name]}" if name else ""
        sentences.append(f"{first.file} {first.what}{several}; {first.remedy}{way}")
    if sentences:
        raise DataError(f"{root}: {'. '.join(sentences)}")
