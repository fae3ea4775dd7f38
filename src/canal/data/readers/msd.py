"""Medical Segmentation Decathlon and nnU-Net raw: `imagesTr/`, `labelsTr/`, `dataset.json`.

2D PNG and 3D NIfTI; nnU-Net's channel files (`case_0000`, `case_0001`) belong to one case. Every
label but the background counts as foreground.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from canal.data.case import Case, DataSet, Problem
from canal.data.readers.listing import (
    IMAGE_SUFFIXES,
    VOLUME_SUFFIXES,
    folder_named,
    groups_from_csv,
    stem,
    ungrouped,
)
from canal.data.readers.options import Options
from canal.errors import DataError

LAYOUT = "MSD / nnU-Net raw"
_FOLDERS = ("imagesTr", "labelsTr")
_CHANNEL = re.compile(r"_\d{4}$")


def recognises(root: Path) -> bool:
    """Whether training images, labels and their description are here, or in several folders."""
    return bool(_places(root))


def read(root: Path, options: Options) -> DataSet:  # noqa: ARG001
    """List the training cases; with several hospitals, each id starts with its folder."""
    places = _places(root)
    cases, problems = [], []
    for place in places:
        found, wrong = _read_one(place, place.name if len(places) > 1 else "")
        cases += found
        problems += wrong
    volumes = any(case.masks[0].name.endswith(VOLUME_SUFFIXES) for case in cases)
    return DataSet(
        LAYOUT,
        root,
        tuple(sorted(cases)),
        tuple(sorted(problems, key=str)),
        spatial_dims=3 if volumes else 2,
    )


def _places(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    if _described(root):
        return [root]
    return sorted(child for child in root.iterdir() if child.is_dir() and _described(child))


def _described(place: Path) -> bool:
    folders = [folder_named(place, name) for name in _FOLDERS]
    return None not in folders and (place / "dataset.json").is_file()


def _read_one(place: Path, site: str) -> tuple[list[Case], list[Problem]]:
    prefix = f"{site}/" if site else ""
    labels = _foreground(place / "dataset.json")
    images, truths = (
        _files(folder) for name in _FOLDERS if (folder := folder_named(place, name)) is not None
    )
    by_truth = {stem(path.name): path for path in truths}
    channels: dict[str, list[Path]] = {}
    for path in images:
        name = stem(path.name)
        name = name if name in by_truth else _CHANNEL.sub("", name)
        channels.setdefault(name, []).append(path)
    own = groups_from_csv(place / "metadata.csv")
    groups = {prefix + name: f"{site} {who}".strip() for name, who in own.items()}
    cases = [
        Case(
            prefix + name,
            tuple(files),
            (by_truth[name],),
            groups.get(prefix + name, prefix + name),
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
    return cases, problems + ungrouped(cases, groups, {site} if groups else set())


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
