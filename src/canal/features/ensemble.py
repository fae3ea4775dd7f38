"""The teachers of one release: one a site, of one architecture and one shared initialisation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from canal.data import overlap
from canal.errors import CheckpointError, ReleaseError
from canal.features.plan import Plan
from canal.features.queries import Queries
from canal.learning import checkpoint
from canal.learning.networks import Tap, weights_digest
from canal.learning.teacher import is_random, load_initialisation, trained_on
from canal.privacy.units import Participants


@dataclass(frozen=True)
class Teacher:
    """One site's network.

    Args:
        cohort: name of the site's training cohort, in the ledger too; public.
        tap: the network and the layer that is released; private.
        digest: of the weights. Training can be repeated to the bit, so this would tell who was in
            the cohort: it never leaves the aggregator.
        patients: the digests of the images of each patient of the cohort, as training kept them;
            private, and never published. None if nobody knows them.
    """

    cohort: str
    tap: Tap
    digest: str
    patients: tuple[frozenset[str], ...] | None = None

    @property
    def claim(self) -> list[str]:
        """What determines its features: weights, network and layer; private."""
        return [self.cohort, self.digest, self.tap.layer, _structure(self.tap)]

    @property
    def people(self) -> tuple[frozenset[str], ...] | None:
        """The content digests of every patient's images, where they are known; private."""
        return self.patients


@dataclass(frozen=True)
class Ensemble:
    """All that speak on a query.

    Args:
        teachers: at least one, of different cohorts.
        initialisation: digest of the weights that all of them started from; public.
        shared: that initialisation itself, where public statistics are wanted.
        trained_initialisation: whether it was trained on the recipient's images; if nobody knows,
            it was.
        trained_on: digests of the images that it was trained on, as it came with them; public. None
            if nobody knows them.
        images: shape `(channels, *size)` of the images that all are made for, where that is known.
    """

    teachers: tuple[Teacher, ...]
    initialisation: str
    shared: Tap | None = None
    trained_initialisation: bool = True
    trained_on: overlap.Contents | None = None
    images: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.teachers:
            raise ReleaseError("a release needs at least one teacher")
        if len(set(self.cohorts)) < len(self.teachers):
            raise ReleaseError(
                "two teachers share the name of the cohort: a patient of that cohort would count "
                "twice; give one teacher for each site"
            )
        if self.shared is not None and weights_digest(self.shared.network) != self.initialisation:
            raise ReleaseError(
                "the network for public statistics is not the initialisation that the teachers "
                "started from; what is read from it is published without noise"
            )

    @property
    def alike(self) -> tuple[tuple[str, str], ...]:
        """Teachers that have the same weights, or those of the initialisation; by cohort.

        Such a teacher may have been given twice, so that its patients count twice, or in place of
        the initialisation, so that it is published without noise. But what weights a teacher has
        can hang on one patient, and so would whether there is a release: the operator is told, and
        the release is made.
        """
        known = [(t.cohort, t.digest) for t in self.teachers]
        known.append(("the initialisation", self.initialisation))
        return tuple((a, b) for (a, one), (b, other) in combinations(known, 2) if one == other)

    @property
    def layer(self) -> str:
        """The layer that is tapped."""
        return self.teachers[0].tap.layer

    def compare(self, queries: Queries) -> dict[str, str]:
        """Refuse an image that is in two cohorts, or in one and public; say what was compared."""
        return overlap.compare(
            {teacher.cohort: overlap.contents(teacher.patients) for teacher in self.teachers},
            frozenset(overlap.digests(queries.arrays)),
            self.trained_on if self.trained_initialisation else frozenset(),
        )

    @property
    def cohorts(self) -> tuple[str, ...]:
        """Names of the sites' cohorts."""
        return tuple(teacher.cohort for teacher in self.teachers)

    def plan(
        self,
        queries: Queries,
        preset: str = "honest",
        *,
        images_per_person: int | None = None,
        **choices: Any,
    ) -> Plan:
        """A plan that fits these teachers and queries.

        Args:
            queries: the recipient's images.
            preset: `honest` or `paper`.
            images_per_person: the most queries that show one person; None for what their records
                say.
            choices: arguments of `Plan`, such as epsilon; they win over the preset.
        """
        images = queries.arrays.images
        channels, grid = self.shape(images.shape[1], images.shape[2:])
        people = Participants(len(self.teachers), len(queries.ids), len(queries.ids))
        fitting = {
            "participants": people,
            "channels": channels,
            "grid": grid,
            "trained_initialisation": self.trained_initialisation,
        }
        plan = Plan.preset(preset, **(fitting | choices))
        if plan.participants is not people:
            return plan
        most = queries.most_of_one_person(plan.unit, images_per_person)
        return replace(plan, participants=replace(people, images_per_person=most))

    def shape(self, channels: int, size: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """C and grid of the bottleneck for images of this size; learned from a blank one."""
        import torch

        shapes = {
            tuple(teacher.tap.features(torch.zeros(1, channels, *size)).shape[1:])
            for teacher in self.teachers
        }
        if len(shapes) > 1:
            raise ReleaseError(
                f"the teachers' features have different shapes {sorted(shapes)}; all sites use one "
                "architecture"
            )
        first, *grid = shapes.pop()
        return first, tuple(grid)


def _structure(tap: Tap) -> str:
    """Digest of what a network is beside its weights: two norms may have the same ones."""
    return hashlib.sha256(repr(tap.network).encode()).hexdigest()


def load_ensemble(teachers: Sequence[Path | str], init: Path | str | None = None) -> Ensemble:
    """Read teachers from their checkpoints, and see that they belong together.

    Args:
        teachers: folders.
        init: folder of the shared initialisation, where public statistics are wanted.
    """
    made, descriptions = [], []
    folders = [Path(folder) for folder in teachers]
    for folder in folders:
        # One that diverged says nothing of any query; whether it did is for no reader to know.
        network, description = checkpoint.load(folder, finite=False)
        if description.notes.get("role") == "initialisation":
            raise CheckpointError(f"{folder} is an initialisation, not a teacher; train one first")
        name = str(description.notes.get("site") or folder.resolve().name)
        patients = overlap.read(folder)
        made.append(Teacher(name, Tap(network, description.tap), weights_digest(network), patients))
        descriptions.append(description)
    shared, seen = None, None
    if init is not None:
        init = Path(init)
        seen = overlap.contents(trained_on(init))
        network, start = load_initialisation(init)
        shared = Tap(network, start.tap)
        descriptions.append(start)
        folders.append(init)
    common = descriptions[0]
    for folder, other in zip(folders, descriptions, strict=True):
        for what in ("initialisation", "architecture", "tap", "size"):
            if getattr(other, what) != getattr(common, what):
                raise CheckpointError(
                    f"{folder} and {folders[0]} differ in their {what}; teachers can be averaged "
                    "only when all start from one `canal init`"
                )
    cohorts = [other.data for other in descriptions[: len(made)] if other.data]
    if len(set(cohorts)) < len(cohorts):
        raise ReleaseError(
            "two teachers were trained on the same images: a patient would count twice; give one "
            "teacher for each site"
        )
    trained = any(
        bool(other.notes.get("trained_initialisation", other.notes.get("trained", True)))
        for other in descriptions
    )
    if init is not None and not start.notes.get("trained", True):
        trained = trained or not is_random(start)
    images = (int(common.architecture["in_channels"]), *common.size)
    if not trained:
        seen = frozenset()
    return Ensemble(tuple(made), common.initialisation, shared, trained, seen, images)
