r"""Which parameters of the shared network are trained: any by name, and LoRA products.

Beside a convolution there may be a product of two thin ones (LoRA, Hu et al. 2021):
$$W + B A, \qquad A: \text{r channels, drawn from a public seed}, \quad B = 0 \text{ at first.}$$
`merge` folds products into the weights, so that what comes out is the network that went in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import skip_init

from canal.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import Tensor, nn


# Words for what has other names in every network.
NORMS, HEAD, EVERYTHING = "norms", "head", "*"


@dataclass(frozen=True)
class Adapter:
    """Which parameters; all of it public.

    Args:
        parts: patterns of names (`upcat_1.*`), `norms` for scale and shift of every
            normalisation, `head` for the last layer.
        rank: of the products beside convolutions; 0 for none. Beside weights that are all taught
            there is no use for them.
        beside: patterns of the convolutions that have one.
        seed: of their fixed beginning.

    >>> Adapter().parts
    ('*',)
    """

    parts: tuple[str, ...] = (EVERYTHING,)
    rank: int = 0
    beside: tuple[str, ...] = ("*",)
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 0:
            raise InvalidValueError(f"rank = {self.rank!r} must be a whole number, at least 0")
        if not self.parts and not self.rank:
            raise InvalidValueError("an adapter without parameters teaches nothing; name some")
        if self.rank and EVERYTHING in self.parts:
            raise InvalidValueError(
                f"rank = {self.rank}: products beside weights that are all taught add nothing; "
                "name other parts, such as norms and head"
            )

    def install(self, network: nn.Module) -> Coordinates:
        """Prepare a network in place, and give the parameters that are to be taught.

        Names are those of the network as it comes: products beside a layer rename nothing.
        """
        have = dict(network.named_parameters())
        names = list(have)
        chosen: set[int] = set()
        for part in self.parts:
            found = _matching(network, names, part)
            if not found:
                raise InvalidValueError(
                    f"no parameter is called {part!r}; there are {', '.join(names[:3])} and "
                    f"{max(0, len(names) - 3)} more"
                )
            chosen |= {id(have[name]) for name in found}
        if self.rank:
            chosen |= {id(each) for each in _put_beside(network, self)}
        taught = [name for name, each in network.named_parameters() if id(each) in chosen]
        return Coordinates(network, taught)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"parts": list(self.parts), "beside": list(self.beside)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Adapter:
        """The reverse of `to_json`."""
        return cls(**values | {"parts": tuple(values["parts"]), "beside": tuple(values["beside"])})


class Coordinates:
    """Some parameters as one vector.

    Args:
        network: that has them.
        names: in order.
    """

    def __init__(self, network: nn.Module, names: Sequence[str]) -> None:
        have = dict(network.named_parameters())
        self.names = tuple(names)
        self._parameters = [have[name] for name in names]
        self.groups = _groups(network, names)
        self.shapes = tuple(tuple(each.shape) for each in self._parameters)

    def __len__(self) -> int:
        return sum(each.numel() for each in self._parameters)

    def read(self) -> Tensor:
        """Their values, `[d]`; a copy."""
        import torch

        return torch.cat([each.detach().reshape(-1) for each in self._parameters]).cpu()

    def write(self, values: Tensor) -> None:
        """Give the network these values."""
        import torch

        sizes = [each.numel() for each in self._parameters]
        with torch.no_grad():
            for each, part in zip(self._parameters, values.split(sizes), strict=True):
                each.copy_(part.reshape(each.shape))


def merge(network: nn.Module) -> None:
    """Fold all products into the weights beside them; the network computes what it computed."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Product):
                setattr(parent, name, child.folded())


def _matching(network: nn.Module, names: Sequence[str], part: str) -> set[str]:
    from torch import nn
    from torch.nn.modules.instancenorm import _InstanceNorm

    if part == HEAD:
        last = names[-1].rpartition(".")[0]
        return {name for name in names if name.rpartition(".")[0] == last}
    if part == NORMS:
        kinds = (nn.GroupNorm, _InstanceNorm, nn.LayerNorm)
        homes = {name for name, each in network.named_modules() if isinstance(each, kinds)}
        return {name for name in names if name.rpartition(".")[0] in homes}
    return {name for name in names if fnmatchcase(name, part)}


def _groups(network: nn.Module, names: Sequence[str]) -> NDArray[np.int64]:
    """The channel of every coordinate: parameters of one layer that feed one output of it."""
    modules, have = dict(network.named_modules()), dict(network.named_parameters())
    homes = [name.rpartition(".")[0] for name in names]
    outputs = [
        _outputs(modules[home], name.rpartition(".")[2], have[name])
        for home, name in zip(homes, names, strict=True)
    ]
    free, first = 0, {}
    for home in dict.fromkeys(homes):
        first[home] = free
        mine = zip(homes, outputs, strict=True)
        free += max(int(each.max()) for there, each in mine if there == home) + 1
    return np.concatenate(
        [each.reshape(-1) + first[home] for home, each in zip(homes, outputs, strict=True)]
    )


def _outputs(module: nn.Module, leaf: str, parameter: Tensor) -> NDArray[np.int64]:
    """The output of its layer that every value of a parameter feeds."""
    from torch.nn.modules.conv import _ConvTransposeNd

    shape = tuple(parameter.shape) or (1,)
    if leaf == "weight" and isinstance(module, _ConvTransposeNd):
        group = np.arange(shape[0]) // (shape[0] // module.groups)
        channels = group[:, None] * shape[1] + np.arange(shape[1])
    else:
        channels = np.arange(shape[0])
    spread = channels.reshape(*channels.shape, *[1] * (len(shape) - channels.ndim))
    return np.broadcast_to(spread, shape)


def _put_beside(network: nn.Module, adapter: Adapter) -> list[nn.Parameter]:
    """Put a product beside every convolution that is asked for; give what is new."""
    import torch
    from torch.nn.modules.conv import _ConvNd

    modules = dict(network.named_modules())
    chosen = [
        name
        for name, module in modules.items()
        if isinstance(module, _ConvNd) and any(fnmatchcase(name, each) for each in adapter.beside)
    ]
    if not chosen:
        raise InvalidValueError(f"no convolution is called {', '.join(adapter.beside)}")
    generator = torch.Generator().manual_seed(adapter.seed)
    new = []
    for name in chosen:
        home, _, leaf = name.rpartition(".")
        product = Product(modules[name], adapter.rank, generator)
        setattr(modules[home], leaf, product)
        new += [product.inner.weight, product.outer.weight]
    return new


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
