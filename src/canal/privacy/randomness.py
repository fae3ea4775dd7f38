r"""Where the noise comes from: a secret of the operating system, and ChaCha20 streams keyed by it.

The key of one image's noise is HKDF(secret, context), the context being digests of the plan, the
teachers and the image. **Releasing the same thing twice is releasing it once**: after a crash the
same bits come again; if anything differs, the key differs and the noise is fresh.

Departs from the design:
    The key stream comes from `cryptography` (OpenSSL's ChaCha20), not from `randomgen`: it is
    nine times faster, and one dependency less.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from canal.errors import InvalidValueError, SecretError, SecretLostError
from canal.privacy import keystore

KEY_BYTES = 32
# Names how bits become noise. Changing the sampler changes this, and with it every key.
SAMPLER = b"rounded-gaussian/ziggurat-256/chacha20/1"
_ZEROS = bytes(1 << 19)
# OpenSSL counts blocks of 64 bytes in 32 bits; past that the stream would repeat.
_STREAM_BYTES = 64 << 32


@dataclass(frozen=True)
class Secret:
    """The 32 bytes behind all noise of one release.

    Args:
        value: the bytes; they never appear in a release, a log or a repr.
        private: False for a research run, whose noise anyone can make again from the seed.
    """

    value: bytes
    private: bool

    def __post_init__(self) -> None:
        if len(self.value) != KEY_BYTES:
            raise SecretError(f"a secret has {KEY_BYTES} bytes, not {len(self.value)}")
        if not any(self.value):
            raise SecretLostError("this secret was destroyed; its release cannot be resumed")

    def __repr__(self) -> str:
        return f"Secret({self.source})"

    @property
    def source(self) -> str:
        """What a statement says about the noise."""
        return "ChaCha20, operating-system secret" if self.private else "seeded, not private"

    @classmethod
    def seeded(cls, seed: int) -> Secret:
        """A secret for research runs. Its noise protects nobody, and the statement says so."""
        if seed < 0:
            raise InvalidValueError(f"seed = {seed!r} must be at least 0")
        return cls(hashlib.sha256(b"canal research seed %d" % seed).digest(), private=False)

    @classmethod
    def create(cls, path: Path, store: Path | None = None) -> Secret:
        """Draw a secret from the operating system and keep it in a new file, mode 0600.

        Args:
            path: the file.
            store: folder that the bytes go to, `path` being a link then (`canal.privacy.keystore`).

        Guarantees:
            The file appears whole or not at all, and never replaces another.
        """
        return cls.keep(secrets.token_bytes(KEY_BYTES), path, store)

    @classmethod
    def keep(cls, value: bytes, path: Path, store: Path | None = None) -> Secret:
        """Keep a secret that was drawn elsewhere in the same way."""
        keystore.no_core_dumps()
        try:
            keystore.keep(value, path, store)
        except FileExistsError as error:
            raise SecretError(
                f"{path} exists already; load it to go on with the release that it belongs to"
            ) from error
        except OSError as error:
            raise SecretError(
                f"cannot keep the secret in {error.filename or path}: {error.strerror}; choose a "
                "folder that you may write to"
            ) from error
        return cls(value, private=True)

    @classmethod
    def load(cls, path: Path) -> Secret:
        """Read a secret that was kept, and refuse one that others could have read.

        Raises:
            SecretLostError: it is gone, was destroyed, or may be known to others.
            SecretError: it cannot be read now.
        """
        keystore.no_core_dumps()
        try:
            keystore.check_owner(path)
            value = path.read_bytes()
        except FileNotFoundError as error:
            raise SecretLostError(
                f"the secret that was kept in {path} is gone (a reboot clears memory), so its "
                "release cannot be resumed"
            ) from error
        except OSError as error:
            raise SecretError(
                f"cannot read the secret in {path}: {error.strerror}; mend that and run the same "
                "command again"
            ) from error
        return cls(value, private=True)

    @staticmethod
    def destroy(path: Path) -> None:
        """Overwrite the file and remove it; a file that is gone already is as good.

        Killed in between, it leaves zeros, which `load` refuses.
        """
        keystore.erase(path)

    def at(self, site: str) -> Secret:
        """The secret of one site where all of them are rehearsed in one process."""
        return Secret(self._derive(b"canal site", site.encode()), self.private)

    def key(self, *context: bytes) -> bytes:
        r"""The key that belongs to this context (plan, teachers, image), by HKDF-SHA256.

        Guarantees:
            Injective in the context: every part goes in with its length, so that `(b"ab", b"c")`
            and `(b"a", b"bc")` give unrelated keys.
        """
        return self._derive(b"canal noise", SAMPLER, *context)

    def _derive(self, *parts: bytes) -> bytes:
        info = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(self.value)


class Stream:
    """Random 64-bit words: the ChaCha20 key stream of one key, the same on every platform.

    Args:
        key: 32 bytes, used for one thing only.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise InvalidValueError(f"a stream key has {KEY_BYTES} bytes, not {len(key)}")
        # Counter and nonce are zero: every use has a key of its own.
        self._encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
        self._left = _STREAM_BYTES

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next words of the stream, uniform over all 64-bit values."""
        words = np.empty(count, dtype="<u8")
        self._left -= words.nbytes
        if self._left < 0:
            raise InvalidValueError("a stream ends after 256 GiB; use another key")
        view = words.data.cast("B")
        for start in range(0, len(view), len(_ZEROS)):
            part = view[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(part)], part)
        return words.astype(np.uint64, copy=False)
