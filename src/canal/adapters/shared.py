"""The shared network with its adapter: what every round starts from, measured on public images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from canal.adapters.adapter import Adapter, Coordinates
from canal.adapters.basis import Basis
from canal.adapters.curvature import Signs
from canal.adapters.gradients import Gradients
from canal.adapters.machine import check_rows
from canal.adapters.moments import Moments
from canal.adapters.patients import CHUNK, Patients
from canal.adapters.public import Public, measure
from canal.adapters.start import Start, found_in
from canal.adapters.update import UpdateSettings
from canal.data.overlap import contents, digests
from canal.errors import DataError, InvalidValueError
from canal.release.agreement import digest
from canal.teachers.run import load_initialisation, trained_on

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.adapters.plan import Allocation
    from canal.data.cache import Arrays
    from canal.release.workspace import Workspace

# How often each public image is looked at, differently augmented each time.
_LOOKS = 8


@dataclass(frozen=True)
class Shared:
    """A network that rounds can start from.

    Args:
        network: with the adapter installed.
        coordinates: of the adapter.
        start: where the rounds begin.
    """

    network: nn.Module
    coordinates: Coordinates
    start: Start


def count_parameters(init: Path, adapter: Adapter) -> int:
    """How many parameters of an initialisation an adapter has, without measuring anything."""
    return len(adapter.install(load_initialisation(init)[0]))


def share(
    init: Path,
    asked: Arrays,
    adapter: Adapter,
    allocation: Allocation,
    *,
    update: UpdateSettings | None = None,
    directions: int = 0,
    quantile: float = 0.5,
    views: int = 1,
    chunk: int = CHUNK,
    kept: Workspace | None = None,
    progress: Callable[[int, int], None] = lambda count, total: None,
) -> Shared:
    """Load the shared initialisation, install the adapter, and measure what is to be public.

    Args:
        init: folder of the initialisation.
        asked: the recipient's images; public.
        adapter: which parameters are taught.
        allocation: how noise is to be spread.
        update: how the next network follows from a sum.
        directions: of a public basis that gradients are projected on, at most; 0 for none.
        quantile: of the norms of the recipient's images, at which patients are clipped.
        views: of an image in a round, each varied another way; 0 for the image as it is.
        chunk: images a pass.
        kept: of a release; what an earlier run measured for it is not measured again.
        progress: called with the number of images that passed, and how many will in all.
    """
    update = UpdateSettings() if update is None else update
    network, about = load_initialisation(init)
    coordinates = adapter.install(network)
    about_all = [
        *(about.initialisation, asked.digest, adapter.to_json()),
        *(allocation, directions, update.power, quantile, views, chunk),
    ]
    measured = digest(about_all).hex()
    public = None if kept is None else found_in(kept, measured, coordinates.groups)
    if public is None:
        public = look(
            *(network, coordinates, asked, allocation),
            directions=directions,
            power=update.power,
            quantile=quantile,
            views=views,
            chunk=chunk,
            progress=progress,
        )
    start = Start(
        *(coordinates.read(), about.initialisation, public, update, views, measured),
        *(frozenset(digests(asked)), contents(trained_on(init))),
    )
    return Shared(network, coordinates, start)


def look(
    network: nn.Module,
    coordinates: Coordinates,
    asked: Arrays,
    allocation: Allocation,
    *,
    directions: int,
    power: float,
    quantile: float,
    views: int,
    chunk: int,
    progress: Callable[[int, int], None] = lambda count, total: None,
) -> Public:
    """Measure scales and bounds on the recipient's images, once rows were seen to be independent.

    Args:
        network: with the adapter installed.
        coordinates: of the adapter.
        asked: the recipient's images; public.
        allocation: how noise is to be spread.
        directions: of the basis; 0 for none.
        power: by which they are scaled.
        quantile: of the norms, at which patients are clipped.
        views: of an image, as in the rounds.
        chunk: images a pass.
        progress: called with the number of images that passed, and how many will in all.
    """
    if not 0 < quantile <= 1:
        raise InvalidValueError(f"quantile = {quantile!r} must be above 0, and at most 1")
    if not asked.labelled.any():
        raise DataError("none of the recipient's images has a label; label a few of them")
    people = Patients("recipient", asked, views=views, chunk=chunk)
    rows = [row for rows in people.rows.values() for row in rows]
    batch = people.batch([(row, 0) for row in np.resize(rows, chunk).tolist()], 0)
    looks = range(_LOOKS if views else 1)
    bends = allocation in ("ellipsoid", "channels")
    total = people.passes * len(looks) * (1 + bool(directions) + bends)

    def tell(count: int) -> None:
        progress(count, total)

    def passed(gradients: Gradients) -> Iterator[Tensor]:
        return (part for each in looks for part in people.gradients(gradients, each, tell))

    def seen(gradients: Gradients) -> Iterator[Tensor]:
        check_rows(gradients, *batch)
        return passed(gradients)

    basis: Basis | None = None
    if directions:
        moments = Moments(coordinates.shapes)
        for part in seen(Gradients(network, coordinates.names)):
            moments.add(part)
        basis = moments.basis(directions, power=power)
    curvature = None
    if bends:
        curvature = passed(Gradients(network, coordinates.names, Signs(), basis))
    return measure(
        seen(Gradients(network, coordinates.names, basis=basis)),
        *(coordinates.groups, allocation),
        curvature=curvature,
        quantile=quantile,
        basis=basis,
    )
