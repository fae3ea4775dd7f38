"""Finds the patient on every image: the unit of guarantees, of splits and of intervals.

A patient is found by the record of an image, here and nowhere else:

=====================================================================  =========================
what the data say of an image                                          its patient
=====================================================================  =========================
`patient` or `subject`, in `metadata.csv` or in a datalist             the one they name
`sequence`, `group`, `case` or `lesion`, where they know nothing wider  the one they name
the same, in one of several hospitals' folders                         that one of that hospital
nothing, as of all other images                                        the image itself
nothing, but something of other images                                 refused until it is added
=====================================================================  =========================

Two images that look the same may show one person under two names. There are two partitions:

===============  ==============================  ===============================================
                 two images belong together if   used for
===============  ==============================  ===============================================
`rows`           their records name one patient  sums and counts over patients (gradient rounds,
                                                 statistics), the images of a person in a plan
`joined`         that, or they look the same,    splits, what a ledger binds, overlaps between
                 directly or through others      collections, intervals of scores, membership
===============  ==============================  ===============================================

Guarantees:
    Whom the record of an image names depends on no other image. So a patient who joins or leaves
    moves nobody else to another patient, and a sum of vectors that are clipped patient by patient
    changes by one of them. Joined by looks it would not: a patient who looks like two others would
    make them one, and change the sum by three. Hence rounds take `rows`; a person whose images
    have several names is as many patients to them, which a statement says.

    `joined` is never finer than `rows`. It is for uses in which taking two patients for one is the
    safe side: both on one side of a split, both bound to one budget, both drawn at once.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canal.data.case import Case, Problem, stem
from canal.data.duplicates import THRESHOLD, connected, similar_pairs, thumbnails
from canal.errors import DataError

if TYPE_CHECKING:
    from canal.data.arrays import Arrays

# The widest first: who knows the patient need not know the lesion.
_WORDS = ("patient", "subject", "sequence", "group", "case", "lesion")


def named(words: Sequence[str]) -> tuple[str, int]:
    """Which of some words says whose an image is, and where it stands; "" and 0 if none does.

    In full, not by how it starts: `patient_age` is nobody's name.

    >>> named(["patient_age", "lesion_id", "PatientID"])
    ('patient', 2)
    """
    known = [word.strip().lower().removesuffix("id").rstrip("_ ") for word in words]
    return next(((kind, known.index(kind)) for kind in _WORDS if kind in known), ("", 0))


def of_entry(entry: Mapping[str, Any]) -> str:
    """The patient of an entry of a datalist; nothing where none is named."""
    words = [key for key, value in entry.items() if value is not None and str(value).strip()]
    kind, at = named(words)
    return f"patient {str(entry[words[at]]).strip()}" if kind else ""


def read_records(path: Path, site: str = "") -> dict[str, str]:
    """Patients by image id, from the first column of a CSV and the one that names a patient.

    Args:
        path: of `metadata.csv`; without it, there are no records.
        site: of several hospitals, whose folder this is: each may have a patient 1.
    """
    if not path.is_file():
        return {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}; save it as a CSV in UTF-8") from error
    header = lines[0] if lines else []
    kind, column = named(header[1:])
    if not kind:
        # Every image would pass for a patient of its own, and whoever has several pay too little.
        raise DataError(
            f"{path} does not say whose each image is: its columns are {', '.join(header)!r}; "
            "separate columns by commas, have the image in the first, and behind it one named "
            f"{' or '.join(_WORDS)}, or take the file away if nobody has two images"
        )
    column += 1
    of, before = (f"{site} ", f"{site}/") if site else ("", "")
    return {
        before + stem(line[0].strip()): f"{of}{kind} {line[column].strip()}"
        for line in lines[1:]
        if len(line) > column and line[0].strip() and line[column].strip()
    }


def left_out(cases: Iterable[Case], records: Mapping[str, str], sites: set[str]) -> list[Problem]:
    """One problem where `metadata.csv` leaves images of these hospitals out.

    Such an image would pass for a patient of its own, and could land on the other side of a split
    from the rest of its patient.
    """
    cases = list(cases)
    strangers = bool(records) and not any(case.id in records for case in cases)
    missing = [
        case.id for case in cases if strangers or (case.site in sites and case.id not in records)
    ]
    if not missing:
        return []
    return [
        Problem(
            "metadata.csv",
            f"gives no patient or sequence for {len(missing)} images ({missing[0]}, …)",
            "add their rows, with the name of the image in the first column",
        )
    ]


def stranger(image: str) -> str:
    """The patient on an image of which nothing is known: the image itself."""
    return f"image {image}"


def by_record(image: str, records: Mapping[str, str]) -> str:
    """The patient on one image of a folder."""
    return records.get(image, stranger(image))


def complete(images: Sequence[str], records: Mapping[str, str]) -> dict[str, str]:
    """The patient on every image; without a record, never one whom the record of another names."""
    names = set(records.values())
    found = {}
    for image in images:
        alone = stranger(image)
        found[image] = records.get(image, f"{alone} without a record" if alone in names else alone)
    return found


def rows(arrays: Arrays, *, labelled: bool = False) -> dict[str, list[int]]:
    """The rows of every patient, by record.

    Args:
        arrays: decoded cases.
        labelled: leave out images without a label, and with them patients who have no other.
    """
    found: dict[str, list[int]] = {}
    known = arrays.labelled
    for row, name in enumerate(arrays.ids):
        if known[row] or not labelled:
            found.setdefault(arrays.patients[name], []).append(row)
    return found


def joined(arrays: Arrays) -> list[str]:
    """Name the patient on each image; those with near-identical images are the first of them."""
    who = [arrays.patients[name] for name in arrays.ids]
    twins = similar_pairs(thumbnails(arrays.images), THRESHOLD)
    same = connected(((who[a], who[b]) for a, b in twins), who)
    first = {patient: group[0] for group in same for patient in group}
    return [first[patient] for patient in who]


def joined_cases(
    cases: Sequence[Case], duplicates: Iterable[Sequence[str]] = ()
) -> list[tuple[str, ...]]:
    """Ids of cases that belong together; each group sorted.

    Args:
        cases: that are not decoded.
        duplicates: groups of near-duplicates, by id (`canal.data.duplicates.near_duplicates`).
    """
    names = {case.id for case in cases}
    found = ([name for name in group if name in names] for group in duplicates)
    pairs = [(group[0], other) for group in found for other in group[1:]]
    first: dict[str, str] = {}
    pairs += [(first.setdefault(case.patient, case.id), case.id) for case in cases]
    return [tuple(sorted(group)) for group in connected(pairs, names)]
