"""Making a feature release: check that plan, teachers and queries fit, then publish."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from canal.errors import ReleaseError
from canal.features.mechanism import FeatureMechanism, FeatureSpec
from canal.features.plan import check_plan
from canal.features.store import Release
from canal.privacy.ledger import Ledger
from canal.release.mechanism import LocalFederation, noise_of
from canal.release.publish import check_protection, publish

if TYPE_CHECKING:
    from canal.features.ensemble import Ensemble
    from canal.features.plan import Plan
    from canal.features.queries import Queries
    from canal.learning.networks import Tap
    from canal.release.record import About

_log = logging.getLogger(__name__)


def _warn_of_alike(one: str, other: str) -> None:
    _log.warning("%s and %s have the same weights; see `Ensemble.alike`", one, other)


@dataclass(frozen=True)
class Options:
    """What can change neither a guarantee nor what is published.

    Args:
        on_broken: told cohort and query where a teacher contributed zero; for the aggregator's
            eyes.
        on_alike: told of teachers that have the same weights; likewise.
        progress: called with the number of images that passed through a network.
        paired: in a research run, the same standard-normal draws for every plan with this seed,
            of statistics and of features, so that the arms of an experiment differ in their sigmas
            alone.
    """

    on_broken: Callable[[str, str], None] = lambda cohort, query: None
    on_alike: Callable[[str, str], None] = _warn_of_alike
    progress: Callable[[int], None] = lambda count: None
    paired: bool = False


class Teachers(Protocol):
    """The teachers of all sites, as far as everybody may know them; here or elsewhere."""

    @property
    def cohorts(self) -> tuple[str, ...]:
        """Names of the sites' cohorts."""

    @property
    def initialisation(self) -> str:
        """Digest of the weights that all teachers started from."""

    @property
    def trained_initialisation(self) -> bool:
        """Whether those were, or may have been, trained on the recipient's images."""

    @property
    def shared(self) -> Tap | None:
        """That initialisation, where public statistics are wanted."""

    @property
    def layer(self) -> str:
        """The layer that is tapped."""

    def shape(self, channels: int, size: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """C and grid of the bottleneck for images of this size."""


def check_fit(plan: Plan, teachers: Teachers, queries: Queries) -> None:
    """Refuse teachers and queries that are not those of the plan."""
    people = plan.participants
    if people.queries != len(queries.ids):
        raise ReleaseError(
            f"the plan is for {people.queries} queries, but there are {len(queries.ids)}"
        )
    if people.images_per_person < queries.images_per_person:
        raise ReleaseError(
            f"the plan counts {people.images_per_person} images of one person, but one person has "
            f"{queries.images_per_person} among the queries; give --images-per-person"
        )
    if teachers.trained_initialisation and not plan.trained_initialisation:
        raise ReleaseError(
            "the shared initialisation was, or may have been, trained on the queries; the plan "
            "must say so (trained_initialisation)"
        )
    if not queries.arrays.labelled.any():
        raise ReleaseError(
            "no query has a label, and importance is the gradient of a loss; label a few of them"
        )
    shape = teachers.shape(queries.arrays.images.shape[1], queries.arrays.images.shape[2:])
    if shape != (plan.channels, plan.grid):
        raise ReleaseError(
            f"the plan is for {plan.channels} channels of {plan.grid}, the teachers have "
            f"{shape[0]} of {shape[1]}"
        )
    if "public" in plan.sources.values() and teachers.shared is None:
        raise ReleaseError(
            "public caps or importance are read from the shared initialisation; give it with "
            "--init, or take --caps-source private and --importance-source private"
        )


def passes(plan: Plan) -> int:
    """How many images pass through networks in all; for progress."""
    people = plan.participants
    networks = people.teachers
    for source, count in (("private", people.teachers), ("public", 1)):
        networks += count if source in plan.sources.values() else 0
    return networks * people.queries


def mechanism_of(
    plan: Plan,
    teachers: Teachers,
    queries: Queries,
    *,
    seed: int | None = None,
    options: Options | None = None,
) -> FeatureMechanism:
    """The mechanism of a plan, once plan, teachers and queries were seen to fit.

    Args:
        plan: what is asked for.
        teachers: of all sites.
        queries: the recipient's images.
        seed: of the noise of a research run.
        options: what cannot change a guarantee.
    """
    options = Options() if options is None else options
    check_plan(plan, teachers.cohorts)
    check_fit(plan, teachers, queries)
    spec = FeatureSpec(
        plan,
        teachers.cohorts,
        teachers.initialisation,
        teachers.layer,
        tuple(zip(queries.ids, queries.contents, strict=True)),
        noise_of(seed, options.paired),
    )
    return FeatureMechanism(spec, queries, teachers.shared, options.on_broken, options.progress)


def create(
    out: Path | str,
    ensemble: Ensemble,
    queries: Queries,
    plan: Plan,
    *,
    ledger: Ledger | Path | str | None = None,
    seed: int | None = None,
    not_private: bool = False,
    about: About | None = None,
    options: Options | None = None,
) -> Release:
    """Make a feature release of teachers in this process, or finish one that was stopped.

    Args:
        out: folder to publish it in.
        ensemble: the teachers; private.
        queries: the recipient's images.
        plan: what is asked for.
        ledger: is charged before anything is read; one that is there already. A research run is
            not charged, but asks whether the ledger forbids it.
        seed: of the noise of a research run, which protects nobody and is not charged.
        not_private: must be said to release without noise (allocation `none`).
        about: what its makers say about the release: purpose, contact.
        options: what cannot change a guarantee.
    """
    options = Options() if options is None else options
    if isinstance(ledger, Path | str):
        ledger = Ledger(ledger, must_exist=True)
    check_protection(plan, ensemble.cohorts, seed=seed, ledger=ledger, not_private=not_private)
    for pair in ensemble.alike:
        options.on_alike(*pair)
    mechanism = mechanism_of(plan, ensemble, queries, seed=seed, options=options)
    made = publish(
        out,
        mechanism,
        LocalFederation(ensemble.teachers),
        ledger=ledger,
        about=about,
        overlap=ensemble.compare(queries),
    )
    return Release.open(made)
