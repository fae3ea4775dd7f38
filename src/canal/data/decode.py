"""Decodes files to uint8 arrays: images as `[C, *size]`, masks as `[1, *size]` of zeros and ones.

The foreground of a mask is what its file says: the labels of a label map; white, from 128 on, in a
grey mask; and in a lossless one without white but with one other value beside zero (0 and 1 is a
common export), that value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from canal.data.case import Case, is_volume
from canal.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MASK_THRESHOLD = 128  # JPEG masks have grey edges
GREY_TOLERANCE = 8  # and JPEG greys have a tinge
WHITE = "save masks as 0 and 255"
# Volumes come on no common scale; these percentiles become black and white.
_VOLUME_WINDOW = (0.5, 99.5)

Pixels = NDArray[np.uint8]
Size = tuple[int, ...]


@dataclass(frozen=True)
class Flaw:
    """A problem in one file of a case.

    Args:
        name: one of `canal.data.case.ACCEPTABLE`.
        what: what is wrong with it.
        remedy: what to do.
        file: which of the case's, images first.
    """

    name: str
    what: str
    remedy: str
    file: int = 0


@dataclass(frozen=True)
class Inspection:
    """Facts about the files of a case, found while decoding them.

    Args:
        size: of the image in its file.
        empty: there is a mask, and nothing in it.
        dark: the value that was read as foreground in a mask without white; 0: there is none.
        white: whether a mask has any.
        flaws: of its files.
    """

    size: Size
    empty: bool = False
    dark: int = 0
    white: bool = False
    flaws: tuple[Flaw, ...] = ()


@dataclass(frozen=True)
class _Truth:
    """Foreground of one mask file, or of several."""

    foreground: NDArray[np.bool_]
    dark: int = 0
    white: bool = False
    flaws: tuple[Flaw, ...] = ()


def decode(
    case: Case, *, size: Size | None, channels: int
) -> tuple[Pixels, Pixels | None, Inspection]:
    """Decode a case, and say what is wrong with its files.

    Args:
        case: with or without masks.
        size: of the arrays; None keeps the original.
        channels: 3 for colour, 1 for grey; a volume brings its own.

    Returns:
        The image, the mask if there is one, and its inspection.
    """
    planes = _planes(case, channels)
    found = planes[0].shape if isinstance(planes[0], np.ndarray) else planes[0].size[::-1]
    image = _stack(planes, size)
    flaws = []
    if all(_is_blank(plane) for plane in planes):
        flaws.append(
            Flaw("blank-image", "is an image of one colour", "replace the file or take it out")
        )
    if not case.masks:
        return image, None, Inspection(found, flaws=tuple(flaws))
    truth = _truth(case)
    if truth.foreground.shape != found:
        what = f"has size {truth.foreground.shape}, its image {found}"
        remedy = "export the mask at the size of its image"
        flaws.append(Flaw("mask-size", what, remedy, len(case.image)))
    inspection = Inspection(
        *(found, not truth.foreground.any(), truth.dark, truth.white),
        (*flaws, *truth.flaws),
    )
    return image, _fit(truth.foreground, size), inspection


def decode_image(case: Case, *, size: Size | None, channels: int) -> Pixels:
    """Decode the image of a case.

    Args:
        case: whose image.
        size: height and width, or three lengths of a volume; None keeps the original.
        channels: 3 for colour, 1 for grey; a volume brings its own, one or more a file.
    """
    return _stack(_planes(case, channels), size)


def _planes(case: Case, channels: int) -> list[Image | Pixels]:
    if is_volume(case.image[0]):
        parts = [part for path in case.image for part in _channels_of(_read_volume(path), path)]
        return [_window(part) for part in parts]
    mode = "RGB" if channels == 3 else "L"
    return [_eight_bit(open_picture(path)).convert(mode) for path in case.image]


def _stack(planes: list[Image | Pixels], size: Size | None) -> Pixels:
    """Planes of one size, as channels of one array."""
    parts = []
    for plane in planes:
        if isinstance(plane, np.ndarray):
            parts.append(_resize_volume(plane, size)[None])
            continue
        resized = plane if size is None else plane.resize((size[1], size[0]), resample=_bilinear())
        array = np.asarray(resized)
        parts.append(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
    return np.ascontiguousarray(np.concatenate(parts))


def _is_blank(plane: Image | Pixels) -> bool:
    if isinstance(plane, np.ndarray):
        return bool(plane.min() == plane.max())
    extremes = plane.getextrema()
    bands = extremes if isinstance(extremes[0], tuple) else (extremes,)
    return all(low == high for low, high in bands)


def decode_mask(case: Case, *, size: Size | None) -> Pixels:
    """Decode the truth of a case: the union of its masks, or its foreground labels."""
    return _fit(_truth(case).foreground, size)


def _truth(case: Case) -> _Truth:
    """The union of the masks of a case."""
    truths: list[_Truth] = []
    for number, path in enumerate(case.masks, start=len(case.image)):
        truth = _labelled(path, case.labels) if case.labels else _drawn(path)
        if truths and truths[0].foreground.shape != truth.foreground.shape:
            raise DataError(
                f"{path} has size {truth.foreground.shape}, the other masks of {case.id} "
                f"{truths[0].foreground.shape}; bring all masks of an image to its size"
            )
        flaws = tuple(replace(flaw, file=number) for flaw in truth.flaws)
        truths.append(replace(truth, flaws=flaws))
    if not truths:
        raise DataError(f"{case.id} has no mask; add one, or leave the case out")
    return _Truth(
        reduce(np.logical_or, [truth.foreground for truth in truths]),
        max(truth.dark for truth in truths),
        any(truth.white for truth in truths),
        tuple(flaw for truth in truths for flaw in truth.flaws),
    )


def _labelled(path: Path, labels: tuple[int, ...]) -> _Truth:
    """The foreground of a label map."""
    if is_volume(path):
        values = _read_volume(path)
        if values.ndim != 3:
            raise DataError(f"{path} has {values.ndim} axes; export it as a volume of 3")
    else:
        picture = open_picture(path)
        # The values of a palette are its indices, not the colours that a viewer shows.
        values = np.asarray(picture if picture.mode == "P" else picture.convert("L"))
    unknown = np.setdiff1d(values, (0, *labels))
    if not len(unknown):
        return _Truth(np.isin(values, labels))
    what = f"holds the value {unknown[-1]:g}, which is none of the labels of this data set"
    flaw = Flaw("mask-values", what, "name it among them, or export the labels that they name")
    return _Truth(np.isin(values, labels), flaws=(flaw,))


def _drawn(path: Path) -> _Truth:
    """The foreground of a grey mask, by brightness."""
    if is_volume(path):
        raise DataError(f"{path} is a volume without labels; name them in the data set's file")
    values = np.asarray(open_picture(path).convert("L"))
    top = int(values.max())
    # A JPEG has grey where there is nothing.
    if top >= MASK_THRESHOLD or not top or path.suffix.lower() in (".jpg", ".jpeg"):
        return _Truth(values >= MASK_THRESHOLD, white=top >= MASK_THRESHOLD)
    if top == 1 or (not values.all() and np.isin(values, (0, top)).all()):
        return _Truth(values == top, dark=top)
    what = f"holds several values up to {top}, and counts as empty below {MASK_THRESHOLD}"
    return _Truth(np.zeros(values.shape, dtype=bool), flaws=(Flaw("mask-values", what, WHITE),))


def _fit(union: NDArray[np.bool_], size: Size | None) -> Pixels:
    if size is None or union.shape == size:
        return union[None].astype(np.uint8)
    if union.ndim == 3:
        grown = _resize_volume(union.astype(np.uint8) * 255, size)
        return (grown >= MASK_THRESHOLD)[None].astype(np.uint8)
    from PIL import Image

    picture = Image.fromarray(union.astype(np.uint8) * 255)
    # BOX: a pixel is foreground when at least half of the area that it stands for is.
    small = np.asarray(picture.resize((size[1], size[0]), resample=Image.Resampling.BOX))
    return (small >= MASK_THRESHOLD)[None].astype(np.uint8)


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
    """Stretch the range between two percentiles over 0 to 255."""
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
