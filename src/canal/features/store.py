"""A feature release as its reader sees it: random access to what was answered for every query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import InvalidValueError, ReleaseError
from canal.features.plan import Plan
from canal.release.manifest import Manifest
from canal.release.shard import TENSOR, Stored
from canal.release.store import Folder

if TYPE_CHECKING:
    from torch import Tensor


FEATURES = Plan.kind


class Release(Folder):
    """Features of queries.

    Args:
        path: the folder.
        manifest: of the same.
    """

    kind = FEATURES
    tensor, dtype = TENSOR, np.int16
    shards_are, rows_are = "shards", "queries"
    plan: Plan

    def read(self, manifest: Manifest) -> None:
        """See `Folder`."""
        self.plan = Plan.from_json(manifest.plan)
        numbers = manifest.mechanism
        self.channels: NDArray[np.int64] = np.array(numbers["channels"], dtype=np.int64)
        self.caps: NDArray[np.float64] = np.array(numbers["caps"], dtype=np.float64)
        self.scale: NDArray[np.float64] = np.array(numbers["scale"], dtype=np.float64)
        # In units of the features, as a student meets it.
        with np.errstate(over="ignore"):
            self.sigma: NDArray[np.float64] = self.caps * np.array(numbers["sigma"], np.float64)
        if not all(type(side) is int for side in self.plan.grid):
            raise ValueError("the grid has a side that is no whole number")
        if not self.channels.shape == self.caps.shape == self.scale.shape == self.sigma.shape:
            raise ValueError("not every channel has its cap, its scale and its sigma")
        self._where = {name: (int(at[0]), int(at[1])) for name, at in manifest.rows.items()}

    @property
    def ids(self) -> tuple[str, ...]:
        """Every query, in order."""
        return tuple(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, name: object) -> bool:
        return name in self._where

    @property
    def content(self) -> dict[str, Any]:
        """See `Folder`."""
        return {"queries": len(self), "channels": self.channels.tolist()}

    @property
    def words(self) -> tuple[str, str]:
        """See `Folder`."""
        people = self.plan.participants
        return (
            f"{len(self.channels)} of {self.plan.channels} channels",
            f" of {people.queries} queries from {people.teachers} teachers",
        )

    @property
    def paid_for(self) -> int:
        """See `Folder`."""
        return self.plan.participants.queries

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Folder`."""
        return len(self.channels), *self.plan.grid

    def integers(self, name: str) -> Stored:
        """What is stored for one query, `[M, *grid]`."""
        if name not in self._where:
            raise InvalidValueError(
                f"query {name!r} is not in {self.path}; it holds {len(self)} others"
            )
        number, row = self._where[name]
        try:
            stored: Stored = self.shard(number)[row]
            return stored
        except IndexError as error:
            raise ReleaseError(f"{self.path} has no row {row} in shard {number}") from error

    def features(self, name: str, *, all_channels: bool = False) -> Tensor:
        """The released features of one query.

        Args:
            name: id of the query.
            all_channels: all C channels, zero where nothing was released; else the M released.

        Returns:
            float `[M or C, *grid]`.
        """
        return self.batch([name], all_channels=all_channels)[0]

    def batch(self, names: Sequence[str], *, all_channels: bool = False) -> Tensor:
        """The released features of some queries, in this order; `[B, M or C, *grid]`."""
        import torch

        stored = np.stack([self.integers(name) for name in names])
        scale = torch.from_numpy(self.scale.astype(np.float32))
        found = torch.from_numpy(stored).float()
        found *= scale.reshape(-1, *[1] * len(self.plan.grid))
        if not all_channels:
            return found
        full = torch.zeros(len(found), self.plan.channels, *self.plan.grid)
        full[:, self.channels.tolist()] = found
        return full
