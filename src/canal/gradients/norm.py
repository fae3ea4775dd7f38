r"""Norms whose scale and shift are every image's own, so that their gradients are too.

With $\hat x = (x - m) / s$ over a group of n values, scale w, shift b and the gradient g at the
output, summed over positions p,

$$ \partial w = \sum_p g \hat x, \qquad \partial b = \sum_p g, \qquad
   \partial x = \frac1s\left(w g - \frac1n \sum_c w_c\,\partial b_c
                             - \hat x \frac1n \sum_c w_c\,\partial w_c\right). $$

The two sums that the gradient at the input needs anyway are the gradients of the weights, and
torch's own kernel for channels that lie last is slow (`python -m bench adapters` has both).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def is_plain(module: nn.Module) -> bool:
    """Is it a norm of an image's own statistics, and nothing that may compute another?"""
    kind: Any = type(module)
    if "forward" in vars(module):  # somebody has put their own there
        return False
    if kind in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d):
        return not module.track_running_stats
    return kind is nn.GroupNorm


@contextmanager
def apart(network: nn.Module, wanted: Collection[str]) -> Iterator[list[tuple[str, Tensor]]]:
    """Inside, every plain norm has weights for each image.

    Args:
        network: whose norms they are.
        wanted: names of parameters that are differentiated.

    Yields:
        Name and copy `[B, C]` of each wanted parameter, one for each time that it is used; filled
        by a pass.
    """
    used: list[tuple[str, Tensor]] = []
    swapped = {name: each for name, each in network.named_modules() if is_plain(each)}
    try:
        for name, module in swapped.items():
            module.forward = _forward(module, name, wanted, used)
        yield used
    finally:
        for module in swapped.values():
            del module.forward


def _forward(
    module: Any, name: str, wanted: Collection[str], used: list[tuple[str, Tensor]]
) -> Callable[[Tensor], Tensor]:
    def weights(leaf: str, default: float, images: Tensor) -> Tensor:
        one = getattr(module, leaf)
        one = images.new_full(images.shape[1:2], default) if one is None else one
        each, whole = one.expand(images.shape[:2]), f"{name}.{leaf}" if name else leaf
        if whole in wanted:
            each = each.detach().requires_grad_()
            used.append((whole, each))
        return each

    def forward(images: Tensor) -> Tensor:
        groups = getattr(module, "num_groups", images.shape[1])
        scale, shift = weights("weight", 1, images), weights("bias", 0, images)
        found: Tensor = _Norm.apply(images, scale, shift, groups, module.eps)
        return found

    return forward


class _Norm(torch.autograd.Function):
    """A norm with a scale and a shift `[B, C]`."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float
    ) -> Tensor:
        centred = images - _wide(_group_mean(_over(images), groups, images), images)
        rate = (_group_mean(_over(centred * centred), groups, images) + eps).rsqrt()
        ctx.groups = groups
        ctx.save_for_backward(centred, scale, rate)
        return torch.addcmul(_wide(shift, images), centred, _wide(scale * rate, images))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        centred, scale, rate = ctx.saved_tensors
        of_shift = _over(gradient)
        of_scale = _over(gradient * centred) * rate
        if not ctx.needs_input_grad[0]:
            return None, of_scale, of_shift, None, None
        level = rate * _group_mean(scale * of_shift, ctx.groups, gradient)
        slope = rate * rate * _group_mean(scale * of_scale, ctx.groups, gradient)
        found = torch.addcmul(_wide(-level, gradient), gradient, _wide(scale * rate, gradient))
        found.addcmul_(centred, _wide(slope, gradient), value=-1)
        return found, of_scale, of_shift, None, None


def _over(values: Tensor) -> Tensor:
    """Summed over positions, `[B, C]`."""
    return values.sum((*range(2, values.ndim),))


def _wide(values: Tensor, images: Tensor) -> Tensor:
    """`[B, C]`, to be spread over the positions of images."""
    return values.reshape(*values.shape, *(1,) * (images.ndim - 2))


def _group_mean(sums: Tensor, groups: int, images: Tensor) -> Tensor:
    """From sums over positions, the mean of a channel's group, `[B, C]`."""
    batch, channels = sums.shape
    count = images[0].numel() // groups
    means = sums.reshape(batch, groups, -1).sum(2, keepdim=True) / count
    return means.expand(-1, -1, channels // groups).reshape(batch, channels)
