"""A published folder, whatever it holds: a manifest that proves itself, and what it promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from canal.errors import ReleaseError
from canal.release.manifest import Manifest
from canal.release.registry import AnyPlan, kind_of
from canal.release.workspace import refuse_key_left


class Folder(ABC):
    """What was published, once; reading it costs nothing, however often.

    Args:
        path: the folder.
        manifest: of the same.
    """

    kind: ClassVar[str]
    plan: AnyPlan

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        if manifest.kind != self.kind:
            raise ReleaseError(f"{path} is a release of {manifest.kind}, not of {self.kind}")

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
    def __len__(self) -> int:
        """How many queries were answered, or rounds made."""

    @property
    @abstractmethod
    def content(self) -> dict[str, Any]:
        """How much of what it holds, for programs."""

    @property
    @abstractmethod
    def words(self) -> tuple[str, str]:
        """The same in a sentence, whose first part is the most important."""

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
