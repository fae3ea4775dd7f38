"""The aggregator's private folder beside a release: `OUT.private/`, mode 0700, never handed out.

==================  =============================================================================
`claim.json`        what the run is: plan, teachers, queries, by digest; it stays
`plan.json`         every number that is fixed before a private tensor is read; it stays
`mechanism.json`    every number that is fixed before the features are read; it stays
`record.json`       what its makers say about the release, as it was when it was paid for; it stays
`secret`            the key of all noise (in memory, `canal.privacy.keystore`); destroyed before
                    the release is published
`statistics.json`   caps and importance as published, once they were drawn
`release/`          what will be published; sealed as soon as its manifest is there, then moved to
                    its place in one step
`finished`          the release is published
`lock`              held by the one run that works here
==================  =============================================================================

A run that finds its own claim goes on where the last one stopped. One that finds another's refuses.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from canal.errors import ReleaseError, SecretError, SecretLostError
from canal.files import fsync_folder, replace_file
from canal.privacy.keystore import is_kept, is_there, key_store
from canal.privacy.randomness import Secret
from canal.release.manifest import CARD, MANIFEST, Manifest
from canal.release.mechanism import digest, written


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
            self._finish_another()
            self._check(claim)
            yield

    def _check(self, claim: dict[str, Any]) -> None:
        if self._claim.is_file():
            earlier = self._claim.read_bytes()
            if earlier != written(claim):
                raise ReleaseError(self._difference(earlier, claim))
            if self._finished.exists() and not self.is_published():
                # A run that was refused its commit may have been killed before it came to this.
                self.destroy()
                self._clear()
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
        return is_kept(self._secret) or self._claim.exists()

    @property
    def is_sealed(self) -> bool:
        """Whether all noise was drawn, and what will be published is whole and on disk."""
        return (self.staging / MANIFEST).is_file()

    def is_published(self) -> bool:
        """Whether the release is in its place; it is moved there whole."""
        return (self.out / MANIFEST).is_file()

    def write_down(self, name: Literal["plan", "mechanism"], content: dict[str, Any]) -> None:
        """Put numbers on record before the data that they are for is read."""
        replace_file(self.private / f"{name}.json", written(content))

    def secret(self, *, of_noise: bool = True) -> Secret:
        """The secret of this release: the one that is kept, or a new one.

        Args:
            of_noise: whether noise is drawn with it. If it only names a charge, it is kept on disk.

        Raises:
            SecretLostError: a run that may have paid has lost its secret, or others could read it.
        """
        if not self.is_begun:
            self._clear()
            self.record.unlink(missing_ok=True)  # another secret makes another release
            return Secret.create(self._secret, key_store() if of_noise else None)
        try:
            return Secret.load(self._secret)
        except SecretLostError as error:
            # What was drawn with it is of no use to a new one, and may be known to others.
            self._clear()
            raise SecretLostError(
                f"{error}; what {self.out.name} was charged stays charged, and nothing that was "
                f"drawn for it is published; remove {self.private} and run the same command again "
                "to make it with a new secret, which is another release, charged anew"
            ) from error

    def seal(self, card: bytes, manifest: bytes) -> None:
        """Complete what will be published; from here on nothing is drawn, and no secret needed.

        Args:
            card: for people.
            manifest: of all that is there; written last.
        """
        replace_file(self.staging / CARD, card)
        fsync_folder(self.staging)
        replace_file(self.staging / MANIFEST, manifest)
        fsync_folder(self.staging)

    def manifest(self) -> Manifest:
        """Of the release in its place, else of the sealed one."""
        return Manifest.read(self.out if self.is_published() else self.staging)

    def refuse_exposed(self) -> None:
        """See that a secret that is still here was for us alone; what was drawn is of no use else.

        Raises:
            SecretLostError: others could read it.
        """
        if is_there(self._secret):
            self.secret()

    def destroy(self) -> None:
        """Destroy the secret."""
        Secret.destroy(self._secret)

    def publish(self) -> None:
        """Move the sealed release to its place, in one step."""
        self.staging.rename(self.out)
        fsync_folder(self.out.parent)

    def finish(self) -> None:
        """Clear what is not needed any more; the claim stays."""
        self._finished.touch()
        self.destroy()
        self._clear()

    def key_left(self) -> Path | None:
        """A key of noise beside a release that is published; None, as it should be.

        A run destroys its key before it publishes. One that is here came back from a copy of the
        private folder, or was left by an older version.
        """
        try:
            left = self.is_published() and is_there(self._secret)
        except OSError:  # a folder of somebody else
            return None
        return self._secret if left else None

    def _finish_another(self) -> None:
        """Destroy a key that was left beside the very release that it made."""
        if self.key_left() is None or not self._claim.is_file():
            return
        with suppress(ReleaseError, SecretError, ValueError):
            charged = Manifest.read(self.out).ledger or {}
            key = charge_key(
                Secret.load(self._secret), digest(json.loads(self._claim.read_bytes()))
            )
            if charged.get("key") == key:
                self.destroy()

    def _clear(self) -> None:
        # First of all: a folder from which something was removed must not look sealed.
        (self.staging / MANIFEST).unlink(missing_ok=True)
        self.statistics.unlink(missing_ok=True)
        shutil.rmtree(self.staging, ignore_errors=True)


def refuse_key_left(folder: Path) -> None:
    """See that no key of noise lies beside a published release, where its private folder is here.

    Raises:
        ReleaseError: one does.
    """
    if not folder.resolve().name or folder.resolve().name.endswith(".private"):
        return  # no release of ours is ever made there
    left = Workspace(folder).key_left()
    if left is not None:
        raise ReleaseError(
            f"{left} is still there: with it anyone can take the noise off {folder}; run the "
            f"command that made the release once more, which destroys it, or remove "
            f"{left.resolve()}"
        )


def charge_key(secret: Secret, claim: bytes) -> str:
    """Under which a ledger is charged for a claim's digest; it tells nothing without the secret."""
    return secret.key(b"ledger", claim).hex()


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
