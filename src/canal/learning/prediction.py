"""Predicts masks: of arrays, or of a folder in the size and the kind of file of each image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from canal.data.case import Case, is_volume
from canal.data.decode import decode_image, open_picture
from canal.errors import DataError
from canal.learning.networks import evaluating, home, to_float

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from canal.data.arrays import Arrays
    from canal.learning.checkpoint import Checkpoint


def write_masks(
    network: nn.Module,
    made: Checkpoint,
    cases: tuple[Case, ...],
    out: Path,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Path]:
    """Segment every image and write its mask, PNG for a picture and NIfTI for a volume.

    Args:
        network: trained.
        made: its description.
        cases: whose images.
        out: folder of the masks; named as the images are.
        progress: called with 1 for every image.
    """
    import torch

    images = {image.resolve() for case in cases for image in case.image}
    for case in cases:
        target = _target(out, case)
        if target.resolve() in images:
            raise DataError(f"{target} is one of the images; give another --out for the masks")
    written = []
    with evaluating(network), torch.no_grad():
        for case in cases:
            pixels = decode_image(case, size=made.size, channels=made.architecture["in_channels"])
            batch = to_float(torch.from_numpy(pixels[None].copy())).to(home(network))
            logits = network(batch)[0].cpu()
            target = _target(out, case)
            target.parent.mkdir(parents=True, exist_ok=True)
            write = _write_volume if is_volume(case.image[0]) else _write_picture
            write(target, case.image[0], logits.numpy())
            written.append(target)
            progress(1)
    return written


def _target(out: Path, case: Case) -> Path:
    """The file of a mask."""
    return out / f"{case.id}{'.nii.gz' if is_volume(case.image[0]) else '.png'}"


def _write_picture(target: Path, image: Path, logits: NDArray[np.float32]) -> None:
    from PIL import Image

    size = open_picture(image).size
    # The logits are resized, not the mask: an outline stays smooth.
    grown = Image.fromarray(logits[0]).resize(size, resample=Image.Resampling.BILINEAR)
    Image.fromarray(np.where(np.asarray(grown) > 0, 255, 0).astype(np.uint8)).save(target)


def _write_volume(target: Path, image: Path, logits: NDArray[np.float32]) -> None:
    import nibabel
    import torch

    original = nibabel.load(image)
    shape = tuple(original.shape[:3])  # type: ignore[attr-defined]
    if len(shape) != 3:
        raise DataError(f"{image} is no volume of 3 axes; export it as one")
    grown = torch.nn.functional.interpolate(
        torch.from_numpy(logits[None]), size=shape, mode="trilinear"
    )
    mask = (grown[0, 0] > 0).to(torch.uint8).numpy()
    nibabel.save(nibabel.Nifti1Image(mask, original.affine), target)  # type: ignore[attr-defined]


_BATCH = 32


def predict(network: nn.Module, arrays: Arrays) -> NDArray[np.uint8]:
    """Masks of all images, `[N, 1, *size]` of zeros and ones."""
    import torch

    masks = []
    with evaluating(network), torch.no_grad():
        for start in range(0, len(arrays.ids), _BATCH):
            pixels = torch.from_numpy(np.array(arrays.images[start : start + _BATCH]))
            logits = network(to_float(pixels).to(home(network)))
            masks.append((logits > 0).to(torch.uint8).cpu().numpy())
    return np.concatenate(masks)


def sample(arrays: Arrays, count: int = 64) -> Tensor:
    """The first images, as a network wants them."""
    import torch

    return to_float(torch.from_numpy(np.array(arrays.images[:count])))
