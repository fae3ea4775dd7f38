"""The default network: MONAI's U-Net, without batch norm, with a bottleneck behind a ReLU."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from canal.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import nn

Norm = Literal["group", "instance"]
BOTTLENECK = "down_4"
_DOWNSAMPLING = 16


@dataclass(frozen=True)
class UNetArchitecture:
    """What determines the shape of a U-Net.

    Args:
        in_channels: of the image.
        spatial_dims: 2 or 3.
        base_channels: of the first level; the bottleneck has sixteen times as many.
        norm: `instance`, or `group` (eight groups). No batch norm: it mixes images, and with them
            patients. Behind a group norm the biases of channels can drown what an image adds: a
            trained bottleneck then varies by 1 % over images or less, and a release of it says
            nothing (measured in docs/teachers.md, where it is 19 to 25 % behind an instance norm).
    """

    in_channels: int = 3
    spatial_dims: int = 2
    base_channels: int = 16
    norm: Norm = "instance"

    def __post_init__(self) -> None:
        if self.spatial_dims not in (2, 3):
            raise InvalidValueError(f"spatial_dims = {self.spatial_dims!r} must be 2 or 3")
        if self.in_channels < 1:
            raise InvalidValueError(f"in_channels = {self.in_channels!r} must be at least 1")
        if self.base_channels < 8 or self.base_channels % 8:
            raise InvalidValueError(
                f"base_channels = {self.base_channels!r} must be a multiple of 8"
            )
        if self.norm not in ("group", "instance"):
            raise InvalidValueError(f"norm = {self.norm!r} must be group or instance")

    @property
    def channels(self) -> int:
        """C, of the bottleneck."""
        return 16 * self.base_channels

    def check_size(self, size: tuple[int, ...]) -> None:
        """Refuse image sizes that four halvings do not divide, or leave nothing of."""
        if len(size) != self.spatial_dims or any(
            side < 2 * _DOWNSAMPLING or side % _DOWNSAMPLING for side in size
        ):
            raise InvalidValueError(
                f"size = {size} must have {self.spatial_dims} sides, each a multiple of "
                f"{_DOWNSAMPLING} and at least {2 * _DOWNSAMPLING}"
            )

    def build(self, seed: int) -> nn.Module:
        """The network with random weights from a public seed; the global generator is untouched."""
        import torch
        from monai.networks.nets import BasicUNet

        base = self.base_channels
        norm: Any = (
            ("group", {"num_groups": 8}) if self.norm == "group" else ("instance", {"affine": True})
        )
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # Not torch.manual_seed, which reseeds every GPU too, and those are not forked.
            torch.default_generator.manual_seed(seed)
            warnings.simplefilter("ignore")
            network: nn.Module = BasicUNet(
                spatial_dims=self.spatial_dims,
                in_channels=self.in_channels,
                out_channels=1,
                features=(base, 2 * base, 4 * base, 8 * base, 16 * base, base),
                act="relu",
                norm=norm,
            )
        _use_fast_kernels(network)
        return lay_out(network)

    def to_json(self) -> dict[str, Any]:
        """As plain values, with the family's name."""
        return {"family": "monai.BasicUNet", **asdict(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> UNetArchitecture:
        """The reverse of `to_json`."""
        return cls(**{name: value for name, value in values.items() if name != "family"})


def lay_out(network: nn.Module) -> nn.Module:
    """Put the weights of 2D convolutions in memory as the fast kernels read them."""
    import torch

    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.ConvTranspose2d):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _use_fast_kernels(network: nn.Module) -> None:
    """Write instance norms as group norms of one channel each: the same function and weights.

    torch has a kernel for group norm with channels last; an instance norm rearranges memory first.
    Forward and backward take five sixths of the time on a CPU (`python -m bench training`).
    """
    from torch import nn

    for module in list(network.modules()):
        for name, norm in module.named_children():
            if isinstance(norm, nn.InstanceNorm2d | nn.InstanceNorm3d):
                same = nn.GroupNorm(norm.num_features, norm.num_features, norm.eps)
                same.load_state_dict(norm.state_dict())
                setattr(module, name, same)


def weights_digest(network: nn.Module) -> str:
    """SHA-256 of all weights and buffers, by name; the same on every machine."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        raw = values.reshape(-1).view(torch.uint8)  # numpy knows no bfloat16
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        digest.update(raw.numpy().tobytes())
    return digest.hexdigest()
