r"""Three synthetic hospitals that share one task: outline the lesion.

For demonstrations and tests where no patient's image may be used. Each hospital sees its lesions
through another instrument, so that a model trained in one of them does not simply work in the next:

============  ======================================  ==========================================
hospital      the lesion                              what only resembles it
============  ======================================  ==========================================
dermoscopy    pigment in a fine pattern, under hair   flat or blotchy stains of that pigment
endoscopy     a dome with pits, under glare           smooth domes of the same colour
ultrasound    fine echoes in a mass, under speckle    cysts and muscle that return as much
============  ======================================  ==========================================

A lesion is told from its decoys by what is inside, which is fine and alike in all directions, not
by colour; that is what makes forty images too few to learn it from.

Guarantees:
    Image i of a hospital depends on the seed, the size and i, and on nothing else: not on how many
    were asked for, nor on whether the other hospitals were asked for as well. Grey is the luminance
    of the colour image. No mask is empty.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count as count_from
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from canal.data.painting import Blob, Field, Rng, dermoscopy, endoscopy, smooth, ultrasound
from canal.errors import InvalidValueError

Pixels = NDArray[np.uint8]

_PAINTERS = {"dermoscopy": dermoscopy, "endoscopy": endoscopy, "ultrasound": ultrasound}
HOSPITALS = tuple(_PAINTERS)
SMALLEST_SIDE = 16
MOST_VIEWS = 3

_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)


@dataclass(frozen=True)
class SyntheticSet:
    """Images with their lesions outlined, in the order of generation.

    Args:
        images: uint8, [N, C, *size].
        masks: uint8, [N, 1, *size]; 1 inside the lesion, 0 elsewhere.
        patients: whose image it is; one patient has one to three, which show the same lesion.
        sites: the hospital of each image.
        ids: the name of each image, unique over all hospitals.
    """

    images: Pixels
    masks: Pixels
    patients: tuple[str, ...]
    sites: tuple[str, ...]
    ids: tuple[str, ...]


def generate(
    count: int,
    *,
    size: tuple[int, ...] = (64, 64),
    channels: int = 3,
    hospital: str | None = None,
    most_views: int = MOST_VIEWS,
    seed: int = 0,
) -> SyntheticSet:
    """Draw a number of images with their masks.

    Args:
        count: how many images; patients follow from it.
        size: pixels along each axis, two or three of them; the first is depth for ultrasound.
        channels: 3 for colour, 1 for grey.
        hospital: one of `HOSPITALS`; by default all three in turn.
        most_views: images of one patient, at most.
        seed: another seed, other patients.

    >>> few = generate(4, size=(32, 32))
    >>> few.images.shape, few.sites[:2]
    ((4, 3, 32, 32), ('dermoscopy', 'endoscopy'))
    """
    _check(count, size, channels, hospital, most_views, seed)
    asked = HOSPITALS if hospital is None else (hospital,)
    visits = {site: _visits(seed, site, most_views) for site in asked}
    images = np.empty((count, channels, *size), np.uint8)
    masks = np.empty((count, 1, *size), np.uint8)
    sites = tuple(asked[number % len(asked)] for number in range(count))
    patients, ids = [], []
    for number, site in enumerate(sites):
        patient, view = next(visits[site])
        colour, lesion = _photograph(seed, site, patient, view, size)
        seen = colour if channels == 3 else np.tensordot(_LUMINANCE, colour, 1)[None]
        images[number] = np.rint(255 * np.clip(seen, 0, 1))
        masks[number, 0] = lesion
        patients.append(f"{site}-{patient:04d}")
        ids.append(f"{site}-{patient:04d}-{view}")
    return SyntheticSet(images, masks, tuple(patients), sites, tuple(ids))


def _stream(seed: int, site: str, *path: int) -> Rng:
    """Random numbers of one patient, or of one view of that patient, whatever else is drawn."""
    key = (HOSPITALS.index(site), *path)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def _visits(seed: int, site: str, most: int) -> Iterator[tuple[int, int]]:
    """Patient after patient, each with all of its views, or the first ones."""
    for patient in count_from():
        views = int(_stream(seed, site, patient).integers(1, MOST_VIEWS + 1))
        yield from ((patient, view) for view in range(min(views, most)))


def _photograph(
    seed: int, site: str, patient: int, view: int, size: tuple[int, ...]
) -> tuple[Field, NDArray[np.bool_]]:
    """One view: colour in [3, *size], about 0 to 1, and the inside of the lesion."""
    body, sight = _stream(seed, site, patient), _stream(seed, site, patient, view)
    body.integers(1, MOST_VIEWS + 1)  # spent on the number of views
    # Every side runs from -1 to 1: the share that a lesion takes does not depend on the size.
    sides = [np.linspace(-1 + 1 / n, 1 - 1 / n, n, dtype=np.float32) for n in size]
    grid = np.stack(np.meshgrid(*sides, indexing="ij"))

    lesion = Blob.draw(body, len(size), radius=(0.28, 0.50))
    lesion_seen = lesion.view(sight, grid, reach=0.6)
    decoys = []
    for _ in range(sight.integers(1, 4)):
        decoy = Blob.draw(sight, len(size), radius=(0.25, 0.50))
        seen = decoy.view(sight, grid, reach=0.85, beside=lesion_seen)
        # It may lie under the lesion, never over it.
        decoys.append(replace(seen, cover=seen.cover * (1 - lesion_seen.cover)))

    colour = _PAINTERS[site](body, sight, grid, lesion_seen, decoys)
    blur = sight.uniform(0.25, 0.65) / 64
    gamma = sight.uniform(0.8, 1.25)
    colour = smooth(np.clip(colour, 0, 1) ** gamma, [0, *(blur * n for n in size)])
    colour += sight.normal(0, 0.012, size).astype(np.float32)
    return colour, lesion_seen.level > 0


def _check(
    count: int,
    size: tuple[int, ...],
    channels: int,
    hospital: str | None,
    most_views: int,
    seed: int,
) -> None:
    if count < 1:
        raise InvalidValueError(f"count = {count!r} must be at least 1; ask for one image or more")
    if len(size) not in (2, 3) or min(size) < SMALLEST_SIDE:
        raise InvalidValueError(
            f"size = {size!r} must have 2 or 3 sides of at least {SMALLEST_SIDE} pixels, "
            "such as (64, 64) or (32, 32, 32)"
        )
    if channels not in (1, 3):
        raise InvalidValueError(f"channels = {channels!r} must be 3 for colour or 1 for grey")
    if hospital is not None and hospital not in HOSPITALS:
        raise InvalidValueError(
            f"hospital = {hospital!r} must be one of {', '.join(HOSPITALS)}, or None for all three"
        )
    if most_views < 1:
        raise InvalidValueError(f"most_views = {most_views!r} must be at least 1")
    if seed < 0:
        raise InvalidValueError(f"seed = {seed!r} must not be negative; take 0 or above")


def write(
    root: Path,
    count: int,
    *,
    size: tuple[int, ...] = (64, 64),
    channels: int = 3,
    most_views: int = MOST_VIEWS,
    seed: int = 0,
) -> None:
    """Write a mixed set to disk as hospitals keep theirs: PNG folders in 2D, the MSD layout in 3D.

    Each hospital has a folder of its own with a `metadata.csv` that says whose image is whose; the
    one in `root` does so for all of them, with the hospital in front of the name.

    Args:
        root: the folder to write to; made if it is not there.
        count: how many images over all hospitals.
        size: as for `generate`; two sides make PNG files, three make NIfTI volumes.
        channels: 3 for colour, 1 for grey.
        most_views: images of one patient, at most.
        seed: as for `generate`.
    """
    drawn = generate(count, size=size, channels=channels, most_views=most_views, seed=seed)
    for site in dict.fromkeys(drawn.sites):
        rows = [row for row, owner in enumerate(drawn.sites) if owner == site]
        (_write_png if len(size) == 2 else _write_msd)(root / site, drawn, rows)
        _write_metadata(root / site, [(drawn.ids[row], drawn.patients[row]) for row in rows])
    named = (f"{site}/{name}" for site, name in zip(drawn.sites, drawn.ids, strict=True))
    _write_metadata(root, zip(named, drawn.patients, strict=True))


def _write_metadata(folder: Path, rows: Iterable[tuple[str, str]]) -> None:
    with (folder / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("image_id", "patient_id"), *rows])


def _write_png(folder: Path, drawn: SyntheticSet, rows: list[int]) -> None:
    from PIL import Image

    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for row in rows:
        file = f"{drawn.ids[row]}.png"
        pixels = np.ascontiguousarray(np.moveaxis(drawn.images[row], 0, -1).squeeze())
        Image.fromarray(pixels).save(folder / "images" / file)
        # White, not 1: a mask should be seen for what it is in any viewer.
        Image.fromarray(255 * drawn.masks[row, 0]).save(folder / "masks" / file)


def _write_msd(folder: Path, drawn: SyntheticSet, rows: list[int]) -> None:
    import nibabel

    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for row in rows:
        # NIfTI keeps channels last; a grey volume has no such axis.
        volume = np.moveaxis(drawn.images[row], 0, -1)
        volume = volume[..., 0] if volume.shape[-1] == 1 else volume
        for name, values in (("imagesTr", volume), ("labelsTr", drawn.masks[row, 0])):
            image = nibabel.Nifti1Image(values, np.eye(4))
            nibabel.save(image, folder / name / f"{drawn.ids[row]}.nii.gz")
    colours = ("red", "green", "blue") if drawn.images.shape[1] == 3 else ("grey",)
    named = {str(channel): colour for channel, colour in enumerate(colours)}
    description = {
        "name": f"synthetic {folder.name}",
        "description": "drawn by canal.data.synthetic; no patient was involved",
        "modality": named,  # as MSD spells it
        "channel_names": named,  # as nnU-Net does
        "labels": {"background": 0, "lesion": 1},
        "file_ending": ".nii.gz",
        "numTraining": len(rows),
        "training": [
            {
                "image": f"./imagesTr/{drawn.ids[row]}.nii.gz",
                "label": f"./labelsTr/{drawn.ids[row]}.nii.gz",
            }
            for row in rows
        ],
    }
    (folder / "dataset.json").write_text(json.dumps(description, indent=2) + "\n")
