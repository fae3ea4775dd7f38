"""A folder as arrays: read, select a part, decode once.

Decoded images and masks are kept as memory-mapped uint8 arrays, keyed by content and size: the
second epoch reads no PNG, and neither does the second run. What was wrong with a file is kept
beside its pixels, so that data which nobody accepted are refused the second time as well.
The cache holds private pixels, so its folder is for its owner only (mode 0700).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from canal.data.arrays import Arrays
from canal.data.case import Case, DataSet, Problem, is_volume, refuse
from canal.data.check import problems_of, unreadable
from canal.data.decode import (
    GREY_TOLERANCE,
    Flaw,
    Inspection,
    Pixels,
    Size,
    decode,
    decode_image,
    open_picture,
)
from canal.data.readers import read
from canal.data.split import Split
from canal.errors import DataError

# To be raised when pixels or inspections are made in another way; it changes every key.
_VERSION = 2
_INSPECTIONS = "seen.json"


def load(
    path: Path | str,
    *,
    size: int = 64,
    split: Path | str | None = None,
    part: str = "recipient",
    channels: int | None = None,
    keep_healthy: bool = True,
    unlabelled: bool = False,
    accept: Collection[str] = (),
    progress: Callable[[int], None] = lambda count: None,
) -> Arrays:
    """Read a data set, or one part of it, in any layout that we know; refuse what is to be fixed.

    All that `canal data check` finds is found here too, so nobody learns from, or pays for, data
    that are not what they seem.

    Args:
        path: the folder, as it was downloaded.
        size: pixels a side.
        split: file of a split; None for all cases.
        part: of the split: `test`, `recipient`, `pooled` (all but the test), or a cohort.
        channels: 3 or 1; found out from the images if not given.
        keep_healthy: keep cases that are known to show no lesion.
        unlabelled: take images without a mask too.
        accept: names of findings that are taken as they are, of `canal.data.case.ACCEPTABLE`.
        progress: called with 1 for every case that had to be decoded.
    """
    data, cases = select(
        *(path, split, part), keep_healthy=keep_healthy, unlabelled=unlabelled, accept=accept
    )
    # Found out from the whole, so that all parts of a data set agree.
    channels = count_channels(data.cases) if channels is None else channels
    return load_cases(
        cases,
        size=(size,) * data.spatial_dims,
        channels=channels,
        root=data.root,
        accept=accept,
        progress=progress,
    )


def select(
    path: Path | str,
    split: Path | str | None,
    part: str,
    *,
    keep_healthy: bool = True,
    unlabelled: bool = False,
    accept: Collection[str] = (),
) -> tuple[DataSet, tuple[Case, ...]]:
    """List a data set, and the cases of one part of it, without decoding them.

    The arguments are those of `load`.
    """
    data = read(Path(path), keep_healthy=keep_healthy, unlabelled=unlabelled)
    data.check(accept)
    if split is None:
        return data, data.cases
    parts = Split.read(Path(split))
    parts.check_patients(data.cases)
    return data, data.select(parts.part(part))


def default_folder() -> Path:
    """The folder of decoded arrays: `$CANAL_CACHE`, or below the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("CANAL_CACHE") or Path(base) / "canal")


def count_channels(cases: Sequence[Case], sample: int = 16) -> int:
    """3 if any of the first images shows colour, else 1; a volume brings its own."""
    for case in cases[:sample]:
        if is_volume(case.image[0]):
            return len(decode_image(case, size=None, channels=1))
        try:
            if open_picture(case.image[0]).mode in ("L", "1", "I;16", "I"):
                continue
            colours = decode_image(case, size=(32, 32), channels=3)[:3].astype(np.int16)
        except DataError:  # whoever loads the case refuses it, with all others like it
            continue
        if np.ptp(colours, axis=0).max() > GREY_TOLERANCE:
            return 3
    return 1


def load_cases(
    cases: Sequence[Case],
    *,
    size: Size,
    channels: int | None = None,
    folder: Path | None = None,
    root: Path | None = None,
    accept: Collection[str] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> Arrays:
    """Decode the cases, or map what an earlier call decoded; refuse those with problems.

    Args:
        cases: at least one.
        size: of every row.
        channels: 3 or 1; found out from the first few images if not given.
        folder: of the cache.
        root: of the data set, by which files are called in messages.
        accept: names of problems that are taken as they are, of `canal.data.case.ACCEPTABLE`.
        progress: called with 1 for every case that had to be decoded.
    """
    if not cases:
        raise DataError("there are no cases to load; check the folder with `canal data check`")
    folder = default_folder() if folder is None else folder
    root = cases[0].image[0].parent if root is None else root
    dims = 3 if is_volume(cases[0].image[0]) else 2
    if len(size) != dims:
        raise DataError(
            f"size = {size!r} has {len(size)} sides, but {cases[0].id} has {dims}; "
            f"give {dims} lengths"
        )
    channels = count_channels(cases) if channels is None else channels
    entries = [[case.id, _content(case), list(case.labels)] for case in cases]
    recipe = json.dumps([_VERSION, list(size), channels, entries])
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    place = folder / digest[:32]
    if not place.is_dir():
        try:
            _decode(cases, size, channels, place, root, progress)
        except OSError as error:
            raise DataError(
                f"cannot keep decoded images in {folder}: {error.strerror or error}; mend that, or "
                "name another folder in CANAL_CACHE"
            ) from error
    refuse(problems_of(cases, _read_inspections(place / _INSPECTIONS), root), root, accept)
    images = np.load(place / "images.npy", mmap_mode="r")
    masks = np.load(place / "masks.npy", mmap_mode="r")
    return Arrays(
        tuple(case.id for case in cases),
        images,
        masks,
        digest,
        frozenset(case.id for case in cases if not case.masks),
        {case.id: case.patient for case in cases},
    )


def _content(case: Case) -> str:
    """Digest of the bytes of a case's files."""
    digest = hashlib.sha256()
    for path in (*case.image, *case.masks):
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}; replace the file") from error
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _read_inspections(path: Path) -> list[Inspection]:
    rows = json.loads(path.read_text())
    return [
        Inspection(**row | {"flaws": tuple(Flaw(**flaw) for flaw in row["flaws"])}) for row in rows
    ]


def _decode(
    cases: Sequence[Case],
    size: Size,
    channels: int,
    place: Path,
    root: Path,
    progress: Callable[[int], None],
) -> None:
    """Decode the cases into a folder that is there as a whole, or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    work = Path(tempfile.mkdtemp(prefix=".decoding-", dir=place.parent))
    try:
        _write_arrays(cases, size, channels, work, root, progress)
        try:
            work.rename(place)
        except OSError:  # another process was faster, with the same bytes
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_arrays(
    cases: Sequence[Case],
    size: Size,
    channels: int,
    work: Path,
    root: Path,
    progress: Callable[[int], None],
) -> None:
    def decoded(case: Case) -> tuple[Pixels, Pixels | None, Inspection] | Problem:
        try:
            return decode(case, size=size, channels=channels)
        except DataError as error:
            return unreadable(case, root, str(error))

    def opened(name: str, shape: Size) -> NDArray[np.uint8]:
        return np.lib.format.open_memmap(work / name, mode="w+", dtype=np.uint8, shape=shape)

    masks = opened("masks.npy", (len(cases), 1, *size))
    images: NDArray[np.uint8] | None = None
    inspections, broken = [], []
    with ThreadPoolExecutor() as pool:  # Pillow and zlib work outside of the interpreter lock
        for row, found in enumerate(pool.map(decoded, cases)):
            progress(1)
            if isinstance(found, Problem):
                broken.append(found)
                continue
            image, mask, inspection = found
            if images is None:  # only now it is known how many channels a volume has
                images = opened("images.npy", (len(cases), *image.shape))
            if image.shape != images.shape[1:]:
                raise DataError(
                    f"{cases[row].id} has {len(image)} channels, others have {images.shape[1]}; "
                    "all cases of a data set have the same"
                )
            images[row] = image
            if mask is not None:
                masks[row] = mask
            inspections.append(asdict(inspection))
    refuse(broken, root)
    for array in (images, masks):
        assert isinstance(array, np.memmap)  # noqa: S101  # at least one case was read
        array.flush()
    (work / _INSPECTIONS).write_text(json.dumps(inspections))
