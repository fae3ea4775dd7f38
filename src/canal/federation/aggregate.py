"""A release across sites: hand out the initialisation, have teachers trained, make it, publish it.

Stopped anywhere, the same order goes on: what the sites said they say again, word for word, and
nobody pays twice.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.data.overlap import compare, contents, digests
from canal.errors import FederationError
from canal.features.plan import Plan
from canal.features.release import Options
from canal.federation.message import Message
from canal.federation.remote import RemoteSites, ask
from canal.federation.remote_cohorts import RemoteCohorts
from canal.federation.settings import Order
from canal.files import fsync_folder, replace_file
from canal.gradients.adapter import Adapter
from canal.gradients.advice import Advice
from canal.gradients.plan import ADAPTERS, AdapterPlan
from canal.gradients.update import UpdateSettings
from canal.learning import checkpoint
from canal.learning.checkpoint import DESCRIPTION, WEIGHTS
from canal.privacy.units import Participants
from canal.release.mechanism import Step, digest
from canal.release.publish import publish
from canal.release.workspace import Workspace

if TYPE_CHECKING:
    from canal.features.queries import Queries
    from canal.features.store import Release
    from canal.federation.transport import Transport
    from canal.gradients.store import AdapterRelease

PROGRESS = "progress.json"
_log = logging.getLogger(__name__)


def run(
    order: Path | Order,
    transport: Transport,
    progress: Callable[[int], None] = lambda count: None,
) -> Release | AdapterRelease:
    """Carry out an order.

    Args:
        order: what is asked for.
        transport: to the sites.
        progress: called with the number of images that passed through a network, or of rounds.
    """
    order = Order.read(order) if isinstance(order, Path) else order
    carry_out = teach if order.release == ADAPTERS else ask_about
    return carry_out(order, transport, progress)


def teach(
    order: Order, transport: Transport, progress: Callable[[int], None] = lambda count: None
) -> AdapterRelease:
    """Carry out an order for adapters.

    Args:
        order: what is asked for.
        transport: to the sites.
        progress: called with 1 after every round.
    """
    from canal.gradients.release import mechanism_of, progress_of
    from canal.gradients.shared import count_parameters, share
    from canal.gradients.store import AdapterRelease

    init = order.path(order.init)
    start = checkpoint.describe(init)
    hand_out(init, transport)
    adapter = Adapter.from_json(Adapter().to_json() | order.adapter)
    seed = None if order.seed < 0 else order.seed
    cohorts = RemoteCohorts(
        *(transport, session(order), order.trust, start.initialisation),
        views=order.views,
        research=seed is not None,
    )
    plan = make_adapter_plan(order, count_parameters(init, adapter), adapter, len(cohorts.cohorts))
    shared = share(
        *(init, read_queries(order, start).arrays, adapter, plan.allocation),
        directions=plan.directions,
        update=UpdateSettings(**order.update),
        quantile=order.quantile,
        views=order.views,
        chunk=order.chunk,
    )
    told = _told(order, plan.rounds, progress)

    out = order.path(order.out)
    mechanism = mechanism_of(out, shared, plan, cohorts.cohorts, seed=seed)

    def report(step: Step) -> None:
        here = progress_of(mechanism, step)
        spent = "" if here.epsilon is None else f", epsilon {here.epsilon:.3g} spent"
        _log.info("round %d of %d%s", here.number, here.rounds, spent)
        told(1)

    publish(
        *(out, mechanism, cohorts),
        about=order.about,
        overlap=order.recorded(compare(None, shared.start.asked, shared.start.trained_on)),
        report=report,
    )
    return AdapterRelease.open(out)


def make_adapter_plan(order: Order, parameters: int, adapter: Adapter, sites: int) -> AdapterPlan:
    """The plan that an order for adapters asks for; as many directions as suit the noise."""
    fitting: dict[str, Any] = {
        "parameters": parameters,
        "blocks": 1,
        "sites": sites,
        "adapter": adapter,
        "trust": order.trust,
        "colluding": order.colluding if order.trust == "secure-sum" else 0,
    }
    _refuse_fixed(fitting, order)
    for needed in ("epsilon", "patients"):
        if needed not in order.plan:
            raise FederationError(
                f"[plan] lacks {needed}; how many patients there are is stated in public, or "
                "counted (count, a share of the budget) up to a number that is"
            )
    plan = AdapterPlan(**fitting, **order.plan)
    if "directions" in order.plan:
        return plan
    return replace(plan, directions=Advice().directions(plan))


def ask_about(
    order: Order, transport: Transport, progress: Callable[[int], None] = lambda count: None
) -> Release:
    """Carry out an order for features of queries.

    Args:
        order: what is asked for.
        transport: to the sites.
        progress: called with the number of images that passed through a network.
    """
    from canal.features.release import mechanism_of, passes
    from canal.features.store import Release
    from canal.learning.networks import Tap
    from canal.learning.teacher import trained_on

    init = order.path(order.init)
    network, start = checkpoint.load(init)
    shared = Tap(network, start.tap)
    if order.train:
        hand_out(init, transport)
        wait_for_teachers(start.initialisation, transport, order.wait)
    queries = read_queries(order, start)
    options = Options(progress=progress)
    seed = None if order.seed < 0 else order.seed
    sites = RemoteSites(
        *(transport, session(order), order.trust, shared, queries, options),
        research=seed is not None,
    )
    if sites.initialisation != start.initialisation:
        raise FederationError("the sites' teachers started from another initialisation than ours")
    plan = make_plan(order, sites, queries)
    options = sites.options = replace(options, progress=_told(order, passes(plan), progress))
    _log.info("%d sites, %d queries, %s", len(sites.cohorts), len(queries.ids), order.trust)
    out = order.path(order.out)
    publish(
        *(out, mechanism_of(plan, sites, queries, seed=seed, options=options), sites),
        about=order.about,
        overlap=order.recorded(
            compare(None, frozenset(digests(queries.arrays)), contents(trained_on(init)))
        ),
    )
    return Release.open(out)


def hand_out(init: Path, transport: Transport) -> None:
    """Send every site the initialisation; it is public."""
    weights = np.frombuffer((init / WEIGHTS).read_bytes(), dtype=np.uint8)
    head = {
        "kind": "initialise",
        "initialisation": checkpoint.describe(init).initialisation,
        "description": (init / DESCRIPTION).read_text(),
    }
    ask(transport, Message(head, {"weights": weights}))


def wait_for_teachers(initialisation: str, transport: Transport, pause: float) -> None:
    """Have every site train its teacher, where it has none yet."""
    question = Message({"kind": "train", "initialisation": initialisation})
    while True:
        states = {name: answer.head["state"] for name, answer in ask(transport, question).items()}
        failed = sorted(name for name, state in states.items() if state == "failed")
        if failed:
            raise FederationError(f"training failed at {', '.join(failed)}; its log says why")
        if set(states.values()) == {"ready"}:
            return
        _log.info("training: %s", states)
        time.sleep(pause)


def read_queries(order: Order, start: checkpoint.Checkpoint) -> Queries:
    """The recipient's images, as large as the network wants them."""
    from canal.data.load import load
    from canal.features.queries import Queries

    return Queries.of(
        load(
            order.path(order.queries),
            size=start.size[0],
            split=order.path(order.split) if order.split else None,
            part=order.part,
            channels=int(start.architecture["in_channels"]),
            unlabelled=True,
            accept=order.accept,
        )
    )


def make_plan(order: Order, sites: RemoteSites, queries: Queries) -> Plan:
    """The plan that an order asks for."""
    images = queries.arrays.images
    channels, grid = sites.shape(images.shape[1], images.shape[2:])
    people = Participants(len(sites.cohorts), len(queries.ids), len(queries.ids))
    fitting = {
        "participants": people,
        "channels": channels,
        "grid": grid,
        "trained_initialisation": sites.trained_initialisation,
        "trust": order.trust,
        "colluding": order.colluding if order.trust == "secure-sum" else 0,
    }
    _refuse_fixed(fitting, order)
    plan = Plan.preset(order.preset, **fitting, **order.plan)
    most = queries.most_of_one_person(plan.unit, order.images_per_person or None)
    return replace(plan, participants=replace(people, images_per_person=most))


def _refuse_fixed(fitting: Mapping[str, Any], order: Order) -> None:
    fixed = sorted(fitting.keys() & order.plan.keys())
    if fixed:
        raise FederationError(
            f"[plan] cannot set {', '.join(fixed)}: sites, queries and networks say what it is"
        )


def _told(order: Order, total: int, progress: Callable[[int], None]) -> Callable[[int], None]:
    """Counts as told, and leaves a note of it in the private folder, twice a second at most."""
    path = Workspace(order.path(order.out)).private / PROGRESS
    done, told = 0, 0.0

    def count(more: int) -> None:
        nonlocal done, told
        done += more
        progress(more)
        if time.monotonic() > told + 0.5:
            replace_file(path, json.dumps({"done": done, "of": total}).encode())
            told = time.monotonic()

    return count


def how_far(out: Path) -> tuple[int, int]:
    """Images that passed through networks for the release that is being made, and of how many."""
    try:
        noted = json.loads((Workspace(out).private / PROGRESS).read_text())
        return int(noted["done"]), int(noted["of"])
    except (OSError, ValueError, LookupError):
        return 0, 0


def session(order: Order) -> str:
    """The name of the session that carries an order out: the one that is kept, or a new one.

    What was not begun under one order may be ordered otherwise, in the same place; that is another
    session then.
    """
    private = Workspace(order.path(order.out)).private
    what = asdict(order) | {"folder": str(order.folder)}
    for unasked in ("wait", "train"):
        del what[unasked]
    path, about = private / "session", digest(what).hex()
    begun = (private / "claim.json").is_file()
    if path.is_file():
        name, _, of = path.read_text().partition(" ")
        if begun or of == about:
            return name
    name = secrets.token_hex(16)
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, f"{name} {about}".encode())
    fsync_folder(private)
    return name
