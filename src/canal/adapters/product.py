"""A product of two thin convolutions beside one that stays as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

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
        shape = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding")}
        if layer.transposed:
            shape["output_padding"] = layer.output_padding
        flat = getattr(nn, f"Conv{len(layer.kernel_size)}d")
        self.layer = layer
        self.inner = type(layer)(
            layer.in_channels, rank, dilation=layer.dilation, bias=False, **shape
        )
        self.outer = flat(rank, layer.out_channels, 1, bias=False)
        with torch.no_grad():
            fan_in = self.inner.weight.numel() / rank
            self.inner.weight.normal_(std=fan_in**-0.5, generator=generator)
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
