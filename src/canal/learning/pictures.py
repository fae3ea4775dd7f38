"""Pictures of a segmentation: the plane to show, pixels as colours, the outline of a mask."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from PIL.Image import Image as Picture

Colour = tuple[int, int, int]
TRUTH: Colour = (80, 220, 120)
PREDICTION: Colour = (255, 170, 40)
# Smaller images are enlarged by a whole factor up to this.
SIDE = 192


def enlargement(width: int) -> int:
    """The whole factor by which a picture of this width is shown."""
    return max(1, SIDE // width)


def plane(
    image: NDArray[np.uint8], truth: NDArray[np.uint8], *masks: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], ...]:
    """Cut a volume at the plane where the lesion is largest, or in the middle if there is none.

    Args:
        image: `[C, H, W]`, or `[C, H, W, D]`.
        truth: `[1, H, W]`, or with the same depth.
        masks: others of the same shape.
    """
    if truth.ndim == 3:
        return image, truth, *masks
    areas = truth.sum(axis=(0, 1, 2), dtype=np.int64)
    where = int(areas.argmax()) if areas.any() else len(areas) // 2
    return tuple(each[..., where] for each in (image, truth, *masks))


def shown(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pixels as colours, `[H, W, 3]`."""
    pixels = image if len(image) == 3 else np.repeat(image[:1], 3, axis=0)
    return np.ascontiguousarray(pixels.transpose(1, 2, 0))


def outlined(
    image: NDArray[np.uint8], mask: NDArray[np.uint8], colour: Colour
) -> NDArray[np.uint8]:
    """Pixels as colours, with the outline of a mask."""
    drawn = shown(image).copy()
    drawn[outline(mask[0].astype(bool))] = colour
    return drawn


def outline(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Those inside that have a neighbour outside."""
    padded = np.pad(inside, 1)
    core = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return inside & ~core


def sheet(columns: Sequence[Sequence[NDArray[np.uint8]]], labels: Sequence[str]) -> Picture:
    """Panels `[H, W, 3]` of one size in columns, each enlarged, with a label below each column."""
    from PIL import Image, ImageDraw

    height, width = columns[0][0].shape[:2]
    scale, gap, label = enlargement(width), 6, 18
    side, tall = scale * width + gap, scale * height + gap
    page = Image.new(
        "RGB", (len(columns) * side + gap, len(columns[0]) * tall + gap + label), "white"
    )
    draw = ImageDraw.Draw(page)
    for place, (panels, words) in enumerate(zip(columns, labels, strict=True)):
        left = gap + place * side
        for line, panel in enumerate(panels):
            small = Image.fromarray(panel)
            large = small.resize((scale * width, scale * height), Image.Resampling.NEAREST)
            page.paste(large, (left, gap + line * tall))
        draw.text((left + 2, gap + len(panels) * tall), words, fill="black")
    return page


def png(
    image: NDArray[np.uint8], mask: NDArray[np.uint8] | None = None, colour: Colour = TRUTH
) -> bytes:
    """A picture as a file: enlarged, then outlined two pixels wide, so that little is hidden.

    Args:
        image: `[C, H, W]`.
        mask: `[1, H, W]` to outline.
        colour: of the outline.
    """
    from PIL import Image

    scale = enlargement(image.shape[2])
    picture = Image.fromarray(shown(image))
    drawn = np.array(picture.resize((scale * picture.width, scale * picture.height)))
    if mask is not None:
        inside = mask[0].astype(bool).repeat(scale, axis=0).repeat(scale, axis=1)
        line = outline(inside)
        drawn[line | outline(inside & ~line)] = colour
    file = io.BytesIO()
    Image.fromarray(drawn).save(file, "PNG", optimize=True)
    return file.getvalue()
