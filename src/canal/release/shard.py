"""A shard: the stored integers of some queries, as one safetensors file.

It carries two digests. XXH3 finds damage and costs less than the reading itself; SHA-256 also
stands against somebody who wants to be missed, and is for `canal release verify`.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_hexdigest

from canal.errors import MismatchError, ReleaseError
from canal.files import replace_file
from canal.release.manifest import FORMAT

# A whole number of batches, so that a shard is the same wherever a run was stopped.
ROWS = 256
TENSOR = "features"
Stored = NDArray[np.signedinteger]


@dataclass(frozen=True)
class Shard:
    """One file.

    Args:
        file: its name.
        rows: how many queries, or rounds.
        sha256: of the whole file; `canal release verify` recomputes it.
        xxh3_128: of the same, as fast as memory; every reader recomputes it.
    """

    file: str
    rows: int
    sha256: str
    xxh3_128: str

    @classmethod
    def of(cls, file: str, rows: int, content: bytes) -> Shard:
        """The entry of a file with this content."""
        return cls(file, rows, hashlib.sha256(content).hexdigest(), xxh3_128_hexdigest(content))

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def map(
        self, folder: Path, shape: tuple[int, ...], kind: type[np.signedinteger] = np.int16
    ) -> Stored:
        """The integers `[rows, *shape]`, mapped from the file once it was seen to be undamaged."""
        path = folder / self.file
        shape, kept = (self.rows, *shape), np.dtype(kind).newbyteorder("<")
        nbytes = kept.itemsize * math.prod(shape)
        try:
            data: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise ReleaseError(f"{path} cannot be read ({error}); ask for it again") from error
        found = xxh3_128_hexdigest(data.data)
        if found != self.xxh3_128:
            raise MismatchError(
                f"{path} is damaged: XXH3 {str(self.xxh3_128)[:16]}… is what the manifest "
                f"describes, {found[:16]}… was found; ask for it again",
                files={self.file: {"expected": self.xxh3_128, "found": found}},
            )
        if data.size < nbytes:
            raise ReleaseError(
                f"{path} is damaged: it holds less than the manifest describes; ask for it again"
            )
        # safetensors keeps its one tensor at the end, behind the header.
        stored: Stored = data[data.size - nbytes :].view(kept).reshape(shape)
        return stored


def shard_name(number: int, tensor: str = TENSOR) -> str:
    """Name of the file."""
    return f"{tensor}-{number:05d}.safetensors"


def metadata(stamp: str) -> dict[str, str]:
    """What the file says of itself: the warning, where there is one.

    One entry only: safetensors writes several in an order that changes from call to call.
    """
    return {"warning": stamp} if stamp else {"format": FORMAT}


def write_shard(path: Path, integers: Stored, stamp: str, tensor: str = TENSOR) -> Shard:
    """Write the integers `[rows, ...]`; the file appears whole or not at all.

    Args:
        path: of the file.
        integers: to be stored.
        stamp: a warning, where they protect nobody.
        tensor: what they are called in the file.
    """
    from safetensors.numpy import save

    content = save({tensor: np.ascontiguousarray(integers)}, metadata(stamp))
    replace_file(path, content)
    return Shard.of(path.name, len(integers), content)


def read_shard(path: Path, tensor: str) -> Stored:
    """The integers of a file that is ours."""
    from safetensors.numpy import load_file

    return load_file(path)[tensor]


def describe_shard(path: Path, rows: int) -> Shard:
    """The entry of a file that is there."""
    return Shard.of(path.name, rows, path.read_bytes())
