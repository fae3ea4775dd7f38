"""Finds images that two collections share: cohorts, queries, and what a network was trained on.

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
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from pathlib import Path

import numpy as np

from canal.data.arrays import Arrays, copy_rows
from canal.data.duplicates import THRESHOLD, similar_pairs, thumbnails
from canal.data.patients import joined
from canal.errors import DataError
from canal.files import replace_file

TRAINED_ON = "trained_on.json"
_FORMAT = "canal-contents/1"

Contents = frozenset[str]
CHECKED = "checked"
NOT_CHECKED = "not checked: "
ABSENT = "none"  # of what a kind of release does not have, such as queries
ELSEWHERE = "the cohorts are at other hosts"


def digests_by_patient(arrays: Arrays) -> dict[str, frozenset[str]]:
    """The digests of every patient's images; private where the images are.

    Patients with near-identical images are one (`canal.data.patients.joined`).

    Args:
        arrays: decoded cases, labelled or not.

    Returns:
        By patient, in the order of the images. The names are not comparable between collections.
    """
    found: dict[str, set[str]] = {}
    for patient, digest in zip(joined(arrays), digests(arrays), strict=True):
        found.setdefault(patient, set()).add(digest)
    return {patient: frozenset(images) for patient, images in found.items()}


def digests(arrays: Arrays) -> list[str]:
    """SHA-256 of shape and pixels of every image, without its truth or name; in order."""
    found = []
    for row in range(len(arrays.ids)):
        image = copy_rows(arrays.images, row, row + 1)
        found.append(hashlib.sha256(repr(image.shape[1:]).encode() + image.tobytes()).hexdigest())
    return found


def write(folder: Path, contents: Collection[frozenset[str]], *, private: bool) -> None:
    """Write beside a network which images it was trained on.

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


def contents(patients: Iterable[frozenset[str]] | None) -> Contents | None:
    """The digests of all images of these patients; None if nobody knows them."""
    return None if patients is None else frozenset().union(*patients)


def compare(
    cohorts: Mapping[str, Contents | None] | None,
    queries: Contents | None,
    initialisation: Contents | None,
) -> dict[str, str]:
    """Refuse an image of two cohorts, and one that is a cohort's and public, before it is used.

    Args:
        cohorts: by name, the digests of a cohort's images; None for one of which nobody knows
            them, or for all that are at other hosts.
        queries: of the recipient's images, by which public numbers are measured or that are asked
            about.
        initialisation: of what the shared initialisation was trained on.

    Returns:
        For a release's record: `checked`, or `not checked: ` with the reason, for cohorts, queries
        and initialisation. It tells nothing of a patient but that nobody overlaps.

    Raises:
        DataError: the same image is in two places.
    """
    known = {name: images for name, images in (cohorts or {}).items() if images is not None}
    found = []
    for (one, ours), (other, theirs) in combinations(known.items(), 2):
        if both := len(ours & theirs):
            found.append(
                f"{_images(both)} of cohort {one!r} {_are(both)} in cohort {other!r} too: whoever "
                "is on them would be counted twice and pay once; take them out of one of the two, "
                "or leave one cohort out"
            )
    for name, ours in known.items():
        if both := len(ours & (queries or frozenset())):
            found.append(
                f"{_images(both)} of the queries {_are(both)} in cohort {name!r}: queries count as "
                "public; give images of the recipient's own"
            )
        if both := len(ours & (initialisation or frozenset())):
            found.append(
                f"the shared initialisation was trained on {_images(both)} of cohort {name!r}, and "
                "it is public; make one from other images with `canal init`"
            )
    if found:
        raise DataError(". ".join(found))
    if cohorts is None:
        missing = ELSEWHERE
    elif strangers := [name for name in cohorts if name not in known]:
        missing = f"nobody kept which images these cohorts have: {', '.join(strangers)}"
    else:
        missing = ""
    alone = cohorts is not None and len(cohorts) == 1
    reasons = {
        "cohorts": "" if alone else missing,
        "queries": "nobody kept which images they are" if queries is None else missing,
        "initialisation": missing,
    }
    if initialisation is None:
        reasons["initialisation"] = "nobody kept which images it was trained on"
    elif not initialisation:  # random weights depend on nobody, seen or not
        reasons["initialisation"] = ""
    return {name: NOT_CHECKED + why if why else CHECKED for name, why in reasons.items()}


def lookalikes(collections: Mapping[str, Arrays]) -> list[str]:
    """Say of each pair of collections how many images of one look like some of the other.

    Two photographs of one lesion may be two patients, or one: nobody can tell from the pixels, so
    this is for a person to look at, and no reason to refuse.

    Args:
        collections: by what people call them, decoded at one size.
    """
    small = {name: thumbnails(arrays.images) for name, arrays in collections.items()}
    sentences = []
    for one, other in combinations(small, 2):
        ours, split = np.concatenate([small[one], small[other]]), len(small[one])
        pairs = [(a, b) for a, b in similar_pairs(ours, THRESHOLD) if a < split <= b]
        if pairs:
            first, second = pairs[0]
            names = collections[one].ids[first], collections[other].ids[second - split]
            sentences.append(
                f"{_images(len({a for a, _ in pairs}))} of {one} look like images of {other} "
                f"(correlation above {THRESHOLD}), such as {names[0]} and {names[1]}; if they show "
                "the same people, take them out of one"
            )
    return sentences


def _images(count: int) -> str:
    return f"{count} image{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
