"""A release as its reader sees it: a folder, opened once.

Digests are checked before a byte is believed: the manifest's when it is opened, a shard's when it
is first touched. Integers are mapped, not loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from canal.errors import ReleaseError
from canal.release.manifest import Manifest
from canal.release.plan import ReleasePlan
from canal.release.registry import kind_of
from canal.release.shard import Shard, Stored
from canal.release.workspace import refuse_key_left


class Folder(ABC):
    """What was published, once; reading it costs nothing, however often.

    Args:
        path: the folder.
        manifest: of the same.
    """

    kind: ClassVar[str]
    # What its shards hold, what they are called, and what is in each of their rows.
    tensor: ClassVar[str] = ""
    dtype: ClassVar[type[np.signedinteger]] = np.int32
    shards_are: ClassVar[str]
    rows_are: ClassVar[str]
    plan: ReleasePlan

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        if manifest.kind != self.kind:
            raise ReleaseError(f"{path} is a release of {manifest.kind}, not of {self.kind}")
        try:
            self.read(manifest)
            self._shards = tuple(Shard(**entry) for entry in manifest.shards)
            for entry in self._shards:
                if type(entry.rows) is not int or entry.rows < 1:
                    raise ValueError(f"a shard has {entry.rows!r} rows")
                if Path(entry.file).name != entry.file:
                    raise ValueError("a shard has a strange name")
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ReleaseError(f"{path} has a manifest that contradicts itself: {error}") from error
        self._mapped: dict[int, Stored] = {}

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a release folder.

        Raises:
            ReleaseError: no release, a damaged one, one of another kind, or one whose key was left.
        """
        opened = cls(Path(path), Manifest.read(Path(path)))
        refuse_key_left(opened.path)
        return opened

    @abstractmethod
    def read(self, manifest: Manifest) -> None:
        """Take the plan, and what else its kind has, out of a manifest."""

    @abstractmethod
    def __len__(self) -> int:
        """How many queries were answered, or rounds made."""

    @property
    def paid_for(self) -> int:
        """How many rows the plan has; none where all is in the manifest."""
        return 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a row of a shard."""
        return ()

    @property
    @abstractmethod
    def content(self) -> dict[str, Any]:
        """How much of what it holds, for programs."""

    @property
    @abstractmethod
    def words(self) -> tuple[str, str]:
        """The same in a sentence, whose first part is the most important."""

    @property
    def beside(self) -> Mapping[str, Callable[[], str]]:
        """Other files of it; what sees that each is what the manifest describes."""
        return {}

    def shards(self) -> Iterator[Stored]:
        """All stored integers, `[rows, *shape]` at a time."""
        return (self.shard(number) for number in range(len(self._shards)))

    def shard(self, number: int) -> Stored:
        """The integers of one shard, `[rows, *shape]`."""
        if number not in self._mapped:
            if not 0 <= number < len(self._shards):
                raise ReleaseError(f"{self.path} has no shard {number}")
            found = self._shards[number].map(self.path, self.shape, self.dtype)
            self._mapped[number] = found
        return self._mapped[number]

    @property
    def digest(self) -> str:
        """Of the manifest, and by it of everything."""
        return self.manifest.digest

    @property
    def initialisation(self) -> str:
        """Digest of the shared initialisation that its networks started from."""
        return str(self.manifest.participants["initialisation"])

    @property
    def private(self) -> bool:
        """Whether the guarantee of the statement holds; a research run has none."""
        return self.manifest.private

    @property
    def statement(self) -> dict[str, Any]:
        """What is promised to whom."""
        return self.manifest.statement

    @property
    def stamp(self) -> dict[str, str]:
        """A note for every network that is made of it, if it protects nobody; else nothing."""
        said = self.statement["stamp"]
        return {"stamp": said} if said else {}


def open_release(path: Path | str) -> Any:
    """Open a release folder, whatever it holds.

    Raises:
        ReleaseError: no release, a damaged one, one of an unknown kind, or one whose key was left.
    """
    path = Path(path)
    manifest = Manifest.read(path)
    opened = kind_of(manifest.kind).open(path, manifest)
    refuse_key_left(path)
    return opened
