"""Identifies patients and the contents of images, and compares two collections of them.

A statement speaks of a patient of one cohort. It is wrong for a patient of two, and for an image
that is called public and is a patient's. Names do not tell: a copied folder has other names. So
images are compared by the SHA-256 digest of their decoded pixels, at the size at which a network
reads them; every collection that one network sees is decoded alike. A digest finds a copied or
renamed image, and a file that was saved again without loss. It does not find a second photograph,
a crop or a JPEG of a PNG (see `canal.data.duplicates`).

A digest of a private image is private: whoever has the image can see that it was there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path

from canal.data.cache import Arrays, copy_rows
from canal.data.duplicates import people
from canal.errors import DataError
from canal.files import replace_file

TRAINED_ON = "trained_on.json"
_FORMAT = "canal-contents/1"

Patients = Mapping[str, frozenset[str]]


def patients(arrays: Arrays) -> dict[str, frozenset[str]]:
    """The digests of every patient's images; private where the images are.

    A patient is whom the records name; who has near-identical images under several names is one
    (`canal.data.duplicates.people`).

    Args:
        arrays: decoded cases, labelled or not.

    Returns:
        By patient, in the order of the images. The names are not comparable between collections.
    """
    found: dict[str, set[str]] = {}
    for person, digest in zip(people(arrays), digests(arrays), strict=True):
        found.setdefault(person, set()).add(digest)
    return {person: frozenset(images) for person, images in found.items()}


def digests(arrays: Arrays) -> list[str]:
    """SHA-256 of shape and pixels of every image, without its truth or name; in order."""
    found = []
    for row in range(len(arrays.ids)):
        image = copy_rows(arrays.images, row, row + 1)
        found.append(hashlib.sha256(repr(image.shape[1:]).encode() + image.tobytes()).hexdigest())
    return found


def write(folder: Path, contents: Collection[frozenset[str]], *, private: bool) -> None:
    """Keep beside a network which images it was trained on.

    Args:
        folder: of the network.
        contents: the digests of the images of each patient.
        private: whether the file is for its owner only (mode 0600).
    """
    content = {"format": _FORMAT, "patients": sorted(sorted(images) for images in contents)}
    replace_file(
        folder / TRAINED_ON,
        (json.dumps(content, indent=1) + "\n").encode(),
        mode=0o600 if private else None,
    )


def read(folder: Path) -> tuple[frozenset[str], ...] | None:
    """The digests of each patient's images that a network was trained on; None if nobody knows."""
    path = folder / TRAINED_ON
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']!r}")
        return tuple(
            frozenset(digest for digest in images if len(bytes.fromhex(digest)) == 32)
            for images in content["patients"]
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; give yourself the right to read it, or train "
            "again"
        ) from error
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{path} does not say which images the network was trained on ({error!r}); train again"
        ) from error
