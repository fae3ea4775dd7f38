r"""Masks that cancel: what one site sends is uniform noise, what all of them send adds up.

Every two sites agree on a secret (X25519) that nobody else learns. For each message it is turned
(HKDF) into a key of ChaCha20, bound to everything that the message is about; the one of the two
that comes first in the roster adds the stream of that key, the other subtracts it, modulo
$2^{32}$. In the sum over *all* sites the streams cancel exactly; without one of them, what is left
is uniform.

A key is used once: another batch, roster, query, cap or sigma has another context, hence other
masks, and the same context gives the same bytes again. So a message can be repeated, and never
answered twice in two ways.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from canal.errors import RefusalError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Masked = NDArray[np.uint32]
KEY_BYTES = 32


@dataclass(frozen=True)
class Keys:
    """A site's keys for one run.

    Args:
        private: 32 bytes; they stay at the site.
    """

    private: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> Keys:
        """New ones, from the operating system."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return cls(X25519PrivateKey.generate().private_bytes_raw())

    @property
    def public(self) -> bytes:
        """What the others get."""
        return self._key().public_key().public_bytes_raw()

    def shared(self, public: bytes) -> bytes:
        """The secret with whoever has this public key.

        Raises:
            RefusalError: no key, or one that makes every secret the same.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            return self._key().exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise RefusalError(
                f"a public key of another site cannot be used ({error}); ask for its key again"
            ) from error

    def _key(self) -> X25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return X25519PrivateKey.from_private_bytes(self.private)


def mask(count: int, name: str, keys: Keys, roster: Mapping[str, bytes], context: bytes) -> Masked:
    """What a site adds to its integers before anybody sees them.

    Args:
        count: how many values.
        name: of the site.
        keys: its own.
        roster: public keys of all sites, its own among them, by name; the same for everybody.
        context: everything that the message is about.
    """
    if roster.get(name) != keys.public:
        raise RefusalError(f"the roster has another key for {name!r} than its own; stop here")
    if len(roster) < 2 or len(set(roster.values())) < len(roster):
        raise RefusalError(
            "masks need two sites or more, each with a key of its own: one alone hides nothing"
        )
    order = sorted(roster)
    about = _digest([b"canal mask", context, *(_named(other, roster[other]) for other in order)])
    total = np.zeros(count, dtype=np.uint32)
    for other in order:
        if other == name:
            continue
        stream = _stream(keys.shared(roster[other]), about, _pair(name, other), count)
        # Unsigned integers wrap: this is arithmetic modulo 2^32.
        total = total + stream if name < other else total - stream
    return total


def add_up(messages: Mapping[str, Masked], roster: Sequence[str]) -> NDArray[np.int32]:
    """The sum of what all sites sent, masks gone; as signed integers.

    Args:
        messages: of every site, by name.
        roster: who must be among them.

    Raises:
        RefusalError: somebody is missing, or unknown: then nothing is added up at all.
    """
    missing, unknown = set(roster) - set(messages), set(messages) - set(roster)
    if missing or unknown:
        raise RefusalError(
            f"{len(messages)} of {len(roster)} sites sent their part"
            + (f"; {', '.join(sorted(missing))} did not" if missing else "")
            + (f"; {', '.join(sorted(unknown))} is not in the roster" if unknown else "")
            + "; a sum of fewer is never made"
        )
    shapes = {message.shape for message in messages.values()}
    kinds = {message.dtype for message in messages.values()}
    if len(shapes) > 1 or kinds != {np.dtype(np.uint32)}:
        raise RefusalError(f"the sites sent arrays of different kinds, {shapes} of {kinds}")
    total = np.zeros(shapes.pop(), dtype=np.uint32)
    for name in roster:
        total = total + messages[name]
    return total.view(np.int32)


def _stream(secret: bytes, about: bytes, pair: bytes, count: int) -> Masked:
    """Uniform words from a secret, for one purpose."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    key = HKDF(SHA256(), KEY_BYTES, salt=about, info=pair).derive(secret)
    # A key of its own for every message, so that the counter may begin at 0.
    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(4 * count)), dtype="<u4").astype(np.uint32)


def _pair(one: str, other: str) -> bytes:
    return b"".join(_named(name, b"") for name in sorted((one, other)))


def _named(name: str, value: bytes) -> bytes:
    text = name.encode()
    return len(text).to_bytes(4, "big") + text + value


def _digest(parts: Sequence[bytes]) -> bytes:
    """Of several, none of which can be taken for another."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
