"""The patients of one site, and what each of them adds to a round.

Guarantees:
    What a patient adds depends on that patient's images, on what was published, and on nothing
    else: not on who else is there, nor on how many. Augmentation follows from the round and the
    patient's own pixels; images pass through the network in batches of one fixed shape, so that
    who shares a batch does not show in the last bits (`canal.gradients.gradients`). So a sum
    without a patient is the sum less that patient's part, to the last integer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from canal.data import overlap, patients
from canal.errors import DataError, InvalidValueError
from canal.learning.augmentation import augmented
from canal.learning.networks import to_float

if TYPE_CHECKING:
    from torch import Tensor

    from canal.data.arrays import Arrays
    from canal.gradients.clip import Clip
    from canal.gradients.gradients import Gradients
    from canal.privacy.lattice import Lattice

# Views of an image: a round takes this many times as long.
MOST_VIEWS = 1024
# Images a pass; the memory of a round is this many gradients.
CHUNK = 32


class Patients:
    """All labelled images of one site, by patient; private.

    Args:
        cohort: name of the site's cohort; public.
        arrays: decoded cases. A patient is whoever the record of an image names
            (`canal.data.patients.rows`).
        views: of an image in a round, each flipped, turned and changed in intensity another way; 0
            for the image as it is. A patient's gradient is the mean over all of them.
        chunk: images a pass.
    """

    def __init__(self, cohort: str, arrays: Arrays, *, views: int = 1, chunk: int = CHUNK) -> None:
        if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
            raise InvalidValueError(f"chunk = {chunk!r} must be a whole number, at least 1")
        check_views(views)
        self.cohort, self.arrays, self.views, self.chunk = cohort, arrays, views, chunk
        # By records, never by looks: whom an image joins must not depend on other patients.
        self.rows = patients.rows(arrays, labelled=True)
        if not self.rows:
            raise DataError(f"cohort {cohort!r} has no labelled image; nothing can be learned")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def passes(self) -> int:
        """Views of images that pass through the network in a round."""
        return sum(map(len, self.rows.values())) * max(1, self.views)

    @property
    def digest(self) -> str:
        """Of everything that determines what they add; private."""
        rows = sorted((f"patient {who}", rows) for who, rows in self.rows.items())
        content = repr((self.arrays.digest, rows, self.views, self.chunk))
        return hashlib.sha256(content.encode()).hexdigest()

    @cached_property
    def people(self) -> tuple[frozenset[str], ...]:
        """The content digests of every patient's images; private."""
        return tuple(overlap.digests_by_patient(self.arrays).values())

    @property
    def claim(self) -> list[str]:
        """The same with the name of the cohort; private."""
        return [self.cohort, self.digest]

    def total(
        self,
        gradients: Gradients,
        clip: Clip,
        lattice: Lattice,
        number: int,
        *,
        progress: Callable[[int], None] = lambda count: None,
    ) -> Tensor:
        """The sum over patients of what each adds, `[d]` integers (or `[k]`); private.

        Args:
            gradients: of the network as it is in this round.
            clip: bounds each patient.
            lattice: of the sum.
            number: of the round.
            progress: called with the number of images that passed.
        """
        import torch

        total = torch.zeros(len(clip.scale), dtype=torch.int64)
        for rows in self.gradients(gradients, number, progress):
            total += clip.apply(rows, lattice).sum(dim=0)
        return total

    def gradients(
        self,
        gradients: Gradients,
        number: int,
        progress: Callable[[int], None] = lambda count: None,
    ) -> Iterator[Tensor]:
        """Every patient's gradient, the mean over their images, some at a time; private."""
        import torch

        views = range(max(1, self.views))
        order = [
            (who, (row, view)) for who, rows in self.rows.items() for row in rows for view in views
        ]
        left = {who: len(rows) * len(views) for who, rows in self.rows.items()}
        sums: dict[str, Tensor] = {}
        for start in range(0, len(order), self.chunk):
            part = order[start : start + self.chunk]
            images, masks = self.batch([look for _, look in part], number)
            found, done = gradients(images, masks).cpu(), []
            for (who, _), row in zip(part, found, strict=False):
                # One image after the other, so that the sum does not depend on where a chunk ends.
                sums[who] = sums[who] + row if who in sums else row
                left[who] -= 1
                if not left[who]:
                    done.append(sums.pop(who) / (len(self.rows[who]) * len(views)))
            progress(len(part))
            if done:
                yield torch.stack(done)

    def batch(self, looks: Sequence[tuple[int, int]], number: int) -> tuple[Tensor, Tensor]:
        """Images and masks of one pass; empty places are black images, whose rows nobody reads.

        Args:
            looks: rows of the arrays, and which view of each.
            number: of the round.
        """
        import torch

        rows = [row for row, _ in looks]

        pixels = np.zeros((self.chunk, *self.arrays.images.shape[1:]), np.uint8)
        truths = np.zeros((self.chunk, *self.arrays.masks.shape[1:]), np.uint8)
        pixels[: len(rows)], truths[: len(rows)] = self.arrays.images[rows], self.arrays.masks[rows]
        images = to_float(torch.from_numpy(pixels))
        masks = torch.from_numpy(truths).float()
        if self.views:
            for at, (_, view) in enumerate(looks):
                one = slice(at, at + 1)
                seed = int.from_bytes(hashlib.sha256(pixels[at].tobytes()).digest()[:8])
                rng = np.random.default_rng([seed, number, view])
                images[one], masks[one], _ = augmented(images[one], masks[one], rng)
        return images, masks


def check_views(views: object) -> None:
    """Refuse what is no number of views."""
    if isinstance(views, bool) or not isinstance(views, int) or not 0 <= views <= MOST_VIEWS:
        raise InvalidValueError(
            f"views = {views!r} must be a whole number, at most {MOST_VIEWS}; 0 leaves images as "
            "they are"
        )
