"""A message: a few plain values and arrays, as bytes that prove themselves whole.

Safetensors carries both; a SHA-256 of all of it comes last. Nothing in it can be executed, and
whoever reads one learns at once that it was cut off or changed on the way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import RefusalError

FORMAT = "canal-federation/2"
_DIGEST_BYTES = 32
_NAME = "canal"  # of the words, and of a tensor where there is none


@dataclass(frozen=True)
class Message:
    """What one party tells another.

    Args:
        head: plain values.
        arrays: by name.
    """

    head: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As it travels."""
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        words = {"format": FORMAT, "head": self.head, "arrays": len(arrays)}
        # Under one name: of several, the order would be another one each time.
        body = save(
            arrays or {_NAME: np.zeros(1, dtype=np.uint8)},
            metadata={_NAME: json.dumps(words, allow_nan=False)},
        )
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, content: bytes) -> Message:
        """Read one.

        Raises:
            RefusalError: it is not whole, or none of ours.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            raise RefusalError("a message was cut off or changed on the way; send it again")
        try:
            length = int.from_bytes(body[:8], "little")
            words = json.loads(json.loads(body[8 : 8 + length])["__metadata__"][_NAME])
            if words["format"] != FORMAT:
                raise RefusalError(
                    f"a message of format {words['format']!r}; all parties need one version of "
                    f"canal, this one speaks {FORMAT}"
                )
            return cls(dict(words["head"]), load(body) if words["arrays"] else {})
        except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise RefusalError(f"a message cannot be understood: {error!r}") from error


def digest_of(content: bytes) -> bytes:
    """SHA-256 of a message as it travels; a message asked for again has the same."""
    return hashlib.sha256(content).digest()
