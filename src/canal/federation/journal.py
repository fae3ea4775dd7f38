"""A site's journal of one release: what it agreed to, and what it said, word for word.

========================  =======================================================================
`keys`                    of the masks (in memory, `canal.privacy.keystore`); destroyed at the end
`secret`                  of the site's noise, likewise; destroyed with them
`member.json`             the site's entry of the roster, signed
`agreement.json`          what was agreed to; it stays
`items.json`              digests of the public items about which it is asked; it stays
`inputs/`                 public inputs, block by block, as they came
`statistics.json`         as they were published
`answer-STEP-NUMBER`      an answer, with the digest of the request that it belongs to
`sum-NUMBER`              of a step on which later ones depend, as it was published
`finished`                digest of the manifest; the rest is gone
`lock`                    held by the one process that answers
========================  =======================================================================

An answer is on disk before it is sent. Asked again, the site sends the same bytes; asked something
else under the same number, it refuses.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from canal.errors import RefusalError, SecretLostError
from canal.federation.masks import Keys
from canal.federation.message import Message, digest_of
from canal.files import fsync_folder, replace_file
from canal.privacy.keystore import is_kept, key_store
from canal.privacy.randomness import Secret
from canal.release.mechanism import written

_DIGEST_BYTES = 32
_log = logging.getLogger(__name__)


class Journal:
    """Of one session at one site.

    Args:
        folder: of the session; made when it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._inputs = folder / "inputs"
        self._items = folder / "items.json"
        self._member = folder / "member.json"
        self._agreement = folder / "agreement.json"
        self._statistics = folder / "statistics.json"
        self._finished = folder / "finished"

    @contextmanager
    def open(self, *, new: bool = False) -> Iterator[None]:
        """Work here, alone.

        Args:
            new: make the folder, if it is not there.
        """
        if not self.folder.is_dir():
            if not new:
                raise RefusalError("this session was never begun here; begin it, and agree first")
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fsync_folder(self.folder.parent)
        with (self.folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RefusalError(
                    "another process of this site answers in this session; wait for it to end"
                ) from error
            yield

    def keys(self) -> Keys:
        """Of the masks of this session: those that are kept, or new ones."""
        path = self.folder / "keys"
        kept = self._kept(path)
        return Keys((kept or Secret.keep(Keys.generate().private, path, key_store())).value)

    def secret(self) -> Secret:
        """Of the noise of this session: the one that is kept, or a new one."""
        path = self.folder / "secret"
        return self._kept(path) or Secret.create(path, key_store())

    def _kept(self, path: Path) -> Secret | None:
        """What was kept there; None if nothing ever was.

        Raises:
            RefusalError: it was, and is lost; or the release is finished, and no key is due.
        """
        if not is_kept(path):
            if self.finished is not None:
                raise RefusalError("this release is finished here; a new one needs a new session")
            return None
        try:
            return Secret.load(path)
        except SecretLostError as error:
            _log.warning("%s", error)
            raise RefusalError(
                "the keys of this session are lost (a restart of this host clears its memory), so "
                "the release cannot be finished; what was charged stays charged; a new session is "
                "another release, charged anew"
            ) from error

    @property
    def member(self) -> dict[str, Any] | None:
        """The site's entry of the roster; None if it did not introduce itself yet."""
        return _read(self._member)

    def introduce(self, member: dict[str, Any]) -> None:
        """Write that entry down."""
        self.write(self._member, written(member))

    @property
    def agreed(self) -> dict[str, Any] | None:
        """What was agreed to; None if nothing was yet."""
        return _read(self._agreement)

    def agree(self, contract: dict[str, Any], items: Sequence[str]) -> None:
        """Write down what was agreed to; it is paid for.

        Args:
            contract: as JSON values.
            items: digests of the public items about which the site is asked.
        """
        self.write(self._items, written(list(items)))
        self.write(self._agreement, written(contract))

    @property
    def items(self) -> list[str]:
        """Digests of the public items about which the site was asked."""
        with contextlib.suppress(FileNotFoundError):
            return list(json.loads(self._items.read_bytes()))
        # An earlier version kept them in the agreement.
        return list((self.agreed or {}).get("images", ()))

    def inputs(self) -> list[int]:
        """Blocks of public inputs that came."""
        return sorted(int(each.name) for each in self._inputs.glob("*") if each.name.isdecimal())

    def read_input(self, number: int) -> Mapping[str, NDArray[Any]]:
        """A block of public inputs that came.

        Raises:
            RefusalError: it is damaged.
        """
        return Message.from_bytes(self._input(number).read_bytes()).arrays

    def keep_input(self, number: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write a block of public inputs down."""
        self._inputs.mkdir(exist_ok=True)
        self.write(self._input(number), Message({}, arrays).to_bytes())

    def _input(self, number: int) -> Path:
        return self._inputs / f"{number:08d}"

    def keep_sum(self, number: int, stored: NDArray[Any]) -> None:
        """Have a published sum on disk; another one under the same number is refused."""
        path, content = self._sum(number), Message({}, {"sum": stored}).to_bytes()
        if not path.is_file():
            self.write(path, content)
        elif path.read_bytes() != content:
            raise RefusalError(f"another sum was published for step {number}")

    def sum_of(self, number: int) -> NDArray[Any]:
        """A published sum.

        Raises:
            RefusalError: it did not come yet.
        """
        path = self._sum(number)
        if not path.is_file():
            raise RefusalError(f"the sum of step {number} did not come yet")
        return Message.from_bytes(path.read_bytes()).arrays["sum"]

    def _sum(self, number: int) -> Path:
        return self.folder / f"sum-{number:06d}"

    def answered(self, name: str, number: int) -> bool:
        """Whether a step was answered, and the answer is kept."""
        return self._path(name, number).is_file()

    def answers(self) -> int:
        """How many answers were given, and are kept."""
        return sum(p.suffix != ".part" for p in self.folder.glob("answer-*"))

    @property
    def has_answered(self) -> bool:
        """Whether anything left this site in this session."""
        return self.finished is not None or self.answers() > 0

    @property
    def published(self) -> dict[str, Any] | None:
        """The statistics that features come after; None if there are none yet."""
        return _read(self._statistics)

    def publish(self, statistics: dict[str, Any]) -> None:
        """Write them down."""
        self.write(self._statistics, written(statistics))

    def answer(self, kind: str, number: int, request: bytes) -> bytes | None:
        """What was answered to this request before, word for word; None if nothing was.

        Raises:
            RefusalError: something else was asked under the same number, or what was answered is
                not here any more.
        """
        path = self._path(kind, number)
        if not path.is_file():
            if path.name in self._tallied():
                raise RefusalError(
                    f"{kind} {number} was answered before, and the answer is gone: this site's "
                    "journal was set back. A second answer would be another release; begin a new "
                    "session, charged anew"
                )
            return None
        content = path.read_bytes()
        if content[:_DIGEST_BYTES] != digest_of(request):
            raise RefusalError(
                f"{kind} {number} was answered before, to another request; a second view of the "
                "same queries is another release"
            )
        return content[_DIGEST_BYTES:]

    def keep(self, kind: str, number: int, request: bytes, answer: bytes) -> None:
        """Have an answer on disk, before it is sent."""
        path = self._path(kind, number)
        self.write(path, digest_of(request) + answer)
        # Behind the answer: of a process that was killed in between, nothing was sent.
        names = "".join(f"{name}\n" for name in sorted({*self._tallied(), path.name}))
        replace_file(self._tally, names.encode(), mode=0o600)

    @property
    def _tally(self) -> Path:
        """Names of all answers, beside the keys and not in this folder where those are in memory.

        A backup of the journal does not hold it: set back, the journal has fewer answers.
        """
        return (self.folder / "keys").resolve().with_name("tally")

    def _tallied(self) -> set[str]:
        """Names of all answers that were ever given here.

        Raises:
            RefusalError: the keys are lost, and with them what was answered.
        """
        self._kept(self.folder / "keys")
        with contextlib.suppress(FileNotFoundError):
            return set(self._tally.read_text().split())
        return set()

    @property
    def finished(self) -> str | None:
        """Digest of the manifest that was published in the end; None before."""
        return self._finished.read_text() if self._finished.is_file() else None

    def finish(self, manifest: str) -> None:
        """Destroy what is secret and clear what is not needed any more; the agreement stays."""
        self.write(self._finished, manifest.encode())
        for path in self._tally.parent.glob("tally*"):
            path.unlink(missing_ok=True)
        for name in ("secret", "keys"):
            Secret.destroy(self.folder / name)
        for kind in ("answer", "sum"):
            for path in self.folder.glob(f"{kind}-*"):
                path.unlink()
        shutil.rmtree(self._inputs, ignore_errors=True)
        self._statistics.unlink(missing_ok=True)

    def _path(self, kind: str, number: int) -> Path:
        return self.folder / f"answer-{kind}-{number:06d}"

    def write(self, path: Path, content: bytes) -> None:
        """Have a file in this folder, for good."""
        replace_file(path, content)
        fsync_folder(path.parent)
        if path.parent != self.folder:
            fsync_folder(self.folder)


def sessions(folder: Path) -> list[Journal]:
    """All that a site ever took part in."""
    if not folder.is_dir():
        return []
    return [Journal(path) for path in sorted(folder.iterdir()) if path.is_dir()]


def _read(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads(path.read_bytes()))
    return None
