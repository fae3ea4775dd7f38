"""From files to uint8 arrays: images as `[C, *size]`, masks as `[1, *size]` of zeros and ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from canal.data.case import Case
from canal.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MASK_THRESHOLD = 128  # JPEG masks have grey edges
GREY_TOLERANCE = 8  # and JPEG greys have a tinge
# Volumes come on no common scale; these percentiles become black and white.
_VOLUME_WINDOW = (0.5, 99.5)

Pixels = NDArray[np.uint8]
Size = tuple[int, ...]


def decode_image(case: Case, *, size: Size | None, channels: int) -> Pixels:
    """Decode the image of a case.

    Args:
        case: whose image.
        size: height and width, or three lengths of a volume; None keeps the original.
        channels: 3 for colour, 1 for grey; a volume brings its own, one or more a file.
    """
    if is_volume(case.image[0]):
        parts = [part for path in case.image for part in _channels_of(_read_volume(path), path)]
        return np.stack([_resize_volume(_window(part), size) for part in parts])
    planes = []
    for path in case.image:
        picture = _eight_bit(open_picture(path)).convert("RGB" if channels == 3 else "L")
        if size is not None:
            picture = picture.resize((size[1], size[0]), resample=_bilinear())
        array = np.asarray(picture)
        planes.append(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
    return np.ascontiguousarray(np.concatenate(planes))


def decode_mask(case: Case, *, size: Size | None) -> Pixels:
    """Decode the truth of a case: the union of its masks, or its foreground labels."""
    union: NDArray[np.bool_] | None = None
    for path in case.masks:
        if is_volume(path):
            mask = np.isin(_read_volume(path), case.labels)
        elif case.labels:
            picture = open_picture(path)
            # The values of a palette are its indices, not the colours that a viewer shows.
            values = np.asarray(picture if picture.mode == "P" else picture.convert("L"))
            mask = np.isin(values, case.labels)
        else:
            mask = np.asarray(open_picture(path).convert("L")) >= MASK_THRESHOLD
        if union is not None and union.shape != mask.shape:
            raise DataError(
                f"{path} has size {mask.shape}, the other masks of {case.id} {union.shape}; "
                "bring all masks of an image to its size"
            )
        union = mask if union is None else union | mask
    if union is None:
        raise DataError(f"{case.id} has no mask; add one, or leave the case out")
    if size is None or union.shape == size:
        return union[None].astype(np.uint8)
    if union.ndim == 3:
        return (_resize_volume(union.astype(np.uint8) * 255, size) >= MASK_THRESHOLD)[None].astype(
            np.uint8
        )
    from PIL import Image

    picture = Image.fromarray(union.astype(np.uint8) * 255)
    # BOX: a pixel is foreground when at least half of the area that it stands for is.
    small = np.asarray(picture.resize((size[1], size[0]), resample=Image.Resampling.BOX))
    return (small >= MASK_THRESHOLD)[None].astype(np.uint8)


def is_volume(path: Path) -> bool:
    """Whether a file is a NIfTI volume."""
    return path.name.endswith((".nii", ".nii.gz"))


def open_picture(path: Path) -> Image:
    """Open and decode a picture, or say which file cannot be."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            picture.load()
            return picture.copy()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path} cannot be decoded ({error}); replace the file or take it out"
        ) from error


def _read_volume(path: Path) -> NDArray[np.float32]:
    import nibabel

    try:
        volume = nibabel.load(path)
        array = np.asarray(volume.dataobj, dtype=np.float32)  # type: ignore[attr-defined]
    # nibabel raises whatever the damaged bytes provoke, zlib and struct errors among them.
    except Exception as error:
        raise DataError(
            f"{path} cannot be decoded ({error}); replace the file or take it out"
        ) from error
    while array.ndim > 3 and array.shape[-1] == 1:
        array = array[..., 0]
    return array


def _channels_of(volume: NDArray[np.float32], path: Path) -> list[NDArray[np.float32]]:
    """MSD keeps the modalities of a scan on a fourth axis of one file."""
    if volume.ndim == 3:
        return [volume]
    if volume.ndim == 4:
        return list(np.moveaxis(volume, -1, 0))
    raise DataError(
        f"{path} has {volume.ndim} axes; export it as a volume of 3, or 4 with channels"
    )


def _eight_bit(picture: Image) -> Image:
    """Scanners write 10 to 16 bits; Pillow alone would cut off all that is above 255."""
    if not picture.mode.startswith(("I", "F")):
        return picture
    from PIL import Image

    return Image.fromarray(_window(np.asarray(picture, dtype=np.float32)))


def _window(volume: NDArray[np.float32]) -> Pixels:
    if not np.isfinite(volume).all():
        volume = np.nan_to_num(volume)
    low, high = np.percentile(volume, _VOLUME_WINDOW)
    scaled = (volume - low) / max(high - low, 1e-6)
    pixels: Pixels = np.rint(np.clip(scaled, 0, 1) * 255).astype(np.uint8)
    return pixels


def _resize_volume(volume: Pixels, size: Size | None) -> Pixels:
    if size is None or volume.shape == size:
        return volume
    import torch

    tensor = torch.from_numpy(volume.astype(np.float32))[None, None]
    resized = torch.nn.functional.interpolate(tensor, size=size, mode="trilinear")
    pixels: Pixels = np.rint(resized[0, 0].numpy()).astype(np.uint8)
    return pixels


def _bilinear() -> int:
    from PIL.Image import Resampling

    return Resampling.BILINEAR
