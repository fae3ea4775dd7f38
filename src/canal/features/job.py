"""A feature release across hosts: what an order asks for, and the sites that take part."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from canal.data.overlap import compare, contents, digests
from canal.errors import FederationError
from canal.features.plan import Plan
from canal.features.queries import Queries
from canal.features.release import Options, mechanism_of, passes
from canal.learning import checkpoint
from canal.learning.networks import Tap
from canal.learning.teacher import trained_on
from canal.privacy.units import Participants
from canal.release.registry import Job

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteTeachers:
    """The teachers of sites that are elsewhere, as they introduced themselves.

    Args:
        federation: the sites.
        shared: the initialisation that all teachers started from.
    """

    federation: Any
    shared: Tap | None

    @property
    def cohorts(self) -> tuple[str, ...]:
        """Names of the sites' cohorts."""
        cohorts: tuple[str, ...] = self.federation.cohorts
        return cohorts

    @property
    def initialisation(self) -> str:
        """Digest of the weights that all teachers started from."""
        return str(self.federation.common("initialisation"))

    @property
    def trained_initialisation(self) -> bool:
        """Whether those were, or may have been, trained on the recipient's images."""
        return bool(self.federation.common("trained_initialisation"))

    @property
    def layer(self) -> str:
        """The layer that is tapped."""
        return str(self.federation.common("layer"))

    def shape(self, channels: int, size: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """C and grid of the bottleneck, as the initialisation has them."""
        import torch

        assert self.shared is not None  # noqa: S101  # an aggregator always has it
        features = self.shared.features(torch.zeros(1, channels, *size))
        first, *grid = features.shape[1:]
        return int(first), tuple(grid)


def prepare(order: Any, parties: Any, progress: Callable[[int], None]) -> Job:
    """Have teachers trained where there are none, and make the plan that an order asks for.

    Args:
        order: what is asked for, a `canal.federation.settings.Order`.
        parties: the sites, as `canal.federation.aggregate.Parties`.
        progress: called with the number of images that passed through a network.
    """
    init = order.path(order.init)
    network, start = checkpoint.load(init)
    if order.train:
        parties.send_initialisation(init)
        parties.train_teachers(start.initialisation)
    queries = Queries.of(parties.images(start))
    federation = parties.join()
    teachers = RemoteTeachers(federation, Tap(network, start.tap))
    if teachers.initialisation != start.initialisation:
        raise FederationError("the sites' teachers started from another initialisation than ours")
    plan = make_plan(order, parties, teachers, queries)
    options = Options(progress=parties.counted(passes(plan), progress))
    _log.info("%d sites, %d queries, %s", len(teachers.cohorts), len(queries.ids), order.trust)
    return Job(
        mechanism_of(plan, teachers, queries, seed=parties.seed, options=options),
        federation,
        compare(None, frozenset(digests(queries.arrays)), contents(trained_on(init))),
    )


def make_plan(order: Any, parties: Any, teachers: RemoteTeachers, queries: Queries) -> Plan:
    """The plan that an order asks for."""
    images = queries.arrays.images
    channels, grid = teachers.shape(images.shape[1], images.shape[2:])
    people = Participants(len(teachers.cohorts), len(queries.ids), len(queries.ids))
    choices: dict[str, Any] = parties.choices(
        participants=people,
        channels=channels,
        grid=grid,
        trained_initialisation=teachers.trained_initialisation,
    )
    plan = Plan.preset(order.preset, **choices)
    most = queries.most_of_one_person(plan.unit, order.images_per_person or None)
    return replace(plan, participants=replace(people, images_per_person=most))
