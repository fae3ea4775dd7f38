"""A release as its reader sees it: a folder, opened once, random access to every query.

Digests are checked before a byte is believed: the manifest's when it is opened, a shard's when it
is first touched. Features are mapped, not loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import InvalidValueError, ReleaseError
from canal.features.plan import Plan
from canal.release.manifest import Manifest
from canal.release.shard import Shard, Stored
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
    plan: Plan

    def __init__(self, path: Path, manifest: Manifest) -> None:
        super().__init__(path, manifest)
        try:
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
            self._shards = tuple(Shard(**entry) for entry in manifest.shards)
            self._where = {name: (int(at[0]), int(at[1])) for name, at in manifest.rows.items()}
            for entry in self._shards:
                if type(entry.rows) is not int or entry.rows < 1:
                    raise ValueError(f"a shard has {entry.rows!r} rows")
                if Path(entry.file).name != entry.file:
                    raise ValueError("a shard has a strange name")
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ReleaseError(f"{path} has a manifest that contradicts itself: {error}") from error
        self._mapped: dict[int, Stored] = {}

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

    def shards(self) -> Iterator[Stored]:
        """All stored integers, `[rows, M, *grid]` at a time."""
        return (self._shard(number) for number in range(len(self._shards)))

    def integers(self, name: str) -> Stored:
        """What is stored for one query, `[M, *grid]`."""
        if name not in self._where:
            raise InvalidValueError(
                f"query {name!r} is not in {self.path}; it holds {len(self)} others"
            )
        number, row = self._where[name]
        try:
            stored: Stored = self._shard(number)[row]
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

    def _shard(self, number: int) -> Stored:
        if number not in self._mapped:
            if not 0 <= number < len(self._shards):
                raise ReleaseError(f"{self.path} has no shard {number}")
            shape = (len(self.channels), *self.plan.grid)
            self._mapped[number] = self._shards[number].map(self.path, shape)
        return self._mapped[number]
