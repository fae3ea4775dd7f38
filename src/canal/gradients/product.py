"""A product of two thin convolutions beside one that stays as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from canal.errors import InvalidValueError


class Product(nn.Module):
    """A convolution and, beside it, one to few channels and one back.

    Args:
        layer: stays as it is.
        rank: the few channels.
        generator: of the first factor; the second is zero, so nothing changes at first.
    """

    def __init__(self, layer: Any, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        if layer.groups > 1:
            raise InvalidValueError("a convolution in groups has no product beside it")
        alike = ("kernel_size", "stride", "padding", "dilation", "padding_mode")
        shape = {name: getattr(layer, name) for name in alike}
        if layer.transposed:
            shape["output_padding"] = layer.output_padding
        flat = getattr(nn, f"Conv{len(layer.kernel_size)}d")
        self.layer = layer
        # Without weights at first: nobody else's random numbers are drawn.
        there = {"bias": False, "device": layer.weight.device, "dtype": layer.weight.dtype}
        self.inner = skip_init(type(layer), layer.in_channels, rank, **shape, **there)
        self.outer = skip_init(flat, rank, layer.out_channels, 1, **there)
        with torch.no_grad():
            fan_in = self.inner.weight.numel() / rank
            drawn = torch.empty(self.inner.weight.shape)
            self.inner.weight.copy_(drawn.normal_(std=fan_in**-0.5, generator=generator))
            self.outer.weight.zero_()

    def forward(self, images: Tensor) -> Tensor:
        """Both, added up."""
        there: Tensor = self.layer(images) + self.outer(self.inner(images))
        return there

    def folded(self) -> nn.Module:
        """The layer alone, with the product in its weights."""
        back = self.outer.weight.flatten(1)
        rule = "or,ir...->io..." if self.layer.transposed else "or,ri...->oi..."
        with torch.no_grad():
            self.layer.weight += torch.einsum(rule, back, self.inner.weight)
        layer: nn.Module = self.layer
        return layer
