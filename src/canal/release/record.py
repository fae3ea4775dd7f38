"""The record: what the makers of a release say about it, beside what follows from its plan.

It is public. It is fixed when the release is claimed and paid for, and kept in the private folder,
so that a run that was cut off publishes the record that it began with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from canal.clock import now
from canal.data.overlap import ABSENT, CHECKED, NOT_CHECKED
from canal.errors import InvalidValueError, ReleaseError
from canal.files import fsync_folder, replace_file
from canal.release.mechanism import written
from canal.version import code_digest

LONGEST = 500
# What is said where images were compared, and where they were not.
_COMPARED = {
    "cohorts": (
        "No image is in two cohorts: all were compared",
        "That nobody is in two cohorts was not checked",
    ),
    "queries": (
        "No query is an image of a cohort: all were compared",
        "That no query is an image of a cohort was not checked",
    ),
    "initialisation": (
        "The shared initialisation was trained on no image of a cohort: all were compared",
        "That the shared initialisation was trained on no image of a cohort was not checked",
    ),
}
_SAID = ("purpose", "contact")
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class About:
    """What the makers of a release say about it; all of it is published.

    Args:
        purpose: what the release is for; empty: not stated.
        contact: who answers questions about it; empty: not stated.
        date: day of the release, `YYYY-MM-DD`; today (UTC) if not given.
    """

    purpose: str = ""
    contact: str = ""
    date: str | None = None

    def __post_init__(self) -> None:
        for name in _SAID:
            _check_said(name, getattr(self, name))
        if self.date is not None:
            _check_date(self.date)

    def to_record(self, overlap: Mapping[str, str]) -> dict[str, Any]:
        """The record of a release that begins now.

        Args:
            overlap: what `canal.data.overlap.compare` could compare.
        """
        return {
            "date": today() if self.date is None else self.date,
            "purpose": self.purpose,
            "contact": self.contact,
            "code": [code_digest()],
            "overlap": dict(overlap),
        }


def today() -> str:
    """The day in UTC; that of `SOURCE_DATE_EPOCH`, in seconds, where it is set.

    With that variable a seeded release has the same bytes on every day.
    """
    return now().date().isoformat()


def keep(path: Path, about: About, overlap: Mapping[str, str]) -> dict[str, Any]:
    """The record in a file: the one that is there, or a new one.

    Args:
        path: of the file, in the private folder.
        about: what the makers say.
        overlap: what could be compared, of cohorts and public images.

    Raises:
        ReleaseError: they said something else when the release began.
    """
    check_kept(path, about)
    code = code_digest()
    record = _read(path) if path.is_file() else about.to_record(overlap)
    if code not in record["code"]:  # it was finished with other code than it was begun with
        record["code"].append(code)
    if not path.is_file() or _read(path) != record:
        replace_file(path, written(record))
        fsync_folder(path.parent)
    return record


def check_kept(path: Path, about: About) -> None:
    """Refuse another purpose or contact than the release began with."""
    if not path.is_file():
        return
    record = _read(path)
    for name in _SAID:
        if record[name] != getattr(about, name):
            raise ReleaseError(
                f"{path.parent.name} holds a release that began with {name} {record[name]!r}, not "
                f"{getattr(about, name)!r}; give the {name} that it began with, or choose another "
                "--out"
            )


def check_record(record: Mapping[str, Any]) -> str:
    """Refuse a record that no release of ours has; say what it states.

    Args:
        record: of a manifest.
    """
    try:
        for name in _SAID:
            _check_said(name, record[name])
        _check_date(record["date"])
        if not record["code"] or not all(len(c) == 64 and set(c) <= _HEX for c in record["code"]):
            raise ReleaseError("the record has a code digest that is no SHA-256")
        said_of_overlap(record["overlap"])
    except (InvalidValueError, LookupError, TypeError) as error:
        raise ReleaseError(f"the record of the release is damaged: {error}") from error
    return f"of {record['date']}, purpose {'stated' if record['purpose'] else 'not stated'}"


def said_of_overlap(overlap: Mapping[str, str] | None) -> list[str]:
    """What was compared before the release began, and what was not, in sentences.

    Args:
        overlap: of a record; None in one of an older release.
    """
    if overlap is None:
        overlap = dict.fromkeys(_COMPARED, f"{NOT_CHECKED}the software did not compare yet")
    if not isinstance(overlap, Mapping) or overlap.keys() != _COMPARED.keys():
        raise ReleaseError("the record does not say which images were compared")
    sentences = []
    for name, (checked, unchecked) in _COMPARED.items():
        _check_said("overlap", overlap[name])
        if overlap[name] == CHECKED:
            sentences.append(f"{checked}, by content; nothing was charged before.")
        elif overlap[name] == ABSENT and name != "cohorts":
            continue
        elif overlap[name].startswith(NOT_CHECKED):
            sentences.append(f"{unchecked} ({overlap[name].removeprefix(NOT_CHECKED)}): assumed.")
        else:
            raise ReleaseError(f"the record says {overlap[name]!r} of overlap, which means nothing")
    if CHECKED in overlap.values():
        sentences.append(
            "Images are the same if their pixels are: a second photograph of a person is not found."
        )
    return sentences


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except ValueError as error:
        raise ReleaseError(f"{path} is damaged; restore it from a copy") from error


def _check_said(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > LONGEST or not (value + " ").isprintable():
        raise InvalidValueError(
            f"{name} = {value!r} must be one line of at most {LONGEST} readable characters"
        )


def _check_date(value: object) -> None:
    try:
        if isinstance(value, str) and date.fromisoformat(value).isoformat() == value:
            return
    except ValueError:
        pass
    raise InvalidValueError(f"date = {value!r} must be a day, YYYY-MM-DD")
