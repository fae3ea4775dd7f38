"""The task loss, image by image: Dice plus cross-entropy."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def task_loss(logits: Tensor, masks: Tensor) -> Tensor:
    """Dice plus binary cross-entropy of each image; no image's loss depends on another's.

    Args:
        logits: `[B, 1, *size]`.
        masks: zeros and ones of the same shape.

    Returns:
        `[B]`; their mean is MONAI's `DiceCELoss(sigmoid=True)`.
    """
    import torch.nn.functional as F  # noqa: N812

    dice = _dice()(logits, masks).flatten(1).mean(1)
    entropy = F.binary_cross_entropy_with_logits(logits, masks, reduction="none")
    per_image: Tensor = dice + entropy.flatten(1).mean(1)
    return per_image


@cache
def _dice() -> Any:
    from monai.losses import DiceLoss

    return DiceLoss(sigmoid=True, reduction="none")
