"""The aggregator's private folder beside a release: `OUT.private/`, mode 0700, never handed out.

==================  =============================================================================
`claim.json`        what the run is: plan, teachers, queries, by digest; it stays
`plan.json`         every number that is fixed before a private tensor is read; it stays
`mechanism.json`    every number that is fixed before the features are read; it stays
`record.json`       what its makers say about the release, as it was when it was paid for; it stays
`secret`            the key of all noise; destroyed when the release is finished
`statistics.json`   caps and importance as published, once they were drawn
`release/`          what will be published; moved to its place in one step, when it is complete
`finished`          the release is published, and its secret gone
`lock`              held by the one run that works here
==================  =============================================================================

A run that finds its own claim goes on where the last one stopped. One that finds another's refuses.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from canal.errors import ReleaseError
from canal.files import fsync_folder, replace_file
from canal.privacy.randomness import Secret
from canal.release.agreement import written
from canal.release.manifest import MANIFEST


class Workspace:
    """Where a release grows until it is whole.

    Args:
        out: where it will be published.
    """

    def __init__(self, out: Path) -> None:
        self.out = out.resolve()
        if not self.out.name:
            raise ReleaseError(f"nothing can be kept beside {self.out}; choose another --out")
        if self.out.name.endswith(".private"):
            raise ReleaseError(f"{self.out} is a name for a private folder; choose another --out")
        self.private = self.out.with_name(self.out.name + ".private")
        self.staging = self.private / "release"
        self.statistics = self.private / "statistics.json"
        self.record = self.private / "record.json"
        self._claim = self.private / "claim.json"
        self._secret = self.private / "secret"
        self._finished = self.private / "finished"

    @contextmanager
    def open(self, claim: dict[str, Any]) -> Iterator[None]:
        """Work here, alone, on the release that the claim describes.

        Raises:
            ReleaseError: another run is at work, or the folder belongs to another release.
        """
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.private.mkdir(mode=0o700, exist_ok=True)
        if (self.private / MANIFEST).exists():
            raise ReleaseError(
                f"{self.private} holds a release, so nothing private can be kept there; choose "
                "another --out"
            )
        self.private.chmod(0o700)
        fsync_folder(self.out.parent)
        with (self.private / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ReleaseError(
                    f"another run is at work on {self.out}; wait for it, or choose another --out"
                ) from error
            self._check(claim)
            yield

    def _check(self, claim: dict[str, Any]) -> None:
        if self._claim.is_file():
            earlier = self._claim.read_bytes()
            if earlier != written(claim):
                raise ReleaseError(self._difference(earlier, claim))
            if self._finished.exists() and not self.is_published():
                raise ReleaseError(
                    f"this release was finished, and its secret destroyed, but {self.out} is gone; "
                    "bring it back from a copy, or choose another --out and pay again"
                )
        elif self.out.exists() and not _is_empty(self.out):
            raise ReleaseError(
                f"{self.out} is not empty, and no run of ours was stopped there; choose another "
                "--out, or remove it"
            )

    def claim(self, claim: dict[str, Any]) -> None:
        """Write down what this folder is for; from here on it is for nothing else.

        To be called when the release is paid for: what a ledger refused may be asked for otherwise.
        """
        replace_file(self._claim, written(claim))
        self.staging.mkdir(exist_ok=True)
        fsync_folder(self.private)
        fsync_folder(self.out.parent)

    def _difference(self, earlier: bytes, claim: dict[str, Any]) -> str:
        """Why a claim is not the one that is there, and what to do."""
        done = self.is_published() or self._finished.exists()
        what = "a release" if done else "an unfinished release"
        way_out = (
            "choose another --out; what was charged stays charged"
            if done
            else "finish it with its own arguments, or choose another --out"
        )
        try:
            other = json.loads(earlier)
            changed = [name for name in claim if other[name] != claim[name]]
            # A release of adapters has none.
            queries = other.get("queries", {})
            for name, content in claim.get("queries", {}).items():
                if queries.get(name, content) != content:
                    return (
                        f"query {name!r} has other content than when it was released into "
                        f"{self.out}; an id is released once, so {way_out}"
                    )
            numbers = [
                f"{field} = {other[name][field]} there, {value} asked"
                for name in changed
                if name in ("plan", "update")
                for field, value in claim[name].items()
                if isinstance(value, int | float | str) and other[name].get(field, value) != value
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            changed, numbers = ["claim"], []
        said = f" ({', '.join(numbers)})" if numbers else ""
        return f"{self.out} holds {what} with another {', '.join(changed)}{said}; {way_out}"

    @property
    def is_begun(self) -> bool:
        """Whether a run was here that may have paid."""
        return self._secret.exists() or self._claim.exists()

    def is_published(self) -> bool:
        """Whether the release is in its place; it is moved there whole."""
        return (self.out / MANIFEST).is_file()

    def write_down(self, name: Literal["plan", "mechanism"], content: dict[str, Any]) -> None:
        """Put numbers on record before the data that they are for is read."""
        replace_file(self.private / f"{name}.json", written(content))

    def secret(self) -> Secret:
        """The secret of this release: the one that is kept, or a new one.

        What was drawn with another is of no use to a new one, and may be known to others.
        """
        if self._secret.exists():
            return Secret.load(self._secret)
        self._clear()
        self.record.unlink(missing_ok=True)  # another secret makes another release
        return Secret.create(self._secret)

    def publish(self) -> None:
        """Move the finished release to its place, in one step."""
        fsync_folder(self.staging)
        self.staging.rename(self.out)
        fsync_folder(self.out.parent)

    def finish(self) -> None:
        """Destroy the secret and clear what is not needed any more; the claim stays."""
        self._finished.touch()
        Secret.destroy(self._secret)
        self._clear()

    def _clear(self) -> None:
        self.statistics.unlink(missing_ok=True)
        shutil.rmtree(self.staging, ignore_errors=True)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
