"""What a site is asked in one session: the plan as it derives it, the images as they came.

Images are kept on disk, and used only when their contents are those that were agreed on.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canal.data.arrays import Arrays
from canal.errors import RefusalError, ReleaseError
from canal.features.calibration import CalibratedPlan
from canal.features.mechanism import BLOCK, FeatureMechanism, TeacherSum
from canal.features.queries import Queries
from canal.features.statistics import Statistics
from canal.federation.journal import Journal
from canal.federation.message import Message
from canal.federation.terms import Terms
from canal.files import fsync_folder, replace_file
from canal.privacy.ledger import Charge
from canal.release.charges import charges
from canal.release.manifest import Manifest
from canal.release.mechanism import Step
from canal.release.verification import check_statement

_log = logging.getLogger(__name__)


class Asked:
    """One session, as a site sees it.

    Args:
        terms: that it agreed to.
        journal: of the session.
        shape: gives `(channels, *size)` that the teacher is made for, if that is known.
    """

    def __init__(
        self, terms: Terms, journal: Journal, shape: Callable[[], tuple[int, ...]]
    ) -> None:
        self.terms = terms
        self.journal = journal
        self.queries = Received(terms, journal, shape)

    @cached_property
    def flat(self) -> CalibratedPlan:
        """The plan with all that is fixed before statistics are known."""
        return self.terms.features.plan.calibrate()

    @cached_property
    def mechanism(self) -> FeatureMechanism:
        """What follows from the terms, derived here and believed from nobody."""
        return FeatureMechanism(
            self.terms.features, self.queries.all(), on_broken=self._warn_of_broken
        )

    def _warn_of_broken(self, cohort: str, query: str) -> None:
        """A teacher that gives NaN says nothing; only the site itself learns of it."""
        _log.warning("the teacher of %s returns NaN or infinity for query %s; zero", cohort, query)

    def numbers(self, statistics: Statistics) -> dict[str, Any]:
        """What follows from the plan and these published statistics."""
        try:
            statistics.check(self.flat)
        except ReleaseError as error:
            raise RefusalError(f"nobody published these statistics: {error}") from error
        plan = self.terms.features.plan
        return TeacherSum.of(plan.calibrate(statistics.weights(plan)), statistics).to_json()

    @property
    def stated(self) -> dict[str, Any]:
        """Every number that the plan fixes, as this site derives it."""
        return self.flat.to_json()

    @property
    def due(self) -> list[Charge]:
        """What everyone pays."""
        return charges(self.flat, self.terms.features.cohorts)

    def check_published(self, manifest: Manifest) -> None:
        """Refuse a manifest that is not of what was agreed to and answered here."""
        agreement = self.terms.features
        try:
            check_statement(manifest)
            same = {
                "plan": manifest.plan == agreement.plan.to_json(),
                "participants": manifest.participants
                == {
                    "cohorts": list(agreement.cohorts),
                    "initialisation": agreement.initialisation,
                    "tap": agreement.layer,
                },
                "queries": list(manifest.rows) == [name for name, _ in agreement.queries],
                "statistics": manifest.statistics == self.journal.published,
                "charge": manifest.ledger is None or manifest.ledger["key"] == self.terms.key,
                "privacy": manifest.private == agreement.private,
            }
        except (ReleaseError, LookupError, TypeError) as error:
            raise RefusalError(f"this manifest does not hold together: {error}") from error
        other = [what for what, agrees in same.items() if not agrees]
        if other:
            raise RefusalError(f"the manifest has another {', '.join(other)} than was agreed to")
        if self.journal.answers("features") < self.blocks:
            raise RefusalError("a release is finished when every query was answered")

    @property
    def blocks(self) -> int:
        """How many there are."""
        return -(-len(self.terms.features.queries) // BLOCK)

    def block(self, number: int) -> Step:
        """One block of queries: every query is in exactly one."""
        steps = [step for shard in self.mechanism.shards() for step in shard]
        if not 0 <= number < len(steps):
            raise RefusalError(f"there is no block {number}")
        return steps[number]


class Received:
    """The recipient's images, as they come, block by block.

    Args:
        terms: that name them.
        journal: in whose folder they are kept.
        shape: gives what all images must have, if that is known.
    """

    def __init__(
        self, terms: Terms, journal: Journal, shape: Callable[[], tuple[int, ...]]
    ) -> None:
        self.terms = terms
        self.journal = journal
        self.shape = shape
        self.folder = journal.queries
        self._all: Queries | None = None

    @property
    def there(self) -> list[int]:
        """First rows of the blocks that came."""
        return sorted(int(path.name) for path in self._files)

    @property
    def _files(self) -> list[Path]:
        return sorted(p for p in self.folder.glob("*") if p.name.isdecimal())

    def receive(self, start: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep one block, if it is what was agreed on."""
        named = self.terms.features.queries[start : start + self.terms.block]
        if start % self.terms.block or not named:
            raise RefusalError(f"no block of queries begins at {start}")
        found = _queries(named, arrays, self.shape())
        for (name, content), here in zip(named, found.contents, strict=True):
            if content != here:
                raise RefusalError(
                    f"query {name!r} has other content than was agreed on; an id is released once"
                )
        if fingerprints(found.arrays.images) != self.terms.images[start : start + len(named)]:
            raise RefusalError("these images are not those whose digests were agreed on")
        self.folder.mkdir(exist_ok=True)
        kept = Message({}, {name: arrays[name] for name in _PARTS})
        replace_file(self.folder / f"{start:08d}", kept.to_bytes())
        fsync_folder(self.folder)

    def all(self) -> Queries:
        """All queries, once every block came."""
        if self._all is None:
            count, block = len(self.terms.features.queries), self.terms.block
            missing = set(range(0, count, block)) - set(self.there)
            if missing:
                raise RefusalError(f"the queries from {min(missing)} on did not come yet")
            parts = [Message.from_bytes(path.read_bytes()).arrays for path in self._files]
            arrays = {name: np.concatenate([part[name] for part in parts]) for name in _PARTS}
            found = _queries(self.terms.features.queries, arrays, self.shape())
            if found.contents != tuple(content for _, content in self.terms.features.queries):
                raise RefusalError("queries were changed on this site's disk")
            self._all = found
        return self._all

    def refuse_repeated(self, others: Sequence[Journal]) -> None:
        """Refuse a second view of an image: in this session, or after another that answered.

        Args:
            others: all sessions of the site.
        """
        mine = set(self.terms.images)
        if len(mine) < len(self.terms.images):
            raise RefusalError(
                "an image is there twice under two names; a second view of it is another release, "
                "which this site does not give"
            )
        for other in others:
            if other.folder == self.journal.folder or not other.has_answered:
                continue
            before = mine & set((other.agreed or {}).get("images", ()))
            if before:
                raise RefusalError(
                    f"{len(before)} of these queries were answered in another session; a second "
                    "view of a query is another release, which this site does not give"
                )


def fingerprints(images: NDArray[Any]) -> tuple[str, ...]:
    """SHA-256 of each image, without its truth."""
    return tuple(
        hashlib.sha256(np.ascontiguousarray(each).tobytes()).hexdigest() for each in images
    )


_PARTS = ("images", "masks", "labelled")


def _queries(
    named: tuple[tuple[str, str], ...], arrays: Mapping[str, NDArray[Any]], shape: tuple[int, ...]
) -> Queries:
    """Images with the names that were agreed on; their contents are computed here."""
    try:
        images, masks, labelled = (np.asarray(arrays[name]) for name in _PARTS)
    except KeyError as error:
        raise RefusalError(f"a block of queries lacks its {error}") from error
    fits = images.dtype == masks.dtype == np.uint8 and images.ndim in (4, 5)
    if not fits or not len(images) == len(masks) == len(labelled) == len(named):
        raise RefusalError(f"a block of queries has shape {images.shape} for {len(named)} names")
    wanted = shape or images.shape[1:]
    if images.shape[1:] != wanted or masks.shape[1:] != (1, *wanted[1:]):
        raise RefusalError(
            f"queries have shape {images.shape[1:]}, and this site's teacher takes {wanted}"
        )
    ids = tuple(name for name, _ in named)
    unlabelled = frozenset(name for name, known in zip(ids, labelled, strict=True) if not known)
    return Queries.of(Arrays(ids, images, masks, "received", unlabelled))
