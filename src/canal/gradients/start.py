"""Where the rounds begin: the shared network, and what was measured on the recipient's images.

All of it is public. Measured again with other threads or on another machine, these numbers differ
in their last bits, so they are kept beside the release, and a run that was stopped goes on with
the numbers that it was paid for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.data.overlap import Contents, contents, digests
from canal.errors import DataError, InvalidValueError
from canal.files import replace_file
from canal.gradients.gradients import Gradients, Signs, check_rows
from canal.gradients.patients import CHUNK, Patients
from canal.gradients.public import Public, measure
from canal.gradients.subspace import Basis, Moments, read_basis, write_basis
from canal.gradients.target_modules import Adapter, Coordinates
from canal.gradients.update import UpdateSettings
from canal.learning.teacher import load_initialisation, trained_on
from canal.release.manifest import Manifest
from canal.release.mechanism import digest
from canal.release.workspace import Workspace

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.data.arrays import Arrays
    from canal.gradients.plan import Allocation
    from canal.release.workspace import Workspace


# How often each public image is looked at, differently augmented each time.
LOOKS = 8
# What nobody needs, and no reader of a manifest has to wait for.
_MOST_CHUNK, _MOST_LOOKS = 4096, 64


@dataclass(frozen=True)
class Measured:
    """What public numbers were measured with; all of it public, so that anyone can do it again.

    Args:
        initialisation: digest of the whole network.
        images: digest of the recipient's images.
        adapter: which parameters, as plain values.
        allocation: how noise is to be spread.
        directions: of the basis, at most.
        power: by which they are scaled.
        quantile: of the norms, at which patients are clipped.
        views: of an image in a round; 0 for the image as it is.
        chunk: images a pass.
        looks: at every image, each varied another way.
    """

    initialisation: str
    images: str
    adapter: dict[str, Any]
    allocation: str
    directions: int
    power: float
    quantile: float
    views: int
    chunk: int
    looks: int = LOOKS

    def __post_init__(self) -> None:
        if not 0 < self.quantile <= 1:
            raise InvalidValueError(f"quantile = {self.quantile!r} must be above 0, and at most 1")
        for name, most in (("chunk", _MOST_CHUNK), ("looks", _MOST_LOOKS)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise InvalidValueError(
                    f"{name} = {value!r} must be a whole number from 1 to {most}"
                )

    @property
    def digest(self) -> str:
        """SHA-256 of everything."""
        return digest(astuple(self)).hex()

    def to_json(self) -> dict[str, Any]:
        """What a manifest does not say anyway, as plain values."""
        return {name: getattr(self, name) for name in _SAID}

    @classmethod
    def of(cls, manifest: Manifest) -> Measured:
        """What a manifest says that its public numbers were measured with.

        An older one says less; then this is what nobody had to ask for, of images that it does not
        name.
        """
        plan, public = manifest.plan, manifest.statistics
        said = {"images": "", "quantile": 0.5, "chunk": CHUNK, "directions": plan["directions"]}
        return cls(
            initialisation=str(manifest.participants["initialisation"]),
            adapter=plan["adapter"],
            allocation=plan["allocation"],
            power=public["update"]["power"],
            views=manifest.participants["views"],
            **said | public.get("measured", {}),
        )


_SAID = ("images", "directions", "quantile", "chunk", "looks")


@dataclass(frozen=True)
class Start:
    """Where rounds begin; all of it public.

    Args:
        values: of the adapter's parameters, `[d]`.
        initialisation: digest of the whole network.
        public: scales and bounds.
        update: how the next network follows from a sum.
        views: of an image in a round, each varied another way; 0 for the image as it is.
        measured: what the public numbers were measured with, where that is known.
        asked: digests of the recipient's images that they were measured on; None if unknown.
        trained_on: digests of what the initialisation was trained on; None if unknown.
    """

    values: Tensor
    initialisation: str
    public: Public
    update: UpdateSettings
    views: int = 1
    measured: Measured | None = None
    asked: Contents | None = None
    trained_on: Contents | None = None


def settled(workspace: Workspace, start: Start) -> Start:
    """The start of an earlier run in this place that measured the same; else this one, kept.

    Measured again with other threads or on another machine, public numbers differ in their last
    bits, and a release that was paid for could not be finished.
    """
    if start.measured is None:
        return start
    measured = start.measured.digest
    kept = found_in(workspace, measured, start.public.channels)
    if kept is None:
        path = _place(workspace, measured)
        workspace.private.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if start.public.basis is not None:
            write_basis(path.parent, start.public.basis)
        replace_file(path, json.dumps(start.public.to_json()).encode())
        kept = found_in(workspace, measured, start.public.channels)
    return start if kept is None else replace(start, public=kept)


def found_in(workspace: Workspace, measured: str, channels: NDArray[np.int64]) -> Public | None:
    """What an earlier run in this place measured, if it did.

    Args:
        workspace: of the release.
        measured: digest of all that it was measured with.
        channels: of every parameter.
    """
    path = _place(workspace, measured)
    if not path.is_file():
        return None
    values = json.loads(path.read_bytes())
    basis = read_basis(path.parent) if values["basis"] else None
    return Public.from_json(values, channels, basis)


def _place(workspace: Workspace, measured: str) -> Path:
    return workspace.private / "public" / measured[:16] / "public.json"


# Allocations that look where noise harms.
BENDING = ("ellipsoid", "channels")


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
    measured = Measured(
        initialisation=about.initialisation,
        images=asked.digest,
        adapter=adapter.to_json(),
        allocation=allocation,
        directions=directions,
        power=update.power,
        quantile=quantile,
        views=views,
        chunk=chunk,
    )
    public = None if kept is None else found_in(kept, measured.digest, coordinates.groups)
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
    looks: int = LOOKS,
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
        looks: at every image, where views vary it.
        progress: called with the number of images that passed, and how many will in all.
    """
    told = PublicGradients(network, coordinates, asked, views, chunk, looks)
    bends = allocation in BENDING
    total = told.passes * (1 + bool(directions) + bends)
    told = replace(told, progress=lambda count: progress(count, total))
    basis: Basis | None = None
    if directions:
        told.keep_apart()
        basis = told.moments().basis(directions, power=power)
    told.keep_apart(basis)
    return told.measure(allocation, quantile, basis)


@dataclass(frozen=True, eq=False)
class PublicGradients:
    """The gradients of the recipient's images, and what is measured on them; all of it public.

    Args:
        network: with the adapter installed.
        coordinates: of the adapter.
        asked: the recipient's images.
        views: of an image, as in the rounds.
        chunk: images a pass.
        looks: at every image, where views vary it.
        progress: called with the number of images that passed.
    """

    network: nn.Module
    coordinates: Coordinates
    asked: Arrays
    views: int
    chunk: int
    looks: int = LOOKS
    progress: Callable[[int], None] = lambda count: None

    def __post_init__(self) -> None:
        if not self.asked.labelled.any():
            raise DataError("none of the recipient's images has a label; label a few of them")

    @cached_property
    def _people(self) -> Patients:
        return Patients("recipient", self.asked, views=self.views, chunk=self.chunk)

    @property
    def _looks(self) -> range:
        return range(self.looks if self.views else 1)

    @property
    def passes(self) -> int:
        """Images that pass through the network for one measurement."""
        return self._people.passes * len(self._looks)

    def keep_apart(self, basis: Basis | None = None) -> None:
        """Refuse a machine on which an image's gradient depends on those beside it."""
        rows = [row for rows in self._people.rows.values() for row in rows]
        looks = [(row, 0) for row in np.resize(rows, self.chunk).tolist()]
        check_rows(self._gradients(basis), *self._people.batch(looks, 0))

    def moments(self) -> Moments:
        """Second moments, from which a basis follows."""
        moments = Moments(self.coordinates.shapes)
        for part in self._rows(self._gradients(None)):
            moments.add(part)
        return moments

    def measure(self, allocation: Allocation, quantile: float, basis: Basis | None) -> Public:
        """Scales, bounds and weights.

        Args:
            allocation: how noise is to be spread.
            quantile: of the norms, at which patients are clipped.
            basis: in which gradients are taken.
        """
        names, curvature = self.coordinates.names, None
        if allocation in BENDING:
            curvature = self._rows(Gradients(self.network, names, Signs(), basis))
        return measure(
            self._rows(self._gradients(basis)),
            *(self.coordinates.groups, allocation),
            curvature=curvature,
            quantile=quantile,
            basis=basis,
        )

    def _gradients(self, basis: Basis | None) -> Gradients:
        return Gradients(self.network, self.coordinates.names, basis=basis)

    def _rows(self, gradients: Gradients) -> Iterator[Tensor]:
        for each in self._looks:
            yield from self._people.gradients(gradients, each, self.progress)
