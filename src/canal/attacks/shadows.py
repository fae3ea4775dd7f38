"""Shadow teachers: what a site's teacher would have been with other patients. Resumable."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from canal.data.patients import joined
from canal.errors import InvalidValueError
from canal.learning.settings import TrainingSettings
from canal.learning.teacher import train

if TYPE_CHECKING:
    from canal.data.arrays import Arrays
    from canal.learning.training import Progress


@dataclass(frozen=True)
class Pool:
    """Patients that a site's cohort may have been drawn from.

    Args:
        arrays: their images.
        patients: in a fixed order.
        members: those who really were in the cohort.
        always: others, who are in every shadow.
    """

    arrays: Arrays
    patients: tuple[str, ...]
    members: tuple[str, ...]
    always: tuple[str, ...] = ()

    @classmethod
    def of_both(cls, cohort: Arrays, outsiders: Arrays) -> Pool:
        """Everybody of a cohort, and others like them; all with labels, none in both.

        A patient is known by a name of the side too: two folders may both have a patient 1. Who
        have a near-identical image are one patient here: a twin in another shadow would hide both.
        """
        for arrays in (cohort, outsiders):
            if arrays.unlabelled:
                raise InvalidValueError(
                    f"shadows learn from labels, and {len(arrays.unlabelled)} images have none "
                    f"({min(arrays.unlabelled)}, …); label them, or leave them out"
                )
        known = {image.tobytes() for image in cohort.images}
        twins = sum(image.tobytes() in known for image in outsiders.images)
        if twins:
            raise InvalidValueError(
                f"{twins} of the outsiders' images are the cohort's own; give images of others"
            )
        sides = [
            replace(arrays, patients={n: f"{side} {one}" for n, one in _named(arrays)})
            for side, arrays in (("cohort", cohort), ("outside", outsiders))
        ]
        both = sides[0].beside(sides[1])
        patients = tuple(dict.fromkeys(both.patients[name] for name in both.ids))
        return cls(both, patients, tuple(p for p in patients if p.startswith("cohort ")))

    @classmethod
    def of_canaries(cls, cohort: Arrays, canaries: Arrays) -> Pool:
        """Canaries, each of whom was put into half of the shadows, beside the whole cohort.

        Args:
            cohort: a site's; it is in every shadow.
            canaries: see `canal.attacks.planted`.
        """
        both = cls.of_both(cohort, canaries)
        planted = tuple(p for p in both.patients if p.startswith("outside "))
        return cls(both.arrays, planted, (), both.members)

    def images(self, patients: Sequence[str]) -> tuple[str, ...]:
        """Ids of the images of some patients."""
        wanted = set(patients)
        return tuple(name for name in self.arrays.ids if self.arrays.patients[name] in wanted)

    def halves(self, count: int, seed: int) -> NDArray[np.bool_]:
        """Who is in which shadow, `[count, P]`: each patient in half of them, drawn at random.

        Shadows come in pairs of complements, so that the halves are even for everybody.
        """
        if count < 2 or count % 2:
            raise InvalidValueError(f"shadows = {count!r} must be even and at least 2")
        rng = np.random.default_rng([seed, len(self.patients)])
        half = np.arange(len(self.patients)) < len(self.patients) // 2
        first = np.array([rng.permutation(half) for _ in range(count // 2)])
        return np.concatenate([first, ~first])


def train_shadows(
    folder: Path,
    init: Path,
    pool: Pool,
    members: NDArray[np.bool_],
    settings: TrainingSettings,
    report: Callable[[int, Progress], None] = lambda number, progress: None,
) -> list[Path]:
    """Train a teacher on each half; those that are there already are not trained again.

    Args:
        folder: where they go, one folder each.
        init: the initialisation that the site's teacher started from.
        pool: all patients.
        members: as `Pool.halves` gives it.
        settings: of the site's own training, order of images included.
        report: of progress, with the number of the shadow.
    """
    made = []
    for number, row in enumerate(members):
        mine = [name for name, inside in zip(pool.patients, row, strict=True) if inside]
        mine += pool.always
        cohort = pool.arrays.rows(pool.images(mine))
        # Named by who is in it: another draw of halves never finds this one's weights.
        name = hashlib.sha256("\n".join(cohort.ids).encode()).hexdigest()[:16]
        place = folder / f"shadow-{name}"
        train(place, init, cohort, settings, name=name, report=lambda p, n=number: report(n, p))  # type: ignore[misc]
        made.append(place)
    return made


def _named(arrays: Arrays) -> Iterable[tuple[str, str]]:
    return zip(arrays.ids, joined(arrays), strict=True)
