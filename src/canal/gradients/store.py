"""A release of adapters as its reader sees it: noisy sums, and the network they lead to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import ReleaseError
from canal.gradients.adapter import Coordinates, merge
from canal.gradients.basis import read_basis
from canal.gradients.mechanism import PatientSum
from canal.gradients.plan import ADAPTERS, AdapterPlan
from canal.gradients.public import Public
from canal.gradients.update import Trajectory, UpdateSettings
from canal.learning.networks import weights_digest
from canal.release.manifest import Manifest
from canal.release.mechanism import Integers
from canal.release.shard import Shard
from canal.release.store import Folder

if TYPE_CHECKING:
    from torch import nn


class AdapterRelease(Folder):
    """Noisy sums of all rounds.

    Args:
        path: the folder.
        manifest: of the same.
    """

    kind = ADAPTERS
    plan: AdapterPlan

    def __init__(self, path: Path, manifest: Manifest) -> None:
        super().__init__(path, manifest)
        try:
            self.plan = AdapterPlan.from_json(manifest.plan)
            self.settings = UpdateSettings.from_json(manifest.statistics["update"])
            self.patients = float(manifest.statistics["patients"])
            self._shards = tuple(Shard(**entry) for entry in manifest.shards)
            if any(Path(each.file).name != each.file for each in self._shards):
                raise ValueError("a file has a strange name")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ReleaseError(f"{path} has a manifest that contradicts itself: {error}") from error

    def __len__(self) -> int:
        """Rounds."""
        return len(self._shards)

    @property
    def content(self) -> dict[str, Any]:
        """See `Folder`."""
        return {
            "rounds": len(self),
            "parameters": self.plan.parameters,
            "directions": self.plan.directions,
            "patients": self.patients,
            "relation": self.plan.relation,
        }

    @property
    def words(self) -> tuple[str, str]:
        """See `Folder`."""
        plan = self.plan
        within = f"in {plan.directions} directions, " if plan.directions else ""
        patients = f"about {self.patients:.0f}" if plan.count else f"{plan.patients}"
        known = "counted with noise" if plan.count else "as stated"
        return (
            f"{plan.parameters} parameters",
            f" taught {within}in {plan.rounds} rounds by {patients} patients ({known}) of "
            f"{plan.sites} site{'s' * (plan.sites > 1)}",
        )

    def sums(self, number: int) -> Integers:
        """What was published in one round, `[d]` integers."""
        shape = (self.plan.coordinates,)
        stored: Integers = self._shards[number].map(self.path, shape, np.int32)[0]
        return stored

    def public(self, channels: NDArray[np.int64]) -> Public:
        """What was measured on public images, for coordinates of these channels."""
        basis = read_basis(self.path) if self.plan.directions else None
        return Public.from_json(self.manifest.statistics, channels, basis)

    def mechanism(self, coordinates: Coordinates) -> PatientSum:
        """What turned gradients into sums, every number derived again.

        Args:
            coordinates: of the shared initialisation with the adapter installed.
        """
        if len(coordinates) != self.plan.parameters:
            raise ReleaseError(
                f"the release teaches {self.plan.parameters} parameters, and the network has "
                f"{len(coordinates)} of that name; give the initialisation that it started from"
            )
        public = self.public(coordinates.groups)
        return PatientSum.of(self.plan.calibrate(public.weights), public)

    def walk(self, coordinates: Coordinates) -> Iterator[Trajectory]:
        """Where the adapter is before every round, and after the last; one and the same, moved.

        Args:
            coordinates: of the shared initialisation with the adapter installed.
        """
        mechanism = self.mechanism(coordinates)
        course = Trajectory(coordinates.read(), self.settings, self.plan.rounds)
        yield course
        for number in range(len(self)):
            course.move(mechanism.direction(self.sums(number), self.patients))
            yield course

    def trajectory(self, coordinates: Coordinates) -> Trajectory:
        """Every round's step, taken again."""
        *_, course = self.walk(coordinates)
        return course

    def install(self, network: nn.Module) -> Coordinates:
        """Prepare a network, the shared initialisation, for the rounds; in place.

        Args:
            network: with the very weights that the rounds started from.
        """
        if weights_digest(network) != self.initialisation:
            raise ReleaseError(
                "this network is not the initialisation that the release started from; give that"
            )
        return self.plan.adapter.install(network)

    def teach(self, network: nn.Module) -> nn.Module:
        """Give a network, the shared initialisation, what the patients taught it; in place.

        Args:
            network: with the very weights that the rounds started from.
        """
        coordinates = self.install(network)
        coordinates.write(self.trajectory(coordinates).adapter.float())
        merge(network)
        return network
