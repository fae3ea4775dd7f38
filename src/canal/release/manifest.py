"""The manifest: what a release folder holds and promises, as one file that proves itself.

One line an entry, in an order that is fixed, with the SHA-256 of all others as the last: there is
one way to write a content down, and any other byte is damage. The day is in it, no other time and
no machine name, so the same release is the same bytes; nor is anything that is a function of
private data without noise, such as a digest of a teacher.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from canal.errors import MismatchError, ReleaseError
from canal.version import __version__

FORMAT = "canal-release/3"
SOFTWARE = f"canal {__version__}"
MANIFEST = "manifest.json"
CARD = "card.html"


@dataclass(frozen=True)
class Manifest:
    """Plain values, one entry a field.

    Args:
        kind: what is released: `features` of queries, or `adapters`.
        software: that made it, with its version.
        private: False for a research run; then nothing here protects anybody.
        statement: what is promised to whom; follows from the entries below.
        plan: what was asked for.
        statistics: as published: caps and importance; scales and bounds.
        mechanism: noise and lattice; follows from plan and statistics.
        participants: cohorts, shared initialisation, the layer that was tapped if one was.
        noise: where it came from.
        ledger: key and charges, the ledger's heads before and after, and what each cohort has
            spent in all; null where nothing is charged.
        record: what its makers say about it (`canal.release.record`): day, purpose, contact, code.
        shards: files, their digests and rows.
        rows: what is in every row of a shard (the id of a query, the number of a round), with the
            number of its shard and its row there.
    """

    kind: str
    software: str
    private: bool
    statement: dict[str, Any]
    plan: dict[str, Any]
    statistics: dict[str, Any]
    mechanism: dict[str, Any]
    participants: dict[str, Any]
    noise: dict[str, Any]
    ledger: dict[str, Any] | None
    record: dict[str, Any]
    shards: list[dict[str, Any]]
    rows: dict[str, list[int]]

    def to_bytes(self) -> bytes:
        """The file."""
        content = {"format": FORMAT} | {
            entry.name: getattr(self, entry.name) for entry in fields(self)
        }
        return _written(content | {"digest": _digest(content)})

    @property
    def digest(self) -> str:
        """SHA-256 of everything else in the file."""
        return str(json.loads(self.to_bytes())["digest"])

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read it, and refuse a file that is not exactly what was written.

        Raises:
            ReleaseError: no release, damaged, or of a format that we do not know.
        """
        path = folder / MANIFEST
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ReleaseError(
                f"{folder} holds no release ({error.strerror}: {MANIFEST}); give the folder that "
                "`canal release create`, `canal adapters train` or `canal statistics release` made"
            ) from error
        return cls.from_bytes(data, str(path))

    @classmethod
    def from_bytes(cls, data: bytes, path: str = "the manifest") -> Manifest:
        """The reverse of `to_bytes`; refuses what is not exactly that."""
        try:
            content = json.loads(data)
            stated = content.pop("digest")
            if content["format"] != FORMAT:
                raise ReleaseError(
                    f"{path} has format {content['format']!r}, and this version reads {FORMAT}; "
                    f"read it with the version that made it, {content.get('software')!r}, or ask "
                    "for a release of this version"
                )
            found = _digest(content)
            if stated != found:
                raise MismatchError(
                    f"{path} is damaged: it says that its digest is {str(stated)[:16]}…, and its "
                    f"content has {found[:16]}…; ask for the release again",
                    files={MANIFEST: {"expected": stated, "found": found}},
                )
            if _written(content | {"digest": stated}) != data:
                raise ReleaseError(
                    f"{path} is damaged: its content is written down in another way than a release "
                    "has it; ask for the release again"
                )
            del content["format"]
            return cls(**content)
        # RecursionError: a thousand brackets; UnicodeError: flipped bytes.
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ReleaseError(
                f"{path} is damaged ({type(error).__name__}); ask for the release again"
            ) from error


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(_written(content)).hexdigest()


def _written(content: dict[str, Any]) -> bytes:
    lines = (
        f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items()
    )
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()
