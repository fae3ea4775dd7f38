"""Make-believe cases on disk, in the folders that hospitals keep theirs in."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from canal.data.synthetic.drawing import MOST_VIEWS, SyntheticSet, generate


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
