"""The patients of one site: what their images show, and how each of them votes.

Guarantees:
    How a patient votes depends on that patient's images and on the plan, and on nothing else. Votes
    are integers on the lattice, of which no histogram gets more than one patient in total.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from canal.data.case import Case, Problem, refuse
from canal.data.check import problems_of, unreadable
from canal.data.decode import Inspection, decode
from canal.data.duplicates import THRESHOLD, groups_of, similar_pairs, thumbnail
from canal.data.load import select
from canal.data.patients import joined_cases
from canal.errors import DataError
from canal.privacy.lattice import Lattice
from canal.release.noisy_sum import Integers
from canal.statistics.plan import COUNT, MOST_PATIENTS, NO_LABEL, NO_LESION, StatisticsPlan

# By the name of a histogram: a number, or the name of a bin for images that have none.
Quantities = Mapping[str, float | str]


@dataclass(frozen=True)
class Patients:
    """All patients of one site; private.

    Args:
        cohort: name of the site's cohort; public.
        images: what each patient's images show, by the patient that the records name.
        people: content digests of every patient's images; None if nobody knows them.
    """

    cohort: str
    images: Mapping[str, Sequence[Quantities]]
    people: tuple[frozenset[str], ...] | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def claim(self) -> list[str]:
        """Name of the cohort, and a digest of everything that determines the votes; private."""
        content = repr(sorted((who, list(map(dict, each))) for who, each in self.images.items()))
        return [self.cohort, hashlib.sha256(content.encode()).hexdigest()]

    def votes(self, plan: StatisticsPlan, lattice: Lattice) -> dict[str, Integers]:
        """The sums of all votes, as if of no more patients than a site may have; private.

        To be bounded moves no two sums further apart.
        """
        totals = {name: np.zeros(width, np.int64) for name, width in plan.widths.items()}
        for images in self.images.values():
            for name, part in vote(images, plan, lattice).items():
                totals[name] += part
        most = MOST_PATIENTS // plan.sites * round(1 / lattice.step)
        return {name: np.minimum(total, most) for name, total in totals.items()}


def vote(
    images: Sequence[Quantities], plan: StatisticsPlan, lattice: Lattice
) -> dict[str, Integers]:
    """How one patient votes: one in the count, and one in total in every histogram, as integers.

    Args:
        images: of the patient; the vote is spread evenly over them, and truncated.
        plan: has the bins.
        lattice: of the sums.
    """
    one = round(1 / lattice.step)
    votes = {COUNT: np.array([one])}
    for name, histogram in plan.histograms.items():
        bins = [histogram.bin(image[name]) for image in images]
        votes[name] = np.bincount(bins, minlength=len(histogram.bins)) * one // len(images)
    return votes


def load(
    cohort: str,
    path: Path | str,
    *,
    split: Path | str | None = None,
    part: str = "",
    keep_healthy: bool = True,
    accept: Collection[str] = (),
    progress: Callable[[int], None] = lambda count: None,
) -> Patients:
    """Read the patients of a site from a folder in any layout that we know, images as they are.

    Args:
        cohort: name of the site's cohort.
        path: the folder, as it was downloaded.
        split: file of a split; None for all cases.
        part: of the split; that of the cohort's name if not given.
        keep_healthy: keep cases that are known to show no lesion.
        accept: names of findings that are taken as they are, of `canal.data.case.ACCEPTABLE`.
        progress: called with 1 for every image that was read.
    """
    data, cases = select(
        *(path, split, part or cohort), keep_healthy=keep_healthy, unlabelled=True, accept=accept
    )

    def look(case: Case) -> _Look | Problem:
        try:
            found = _look(case)
        except DataError as error:
            return unreadable(case, data.root, str(error))
        progress(1)
        return found

    with ThreadPoolExecutor() as pool:
        looks = list(pool.map(look, cases))
    refuse([each for each in looks if isinstance(each, Problem)], data.root)
    seen = {
        case.id: each for case, each in zip(cases, looks, strict=True) if isinstance(each, _Look)
    }
    refuse(
        problems_of(cases, [each.inspection for each in seen.values()], data.root),
        data.root,
        accept,
    )
    images: dict[str, list[Quantities]] = {}
    for case in cases:
        images.setdefault(case.patient, []).append(seen[case.id].shows)
    small = np.array([each.thumbnail for each in seen.values()])
    alike = groups_of(similar_pairs(small, THRESHOLD), list(seen))
    people = (frozenset(seen[name].digest for name in ids) for ids in joined_cases(cases, alike))
    return Patients(cohort, images, tuple(people))


@dataclass(frozen=True)
class _Look:
    """What one image shows; by digest and thumbnail its copies are found."""

    case: Case
    shows: Quantities
    inspection: Inspection
    digest: str
    thumbnail: NDArray[np.float32]


def _look(case: Case) -> _Look:
    # In grey, since whether a data set has colour shows in the images of others.
    image, mask, inspection = decode(case, size=None, channels=1)
    area: float | str = NO_LABEL
    if mask is not None:
        area = float(mask.mean()) or NO_LESION
    shows: Quantities = {
        "area": area,
        "intensity": float(image.mean()),
        "size": max(inspection.size),
    }
    digest = hashlib.sha256(repr(image.shape).encode() + image.tobytes()).hexdigest()
    return _Look(case, shows, inspection, digest, thumbnail(case))
