"""The queries: the recipient's non-private images, read in batches, each known by its content."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from canal.data.arrays import Arrays, copy_rows
from canal.data.patients import stranger
from canal.errors import DataError, InvalidValueError
from canal.learning.networks import to_float
from canal.privacy.units import Unit

if TYPE_CHECKING:
    from torch import Tensor

# How many images pass through a network at once. Bits may depend on it, so it is no option.
BATCH = 16


@dataclass(frozen=True)
class QueryBatch:
    """Some queries, in order.

    Args:
        start: row of the first.
        images: float `[B, C, *size]`.
        masks: float `[B, 1, *size]`.
        labelled: bool `[B]`; where it is false, the mask is not known.
    """

    start: int
    images: Tensor
    masks: Tensor
    labelled: Tensor


@dataclass(frozen=True)
class Queries:
    """Images, truths and names.

    Args:
        arrays: decoded cases, in memory or mapped.
        contents: SHA-256 of each image with its truth, or without; stays with the aggregator.
        images_per_person: the most images that show one person, as far as records say.
        recorded: whether records say of every image whom it shows.
    """

    arrays: Arrays
    contents: tuple[str, ...]
    images_per_person: int = 1
    recorded: bool = False

    @classmethod
    def of(cls, arrays: Arrays) -> Queries:
        """Take decoded cases as queries."""
        repeated = [name for name, count in Counter(arrays.ids).items() if count > 1]
        if repeated:
            raise DataError(f"query {repeated[0]!r} is there twice; give every query its own id")
        people = Counter(arrays.patients.values())
        contents = []
        for start in range(0, len(arrays.ids), BATCH):
            stop = start + BATCH
            images = copy_rows(arrays.images, start, stop)
            masks = copy_rows(arrays.masks, start, stop)
            known = arrays.labelled[start:stop]
            contents += [
                hashlib.sha256(image.tobytes() + mask.tobytes() + bytes([int(label)])).hexdigest()
                for image, mask, label in zip(images, masks, known, strict=True)
            ]
        recorded = all(who != stranger(name) for name, who in arrays.patients.items())
        return cls(arrays, tuple(contents), max(people.values()), recorded)

    def most_of_one_person(self, unit: Unit, stated: int | None = None) -> int:
        """M of a plan: as somebody states it, else counted from the images' own records.

        Args:
            unit: whose epsilon is asked for. Where it is an image, that of everybody who is on one
                depends on this number, and it is not guessed.
            stated: the most images of one person; fewer than are found are refused with the plan.
        """
        if stated is not None:
            return stated
        if unit == "image" and not self.recorded:
            raise InvalidValueError(
                "no records say who is on which query image, and a person who is on several pays "
                "for each; add a metadata.csv to the queries, or state the most images of one "
                "person with --images-per-person (1 says that no two show the same person)"
            )
        return self.images_per_person

    @property
    def ids(self) -> tuple[str, ...]:
        """One a query."""
        return self.arrays.ids

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[QueryBatch]:
        """Rows from start to stop; batches are the same ones wherever one starts."""
        import torch

        stop = len(self.ids) if stop is None else stop
        labelled = self.arrays.labelled
        for first in range(start, stop, BATCH):
            last = min(first + BATCH, stop)
            images = torch.from_numpy(copy_rows(self.arrays.images, first, last))
            masks = torch.from_numpy(copy_rows(self.arrays.masks, first, last))
            known = torch.from_numpy(labelled[first:last])
            yield QueryBatch(first, to_float(images), masks.float(), known)
