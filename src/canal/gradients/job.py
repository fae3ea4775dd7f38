"""A gradient release across hosts: what an order asks for, and the sites that take part."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from canal.data.overlap import compare
from canal.errors import FederationError
from canal.gradients.plan import AdapterPlan
from canal.gradients.release import mechanism_of, progress_of
from canal.gradients.start import count_parameters, share
from canal.gradients.target_modules import Adapter
from canal.gradients.update import Advice, UpdateSettings
from canal.learning import checkpoint
from canal.release.registry import Job

if TYPE_CHECKING:
    from canal.release.mechanism import Step

_log = logging.getLogger(__name__)


def prepare(order: Any, parties: Any, progress: Callable[[int], None]) -> Job:
    """Hand out the initialisation, and measure what is to be public.

    Args:
        order: what is asked for, a `canal.federation.settings.Order`.
        parties: the sites, as `canal.federation.aggregate.Parties`.
        progress: called with 1 after every round.
    """
    init, out = order.path(order.init), order.path(order.out)
    start = checkpoint.describe(init)
    parties.send_initialisation(init)
    federation = parties.join({"initialisation": start.initialisation, "views": order.views})
    adapter = Adapter.from_json(Adapter().to_json() | order.adapter)
    plan = make_plan(
        order, parties, count_parameters(init, adapter), adapter, len(federation.cohorts)
    )
    shared = share(
        *(init, parties.images(start), adapter, plan.allocation),
        directions=plan.directions,
        update=UpdateSettings(**order.update),
        quantile=order.quantile,
        views=order.views,
        chunk=order.chunk,
    )
    mechanism = mechanism_of(out, shared, plan, federation.cohorts, seed=parties.seed)
    counted = parties.counted(plan.rounds, progress)

    def report(step: Step) -> None:
        here = progress_of(mechanism, step)
        spent = "" if here.epsilon is None else f", epsilon {here.epsilon:.3g} spent"
        _log.info("round %d of %d%s", here.number, here.rounds, spent)
        counted(1)

    overlap = compare(None, shared.start.asked, shared.start.trained_on)
    return Job(mechanism, federation, overlap, report)


def make_plan(
    order: Any, parties: Any, parameters: int, adapter: Adapter, sites: int
) -> AdapterPlan:
    """The plan that an order asks for; as many dimensions as suit the noise."""
    for needed in ("epsilon", "patients"):
        if needed not in order.plan:
            raise FederationError(
                f"[plan] lacks {needed}; how many patients there are is stated in public, or "
                "counted (count, a share of the budget) up to a number that is"
            )
    choices = parties.choices(parameters=parameters, blocks=1, sites=sites, adapter=adapter)
    plan = AdapterPlan(**choices)
    if "directions" in order.plan:
        return plan
    return replace(plan, directions=Advice().directions(plan))
