"""A gradient release as its reader sees it: noisy sums, and the network that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import InvalidValueError, MismatchError, ReleaseError
from canal.gradients.mechanism import PatientSum
from canal.gradients.plan import ADAPTERS, TENSOR, AdapterPlan
from canal.gradients.public import Public
from canal.gradients.subspace import BASIS, digest, read_basis
from canal.gradients.target_modules import Coordinates, merge
from canal.gradients.update import Trajectory, UpdateSettings
from canal.learning import checkpoint
from canal.learning.checkpoint import Checkpoint
from canal.learning.networks import weights_digest
from canal.learning.runs import RunFolder
from canal.release.checks import not_the_digest
from canal.release.manifest import Manifest
from canal.release.mechanism import Integers
from canal.release.store import Folder
from canal.release.verification import check_contents

if TYPE_CHECKING:
    from torch import nn


class AdapterRelease(Folder):
    """Noisy sums of all rounds.

    Args:
        path: the folder.
        manifest: of the same.
    """

    kind = ADAPTERS
    tensor, dtype = TENSOR, np.int32
    shards_are = rows_are = "rounds"
    plan: AdapterPlan

    def read(self, manifest: Manifest) -> None:
        """See `Folder`."""
        self.plan = AdapterPlan.from_json(manifest.plan)
        self.settings = UpdateSettings.from_json(manifest.statistics["update"])
        self.patients = float(manifest.statistics["patients"])
        if any(entry["rows"] != 1 for entry in manifest.shards):
            raise ValueError("a round has other rows than one")

    def __len__(self) -> int:
        return len(self.manifest.shards)

    @property
    def paid_for(self) -> int:
        """See `Folder`."""
        return self.plan.rounds

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Folder`."""
        return (self.plan.coordinates,)

    @property
    def beside(self) -> Mapping[str, Callable[[], str]]:
        """See `Folder`."""
        return {BASIS: self._check_basis} if self.plan.directions else {}

    def _check_basis(self) -> str:
        found, plan = read_basis(self.path), self.plan
        stated, held = self.manifest.statistics["basis"], digest(found)
        if held != stated:
            raise MismatchError(
                f"{BASIS} {not_the_digest('a digest of directions', stated, held)}",
                files={BASIS: {"expected": stated, "found": held}},
            )
        try:
            found.check(plan.directions, plan.parameters)
        except InvalidValueError as error:
            raise ReleaseError(f"{BASIS}: {error}") from error
        return f"{plan.directions} directions of {plan.parameters} parameters"

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
        stored: Integers = self.shard(number)[0]
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


def load_taught(init: Path, release: AdapterRelease) -> tuple[nn.Module, Checkpoint]:
    """The shared initialisation with what the patients taught it, and what it is made for.

    Args:
        init: folder of the initialisation that the rounds started from.
        release: what was published.
    """
    network, start = checkpoint.load(init)
    return release.teach(network), start


def save_taught(folder: Path, init: Path, release: AdapterRelease) -> Checkpoint:
    """Write that network to a folder, once the release was checked; later it is found there.

    Args:
        folder: of the checkpoint.
        init: folder of the initialisation that the rounds started from.
        release: what was published.
    """
    check_contents(release)
    network, start = load_taught(init, release)
    run = RunFolder(folder)
    with run.claim({"init": start.initialisation, "release": release.digest}):
        if run.is_finished:
            return checkpoint.describe(folder)
        notes = {"role": "student", "mode": "applied", "images": 0, "release": release.digest}
        notes |= release.stamp
        description = replace(start, notes=notes)
        run.finish(network, description)
        return description
