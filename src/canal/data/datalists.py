"""Data sets that a JSON file describes: Decathlon and nnU-Net folders, and MONAI datalists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from canal.data import patients
from canal.data.case import (
    IMAGE_SUFFIXES,
    VOLUME_SUFFIXES,
    Case,
    DataSet,
    Options,
    Problem,
    folder_named,
    is_volume,
    stem,
)
from canal.errors import DataError

_CHANNEL = re.compile(r"_\d{4}$")
_LISTS = ("training", "validation", "test")


def decathlon(root: Path, _: Options) -> DataSet | None:
    """Medical Segmentation Decathlon and nnU-Net raw: `imagesTr/`, `labelsTr/`, `dataset.json`.

    2D PNG and 3D NIfTI; nnU-Net's channel files (`case_0000`, `case_0001`) belong to one case.
    Every label but the background counts as foreground. With several hospitals, each id starts
    with its folder.
    """
    places = [root] if _is_described(root) else []
    if not places and root.is_dir():
        places = sorted(
            child for child in root.iterdir() if child.is_dir() and _is_described(child)
        )
    if not places:
        return None
    cases, problems = [], []
    for place in places:
        found, wrong = _read_place(place, place.name if len(places) > 1 else "")
        cases += found
        problems += wrong
    dims = 3 if any(is_volume(case.masks[0]) for case in cases) else 2
    problems.sort(key=str)
    return DataSet("", root, tuple(sorted(cases)), tuple(problems), spatial_dims=dims)


def _is_described(place: Path) -> bool:
    return (place / "dataset.json").is_file() and all(
        folder_named(place, name) for name in ("imagesTr", "labelsTr")
    )


def _read_place(place: Path, site: str) -> tuple[list[Case], list[Problem]]:
    """The cases of one hospital, and what does not fit together."""
    prefix = f"{site}/" if site else ""
    labels = _foreground(place / "dataset.json")
    images, truths = (
        _files(folder) for name in ("imagesTr", "labelsTr") if (folder := folder_named(place, name))
    )
    by_truth = {stem(path.name): path for path in truths}
    channels: dict[str, list[Path]] = {}
    for path in images:
        name = stem(path.name)
        name = name if name in by_truth else _CHANNEL.sub("", name)
        channels.setdefault(name, []).append(path)
    records = patients.read_records(place / "metadata.csv", site)
    cases = [
        Case(
            prefix + name,
            tuple(files),
            (by_truth[name],),
            patients.by_record(prefix + name, records),
            site,
            labels,
        )
        for name, files in channels.items()
        if name in by_truth
    ]
    problems = [
        Problem(
            f"{prefix}imagesTr/{path.name}",
            "has no label",
            f"add labelsTr/{name}{path.name.removeprefix(stem(path.name))}, or take the image out",
            "missing-mask",
        )
        for name in channels.keys() - by_truth.keys()
        for path in channels[name]
    ] + [
        Problem(
            f"{prefix}labelsTr/{by_truth[name].name}",
            "is a label without an image",
            "add its image to imagesTr/, or take the label out",
            "missing-image",
        )
        for name in by_truth.keys() - channels.keys()
    ]
    usual = max((len(case.image) for case in cases), default=0)
    problems += [
        Problem(
            f"{prefix}imagesTr/{case.image[0].name}",
            f"is one of {len(case.image)} channel files, where other cases have {usual}",
            "add the missing channels",
        )
        for case in cases
        if len(case.image) < usual
    ]
    return cases, problems + patients.left_out(cases, records, {site} if records else set())


def _files(folder: Path) -> list[Path]:
    endings = (*VOLUME_SUFFIXES, *IMAGE_SUFFIXES)
    return sorted(
        path
        for path in folder.iterdir()
        if path.name.lower().endswith(endings) and not path.name.startswith(".")
    )


def _foreground(description: Path) -> tuple[int, ...]:
    """Label values above the background; MSD maps value to name, nnU-Net name to value."""
    try:
        labels = json.loads(description.read_text())["labels"]
        values = set[int]()
        for key, value in labels.items():
            for number in value if isinstance(value, list) else [value]:
                values.add(int(key) if str(key).isdigit() else int(number))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"{description} has no readable labels ({error!r}); it should map names to numbers, "
            'such as {"labels": {"background": 0, "lesion": 1}}'
        ) from error
    return tuple(sorted(values - {0}))


def datalist(root: Path, options: Options) -> DataSet | None:
    """A MONAI datalist: JSON with a list of `{"image": …, "label": …}` under `training`.

    Every entry that has a label; paths are relative to the file.
    """
    if not root.is_file() or root.suffix != ".json":
        return None
    try:
        listed = json.loads(root.read_text())
        entries = [(name, entry) for name in _LISTS for entry in listed.get(name, [])]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(
            f"{root} is no MONAI datalist ({error}); it should hold "
            '{"training": [{"image": "a.png", "label": "a_mask.png"}]}'
        ) from error
    cases, problems, seen, records = [], [], set[str](), dict[str, str]()
    needed = {"image"} if options.unlabelled else {"image", "label"}
    for number, (listing, entry) in enumerate(entries):
        where = f"{root.name}, entry {number}"
        if not isinstance(entry, dict) or not needed <= entry.keys():
            if listing != "test":  # whose truth a challenge keeps to itself
                what, remedy = "lacks image or label", "name both in the datalist"
                problems.append(Problem(where, what, remedy, "missing-mask"))
            continue
        images = _paths(root.parent, entry["image"])
        masks = _paths(root.parent, entry["label"]) if "label" in entry else ()
        missing = [path for path in (*images, *masks) if not path.is_file()]
        problems += [
            Problem(str(path), "is listed but not there", "mend the path", "missing-file")
            for path in missing
        ]
        if missing:
            continue
        name = str(entry.get("id", _name(images[0], root.parent)))
        if name in seen:
            what = f"has the same id as another, {name}, and would take its place"
            problems.append(Problem(where, what, "list every image once"))
            continue
        seen.add(name)
        if who := patients.of_entry(entry):
            records[name] = who
        labels = tuple(range(1, 256)) if is_volume(images[0]) else ()
        who = patients.by_record(name, records)
        cases.append(Case(name, images, masks, who, str(entry.get("site", "")), labels))
    strangers = sorted(case.id for case in cases if case.id not in records)
    if records and strangers:
        what = f"gives no patient for {len(strangers)} images ({strangers[0]}, …)"
        problems.append(Problem(root.name, what, "name the patient of every image, or of none"))
    dims = 3 if cases and is_volume(cases[0].image[0]) else 2
    return DataSet("", root.parent, tuple(sorted(cases)), tuple(problems), spatial_dims=dims)


def _name(image: Path, root: Path) -> str:
    inner = image.relative_to(root) if image.is_relative_to(root) else image
    return inner.with_name(stem(inner.name)).as_posix()


def _paths(root: Path, value: Any) -> tuple[Path, ...]:
    return tuple(root / str(part) for part in (value if isinstance(value, list) else [value]))
