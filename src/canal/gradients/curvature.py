r"""Where noise harms: the curvature of the recipient's own loss, seen from its images alone.

With J the derivative of an image's logits and p their probabilities, the Gauss-Newton matrix of the
mean cross-entropy is $J^\top \mathrm{diag}(p(1-p)) J$ over the number of pixels: how much a small
change of the parameters costs, whatever the labels. For r of independent signs
$$\mathbb E\,(J^\top \sqrt{p(1-p)}\, r)_i^2$$
is its diagonal, so one pass back from random signs says of every parameter what noise in it harms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Signs:
    """A loss whose gradient, squared, is the diagonal of the Gauss-Newton matrix, on average.

    Args:
        seed: of the signs; public.
    """

    def __init__(self, seed: int = 0) -> None:
        import torch

        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, logits: Tensor, masks: Tensor) -> Tensor:  # noqa: ARG002
        """Of each image, `[B]`."""
        import torch

        chance = logits.detach().sigmoid()
        signs = torch.randint(2, logits.shape, generator=self._generator).to(logits) * 2 - 1
        pixels = logits[0].numel()
        weight = (chance * (1 - chance) / pixels).sqrt() * signs
        return (logits * weight).flatten(1).sum(1)
