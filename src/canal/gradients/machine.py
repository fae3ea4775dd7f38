"""The machine is tried, on public images: it must keep the patients of one batch apart, to the bit.

Kernels are chosen by the shape of a batch, and some let images that are computed together into each
other's last bits. One patient more or less would then change what others add, and no clip bounds
that. A machine that does so is refused before anything private is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from canal.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import Tensor

    from canal.gradients.gradients import Gradients


def check_rows(gradients: Gradients, images: Tensor, masks: Tensor) -> None:
    """See, on public images, that a row depends on its image alone: not on others, nor on chance.

    Args:
        gradients: of the network.
        images: a batch as large as those to come; public.
        masks: of the same.

    Raises:
        InvalidValueError: some kernel lets one image into the last bits of another, or computes
            other bits the second time.
    """
    import torch

    rows = gradients(images, masks)
    if not torch.equal(rows, gradients(images, masks)):
        raise InvalidValueError(
            "this machine computes the same gradient in other last bits the second time; set "
            "OMP_NUM_THREADS=1, or compute on the CPU"
        )
    turned = gradients(images.roll(1, 0), masks.roll(1, 0)).roll(-1, 0)
    others = torch.cat([images[:1], torch.zeros_like(images[1:])])
    alone = gradients(others, torch.cat([masks[:1], torch.zeros_like(masks[1:])]))
    # Every second image is another one, ten times as bright: those between must not notice.
    bright, inverse = images.clone(), masks.clone()
    bright[1::2], inverse[1::2] = -10 * images[1::2], 1 - masks[1::2]
    beside = gradients(bright, inverse)
    if (
        not torch.equal(rows, turned)
        or not torch.equal(rows[0], alone[0])
        or not torch.equal(rows[::2], beside[::2])
    ):
        raise InvalidValueError(
            "the kernels of this machine let images that are computed together into each other's "
            "last bits, so one patient could show in another's part; take a chunk of 1"
        )


def made_up(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Images that show nothing, and masks of it, as `check_rows` may see them."""
    import torch

    generator = torch.Generator().manual_seed(0)
    images = torch.rand(shape, generator=generator) * 2 - 1
    return images, (images[:, :1] > 0).float()
