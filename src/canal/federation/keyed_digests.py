r"""Is anybody at two hospitals? Keyed digests that hospitals may agree to compare, file by file.

Each hospital writes a file: HMAC-SHA256 of the digest of every image (`canal.data.overlap`), under
a key that the hospitals share and nobody else has, filled up with random values to a number that
they agree on. Whoever compares the files learns how many images each two of them have in common,
and nothing else, as long as the key stays at the hospitals.

What the answer tells:
    The numbers are exact, and depend on patients: they are for the hospitals, and are not
    published. Whoever has the key *and* a file can ask of any image that they have whether it is
    there, so the files go to somebody without the key, or stay among hospitals that trust one
    another with that. Sizes of cohorts are hidden up to the number agreed on. A second photograph
    of the same person has another digest and is not found.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from canal.errors import ConfigurationError, DataError, InvalidValueError
from canal.files import replace_file

_FORMAT = "canal-keyed-digests/1"
_LENGTH = 32


@dataclass(frozen=True)
class KeyedDigests:
    """What one hospital lets others compare.

    Args:
        name: of the hospital.
        initialisation: digest of the network whose size and channels images were decoded for.
        mark: of the key; files under different keys have nothing to do with each other.
        digests: keyed, filled up, in order of their values.
    """

    name: str
    initialisation: str
    mark: str
    digests: tuple[str, ...]

    @classmethod
    def of(
        cls, name: str, initialisation: str, images: Iterable[str], key: bytes, size: int
    ) -> KeyedDigests:
        """Key the digests of images and fill them up.

        Args:
            name: of the hospital.
            initialisation: digest of the shared initialisation.
            images: digests of the images; private.
            key: that the hospitals share.
            size: to fill up to; public, and the same at all of them.
        """
        keyed = {_keyed(key, bytes.fromhex(digest)) for digest in images}
        if len(keyed) > size:
            raise InvalidValueError(
                f"size = {size} is smaller than what is there; agree on a larger one, which all "
                "hospitals use and which tells nothing"
            )
        while len(keyed) < size:
            keyed.add(secrets.token_hex(_LENGTH))
        mark = _keyed(key, b"canal keyed digests")
        return cls(name, initialisation, mark, tuple(sorted(keyed)))

    def write(self, path: Path) -> None:
        """Keep it for whoever compares; for its owner only until it is sent."""
        content = {
            "format": _FORMAT,
            "name": self.name,
            "initialisation": self.initialisation,
            "key": self.mark,
            "digests": list(self.digests),
        }
        replace_file(path, (json.dumps(content, indent=1) + "\n").encode(), mode=0o600)

    @classmethod
    def read(cls, path: Path) -> KeyedDigests:
        """From such a file."""
        try:
            content = json.loads(path.read_text())
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']!r}")
            digests = tuple(str(digest) for digest in content["digests"])
            if any(len(bytes.fromhex(digest)) != _LENGTH for digest in digests):
                raise ValueError("a digest of another length")
            name, made, mark = (str(content[key]) for key in ("name", "initialisation", "key"))
            return cls(name, made, mark, digests)
        except OSError as error:
            raise DataError(
                f"cannot read {path}: {error.strerror}; make it with `canal federation "
                "overlap-digests`"
            ) from error
        except (ValueError, LookupError, TypeError) as error:
            raise DataError(
                f"{path} holds no keyed digests ({error!r}); make it with `canal federation "
                "overlap-digests`"
            ) from error


def compare(files: Sequence[KeyedDigests]) -> dict[tuple[str, str], int]:
    """How many images each two hospitals have in common; private.

    Args:
        files: of at least two hospitals.
    """
    names = [each.name for each in files]
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise InvalidValueError(
            f"these files are of {', '.join(names) or 'nobody'}; give one of each of at least two "
            "hospitals"
        )
    first = files[0]
    for other in files[1:]:
        for what, same in (
            ("key", first.mark == other.mark),
            ("initialisation", first.initialisation == other.initialisation),
            ("size", len(first.digests) == len(other.digests)),
        ):
            if not same:
                raise InvalidValueError(
                    f"{first.name} and {other.name} used another {what}, so nothing can be in "
                    "common; have all hospitals write their files again, with the same"
                )
    return {
        (one.name, other.name): len(set(one.digests) & set(other.digests))
        for one, other in combinations(files, 2)
    }


def make_key(path: Path) -> None:
    """Draw a key; it goes to the other hospitals by a way that nobody else reads."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(_LENGTH) + "\n")
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}; name a new file") from (
            error
        )


def read_key(path: Path) -> bytes:
    """The key that the hospitals share."""
    try:
        key = bytes.fromhex(path.read_text().strip())
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}; one hospital makes it with `canal federation "
            "overlap-key`, and sends it to the others"
        ) from error
    except ValueError:
        key = b""
    if len(key) != _LENGTH:
        raise ConfigurationError(
            f"{path} is no key of {_LENGTH} bytes in hexadecimal digits; make one with `canal "
            "federation overlap-key`"
        )
    return key


def _keyed(key: bytes, content: bytes) -> str:
    return hmac.digest(key, content, "sha256").hex()
