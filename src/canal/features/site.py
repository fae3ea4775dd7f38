"""What a site does for a feature release: take in the queries, have its teacher answer them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.data.arrays import Arrays
from canal.errors import RefusalError
from canal.features.mechanism import BLOCK, FeatureMechanism, FeatureSpec
from canal.features.queries import Queries

if TYPE_CHECKING:
    from canal.features.ensemble import Teacher
    from canal.release.mechanism import SiteCohort

_PARTS = ("images", "masks", "labelled")
_log = logging.getLogger(__name__)


def introduce(cohort: SiteCohort, wanted: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """What all teachers must have in common.

    Args:
        cohort: what the site has.
        wanted: what the aggregator asks for.
    """
    ensemble = cohort.ensemble
    return {
        "initialisation": ensemble.initialisation,
        "trained_initialisation": ensemble.trained_initialisation,
        "layer": cohort.teacher.tap.layer,
    }


def claim(cohort: SiteCohort, wanted: Mapping[str, Any]) -> list[str]:  # noqa: ARG001
    """What determines the features of the site's teacher; private."""
    made: list[str] = cohort.teacher.claim
    return made


def inputs(queries: Queries) -> list[dict[str, NDArray[Any]]]:
    """The queries as they are sent to the sites, block by block."""
    arrays = queries.arrays
    blocks = [slice(start, start + BLOCK) for start in range(0, len(arrays.ids), BLOCK)]
    return [
        {
            "images": np.asarray(arrays.images[rows]),
            "masks": np.asarray(arrays.masks[rows]),
            "labelled": arrays.labelled[rows],
        }
        for rows in blocks
    ]


class FeatureSite:
    """One release, as a site sees it.

    Args:
        spec: of the release.
        cohort: what the site has; private.
    """

    def __init__(self, spec: FeatureSpec, cohort: SiteCohort) -> None:
        self.spec, self.cohort = spec, cohort
        self._blocks: dict[int, Mapping[str, NDArray[Any]]] = {}
        self._checked = False

    @property
    def data(self) -> Teacher:
        """The teacher; private."""
        teacher: Teacher = self.cohort.teacher
        return teacher

    @property
    def lacking(self) -> list[int]:
        """Blocks of queries that did not come yet."""
        count = -(-len(self.spec.queries) // BLOCK)
        return [number for number in range(count) if number not in self._blocks]

    def accept(self, number: int, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Take one block of queries, if their contents are those of the spec.

        Args:
            number: of the block.
            arrays: images, masks and whether they are labelled.
        """
        named = self.spec.queries[number * BLOCK : (number + 1) * BLOCK]
        if number < 0 or not named:
            raise RefusalError(f"there is no block {number} of queries")
        found = _queries(named, arrays)
        for (name, content), here in zip(named, found.contents, strict=True):
            if content != here:
                raise RefusalError(
                    f"query {name!r} has other content than was agreed on; an id is released once"
                )
        kept = {name: np.asarray(arrays[name]) for name in _PARTS}
        if number in self.lacking:
            self._blocks[number] = kept
        return kept

    @cached_property
    def queries(self) -> Queries:
        """All queries, once every block came."""
        if self.lacking:
            first = BLOCK * min(self.lacking)
            raise RefusalError(f"the queries from {first} on did not come yet")
        parts = [self._blocks[number] for number in sorted(self._blocks)]
        if len({part["images"].shape[1:] for part in parts}) > 1:
            raise RefusalError("the blocks of queries differ in their shape")
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in _PARTS}
        found = _queries(self.spec.queries, arrays)
        self._blocks = {number: {} for number in self._blocks}  # in memory once
        return found

    @property
    def items(self) -> tuple[str, ...]:
        """Digests of the images that are asked about; features depend on nothing else."""
        return image_digests(self.queries.arrays.images)

    @cached_property
    def mechanism(self) -> FeatureMechanism:
        """What follows from the spec and the queries."""
        return FeatureMechanism(self.spec, self.queries, on_broken=_warn_of_broken)

    def check(self) -> None:
        """Refuse a teacher that is not one of this release, and queries that it does not take."""
        if self._checked:
            return
        ensemble, plan = self.cohort.ensemble, self.spec.plan
        here = ensemble.initialisation, self.data.tap.layer
        if (self.spec.initialisation, self.spec.layer) != here:
            raise RefusalError("the teacher here has another initialisation, or another layer")
        if plan.trained_initialisation < ensemble.trained_initialisation:
            raise RefusalError("the initialisation was trained on images; the plan denies it")
        if ensemble.images:
            channels, *size = ensemble.images
            shape = self.queries.arrays.images.shape[1:]
            if shape != ensemble.images:
                raise RefusalError(
                    f"queries have shape {shape}, and this site's teacher takes {ensemble.images}"
                )
            if ensemble.shape(channels, size) != (plan.channels, plan.grid):
                raise RefusalError(
                    f"the plan is for {plan.channels} channels of {plan.grid}, and the teacher "
                    "here has others"
                )
        self._checked = True


def image_digests(images: NDArray[Any]) -> tuple[str, ...]:
    """SHA-256 of each image, without its truth."""
    import hashlib

    return tuple(
        hashlib.sha256(np.ascontiguousarray(each).tobytes()).hexdigest() for each in images
    )


def _warn_of_broken(cohort: str, query: str) -> None:
    """A teacher that gives NaN says nothing; only the site itself learns of it."""
    _log.warning("the teacher of %s returns NaN or infinity for query %s; zero", cohort, query)


def _queries(named: tuple[tuple[str, str], ...], arrays: Mapping[str, NDArray[Any]]) -> Queries:
    """Images with the names that were agreed on; their contents are computed here."""
    try:
        images, masks, labelled = (np.asarray(arrays[name]) for name in _PARTS)
    except KeyError as error:
        raise RefusalError(f"a block of queries lacks its {error}") from error
    fits = images.dtype == masks.dtype == np.uint8 and images.ndim in (4, 5)
    if not fits or not len(images) == len(masks) == len(labelled) == len(named):
        raise RefusalError(f"a block of queries has shape {images.shape} for {len(named)} names")
    if masks.shape[1:] != (1, *images.shape[2:]):
        raise RefusalError(
            f"queries have shape {images.shape[1:]}, and their truths {masks.shape[1:]}"
        )
    ids = tuple(name for name, _ in named)
    unlabelled = frozenset(name for name, known in zip(ids, labelled, strict=True) if not known)
    return Queries.of(Arrays(ids, images, masks, "received", unlabelled))
