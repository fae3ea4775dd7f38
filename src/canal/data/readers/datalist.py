"""A MONAI datalist: JSON with a list of `{"image": …, "label": …}` under `training`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from canal.data.case import Case, DataSet, Problem
from canal.data.readers.listing import VOLUME_SUFFIXES, group_named, stem
from canal.data.readers.options import Options
from canal.errors import DataError

LAYOUT = "MONAI datalist"
_LISTS = ("training", "validation", "test")


def recognises(root: Path) -> bool:
    """Whether this is a JSON file."""
    return root.is_file() and root.suffix == ".json"


def read(root: Path, options: Options) -> DataSet:
    """List every entry that has a label; paths are relative to the file."""
    try:
        listed = json.loads(root.read_text())
        entries = [(name, entry) for name in _LISTS for entry in listed.get(name, [])]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(
            f"{root} is no MONAI datalist ({error}); it should hold "
            '{"training": [{"image": "a.png", "label": "a_mask.png"}]}'
        ) from error
    cases, problems, seen, known = [], [], set[str](), set[str]()
    for number, (listing, entry) in enumerate(entries):
        needed = {"image"} if options.unlabelled else {"image", "label"}
        if not isinstance(entry, dict) or not needed <= entry.keys():
            if listing != "test":  # whose truth a challenge keeps to itself
                problems.append(
                    Problem(
                        f"{root.name}, entry {number}",
                        "lacks image or label",
                        "name both in the datalist",
                        "missing-mask",
                    )
                )
            continue
        images = _paths(root.parent, entry["image"])
        masks = _paths(root.parent, entry["label"]) if "label" in entry else ()
        missing = [path for path in (*images, *masks) if not path.is_file()]
        problems += [
            Problem(str(path), "is listed but not there", "mend the path", "missing-file")
            for path in missing
        ]
        if not missing:
            name = str(entry.get("id", _name(images[0], root.parent)))
            if name in seen:
                problems.append(
                    Problem(
                        f"{root.name}, entry {number}",
                        f"has the same id as another, {name}, and would take its place",
                        "list every image once",
                    )
                )
                continue
            seen.add(name)
            who = _whose(entry)
            known |= {name} if who else set()
            # No image has such a name, so none of nobody known passes for somebody's.
            group = f"patient {who}" if who else name
            volume = images[0].name.endswith(VOLUME_SUFFIXES)
            labels = tuple(range(1, 256)) if volume else ()
            cases.append(Case(name, images, masks, group, str(entry.get("site", "")), labels))
    strangers = sorted(case.id for case in cases if case.id not in known)
    if known and strangers:
        problems.append(
            Problem(
                root.name,
                f"gives no patient for {len(strangers)} images ({strangers[0]}, …)",
                "name the patient of every image, or of none",
            )
        )
    volumes = bool(cases) and cases[0].image[0].name.endswith(VOLUME_SUFFIXES)
    return DataSet(
        LAYOUT,
        root.parent,
        tuple(sorted(cases)),
        tuple(problems),
        spatial_dims=3 if volumes else 2,
    )


def _whose(entry: dict[str, Any]) -> str:
    """The patient of an entry; nothing where none is named."""
    named = [key for key, value in entry.items() if value is not None and str(value).strip()]
    kind, at = group_named(named)
    return str(entry[named[at]]).strip() if kind else ""


def _name(image: Path, root: Path) -> str:
    inner = image.relative_to(root) if image.is_relative_to(root) else image
    return inner.with_name(stem(inner.name)).as_posix()


def _paths(root: Path, value: Any) -> tuple[Path, ...]:
    return tuple(root / str(part) for part in (value if isinstance(value, list) else [value]))
