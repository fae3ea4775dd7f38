"""Looking through folders: images, the files that pair with them, and groups from a CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from canal.data.case import Case, DataSet, Problem
from canal.errors import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
VOLUME_SUFFIXES = (".nii.gz", ".nii")
# The widest first: who knows the patient need not know the lesion.
_GROUPS = ("patient", "subject", "sequence", "group", "case", "lesion")


def images_in(folder: Path) -> list[Path]:
    """Every image below a folder, in order of name."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
    )


def folder_named(root: Path, *names: str) -> Path | None:
    """The sub-folder with one of these names, whatever their case."""
    if not root.is_dir():
        return None
    by_name = {child.name.lower(): child for child in root.iterdir() if child.is_dir()}
    return next((by_name[name.lower()] for name in names if name.lower() in by_name), None)


def stem(name: str) -> str:
    """A file name without the suffix of an image or volume."""
    suffixes = (*VOLUME_SUFFIXES, *IMAGE_SUFFIXES)
    ending = next((end for end in suffixes if name.lower().endswith(end)), "")
    return name[: len(name) - len(ending)]


def group_named(names: Sequence[str]) -> tuple[str, int]:
    """Which of some names says whose an image is, and where it stands; "" and 0 if none does.

    In full, not by how it starts: `patient_age` is nobody's name.

    >>> group_named(["patient_age", "lesion_id", "PatientID"])
    ('patient', 2)
    """
    known = [name.strip().lower().removesuffix("id").rstrip("_ ") for name in names]
    return next(((kind, known.index(kind)) for kind in _GROUPS if kind in known), ("", 0))


def groups_from_csv(path: Path) -> dict[str, str]:
    """Image id to patient or sequence, from the first column and the one that names a group."""
    if not path.is_file():
        return {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}; save it as a CSV in UTF-8") from error
    header = rows[0] if rows else []
    kind, column = group_named(header[1:])
    if not kind:
        # Every image would pass for a patient of its own, and whoever has several pay too little.
        raise DataError(
            f"{path} does not say whose each image is: its columns are {', '.join(header)!r}; "
            "separate columns by commas, have the image in the first, and behind it one named "
            f"{' or '.join(_GROUPS)}, or take the file away if nobody has two images"
        )
    column += 1
    return {
        stem(row[0].strip()): f"{kind} {row[column].strip()}"
        for row in rows[1:]
        if len(row) > column and row[0].strip() and row[column].strip()
    }


def ungrouped(cases: Iterable[Case], groups: dict[str, str], sites: set[str]) -> list[Problem]:
    """One problem where `metadata.csv` leaves images of these hospitals out.

    Such an image would pass for a patient of its own, and could land on the other side of a split
    from the rest of its patient.
    """
    cases = list(cases)
    strangers = bool(groups) and not any(case.id in groups for case in cases)
    left_out = [
        case.id for case in cases if strangers or (case.site in sites and case.id not in groups)
    ]
    if not left_out:
        return []
    return [
        Problem(
            "metadata.csv",
            f"gives no patient or sequence for {len(left_out)} images ({left_out[0]}, …)",
            "add their rows, with the name of the image in the first column",
        )
    ]


def pair_up(
    layout: str,
    root: Path,
    images: Iterable[Path],
    masks: Iterable[Path],
    *,
    image_id: Callable[[Path], str],
    mask_id: Callable[[Path], str],
    groups: dict[str, str] | None = None,
    site: Callable[[str], str] = lambda _: "",
    unlabelled: bool = False,
) -> DataSet:
    """Match images with masks by id; whatever is left over on either side is a problem.

    Unless it is an image without a mask, and those are wanted.
    """
    groups = groups or {}
    by_id: dict[str, list[Path]] = {}
    for path in masks:
        by_id.setdefault(mask_id(path), []).append(path)
    cases, problems, seen = [], [], dict[str, Path]()
    for path in images:
        name = image_id(path)
        where = path.relative_to(root).as_posix()
        if name in seen:
            twin = seen[name].relative_to(root).as_posix()
            what = f"has the same id as {twin}, and would take its place"
            problems.append(Problem(where, what, "remove one of the two"))
            continue
        seen[name] = path
        if name not in by_id and not unlabelled:
            problems.append(
                Problem(
                    where,
                    "has no mask",
                    "add the mask, or take the image out of the folder",
                    "missing-mask",
                )
            )
            continue
        cases.append(
            Case(name, (path,), tuple(by_id.get(name, ())), groups.get(name, name), site(name))
        )
    problems += ungrouped(cases, groups, {site(name) for name in groups})
    for name in by_id.keys() - seen.keys():
        problems += [
            Problem(
                path.relative_to(root).as_posix(),
                "is a mask without an image",
                "add the image, or take the mask out of the folder",
                "missing-image",
            )
            for path in by_id[name]
        ]
    return DataSet(layout, root, tuple(sorted(cases)), tuple(sorted(problems, key=str)))
