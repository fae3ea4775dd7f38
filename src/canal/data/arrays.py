"""Decoded images and masks of many cases, and whom each of them shows."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from canal.data.patients import complete, stranger
from canal.errors import DataError


@dataclass(frozen=True)
class Arrays:
    """Cases as arrays.

    Args:
        ids: one a row.
        images: uint8 `[N, C, *size]`.
        masks: uint8 `[N, 1, *size]`, zeros and ones.
        digest: of everything that determines the two.
        unlabelled: ids whose mask is not known; it is all zeros then.
        patients: whom each image shows, by id; one that is not given is a patient of its own
            (`canal.data.patients`).
    """

    ids: tuple[str, ...]
    images: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    digest: str
    unlabelled: frozenset[str] = frozenset()
    patients: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "patients", complete(self.ids, self.patients))

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Whether each row has a truth."""
        return np.array([name not in self.unlabelled for name in self.ids], dtype=bool)

    def rows(self, ids: Sequence[str]) -> Arrays:
        """Select cases, in this order, as arrays in memory."""
        where = {name: row for row, name in enumerate(self.ids)}
        missing = [name for name in ids if name not in where]
        if missing:
            raise DataError(
                f"{len(missing)} cases of the split are not in the data ({missing[0]}, …); "
                "use the data that the split was made for"
            )
        rows = [where[name] for name in ids]
        digest = hashlib.sha256(json.dumps([self.digest, list(ids)]).encode()).hexdigest()
        return Arrays(
            tuple(ids),
            self.images[rows],
            self.masks[rows],
            digest,
            self.unlabelled & frozenset(ids),
            {name: self.patients[name] for name in ids},
        )

    def without(self, patient: str) -> Arrays:
        """Leave out one patient, by name or by the id of an image without a record."""
        gone = {patient, stranger(patient)}
        kept = [name for name in self.ids if self.patients[name] not in gone]
        if len(kept) == len(self.ids):
            raise DataError(f"nobody called {patient!r} is on these {len(kept)} images")
        return self.rows(kept)

    def without_labels(self) -> Arrays:
        """Drop all labels, and rename the images, so that they can stand beside labelled ones."""
        named = {name: f"{name}, unlabelled" for name in self.ids}
        return Arrays(
            tuple(named.values()),
            self.images,
            np.zeros_like(self.masks),
            hashlib.sha256(f"{self.digest}, unlabelled".encode()).hexdigest(),
            frozenset(named.values()),
            {named[name]: self.patients[name] for name in self.ids},
        )

    def beside(self, other: Arrays) -> Arrays:
        """Join with other cases of the same shape, as arrays in memory."""
        twice = set(self.ids) & set(other.ids)
        if twice:
            raise DataError(f"{min(twice)} is there twice; give folders without a case in common")
        if self.images.shape[1:] != other.images.shape[1:]:
            raise DataError(
                f"images of {self.images.shape[1:]} and of {other.images.shape[1:]} do not go "
                "together; give folders of one kind"
            )
        return Arrays(
            self.ids + other.ids,
            np.concatenate([self.images, other.images]),
            np.concatenate([self.masks, other.masks]),
            hashlib.sha256(f"{self.digest} {other.digest}".encode()).hexdigest(),
            self.unlabelled | other.unlabelled,
            {**self.patients, **other.patients},
        )


def copy_rows(array: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.uint8]:
    """Copy rows; if the array is a mapped file, its pages are released again."""
    rows = np.array(array[start:stop])
    mapped = getattr(array, "_mmap", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
    return rows
