r"""Networks: the U-Net that comes with CANAL, the tap into any network, the loss, and devices.

A hospital brings the network that it already has and names a layer, the *tap*. Features are that
layer's output, and the pass stops there. Gradient energy (Eq. gkd-importance) is, for image i and
channel c,
$$g_{i,c} = \tfrac{1}{HW} \sum_{h,w} (\partial \mathcal L / \partial A_i[c,h,w])^2.$$
The layer's output becomes a leaf of the graph, so nothing is recorded before it and no gradient
goes through the encoder.

Networks live on a GPU if there is one. What goes in is moved there, what comes out is moved back:
batches, noise and everything that is published stay in the machine's own memory.

Guarantees:
    Features and gradient energy are exact per image whatever the batch size, since the loss is a
    sum over images and the network is in eval mode, where no layer mixes them; a batch norm that
    would even then is refused. Mode, hooks and gradients of the network are left as found.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from canal.errors import InvalidValueError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Norm = Literal["group", "instance"]
Loss = Callable[["Tensor", "Tensor"], "Tensor"]
BOTTLENECK = "down_4"
_DOWNSAMPLING = 16


@dataclass(frozen=True)
class UNetArchitecture:
    """MONAI's U-Net, without batch norm, with a bottleneck behind a ReLU.

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
        """C, the channels of the bottleneck."""
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
        """Values that JSON can hold, with the name of the family."""
        return {"family": "monai.BasicUNet", **asdict(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> UNetArchitecture:
        """Read what `to_json` wrote."""
        return cls(**{name: value for name, value in values.items() if name != "family"})


def lay_out(network: nn.Module) -> nn.Module:
    """Lay out the weights of 2D convolutions in memory as the fast kernels read them."""
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


def to_float(pixels: Tensor) -> Tensor:
    """Scale bytes to floats in [-1, 1], as networks want them."""
    return pixels.float().div_(127.5).sub_(1.0)


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


class _TapReached(Exception):  # noqa: N818  # not an error: the pass has what it came for
    pass


class Tap:
    """A named layer of a network.

    Args:
        network: any module whose forward takes a batch of images.
        layer: its name, as in `network.named_modules()`.
    """

    def __init__(self, network: nn.Module, layer: str) -> None:
        modules = dict(network.named_modules())
        if not layer or layer not in modules:
            close = _closest(layer, [name for name in modules if name])
            raise InvalidValueError(f"the network has no layer {layer!r}; did you mean {close}?")
        _refuse_mixing(modules)
        self.network = network
        self.layer = layer
        self._module = modules[layer]

    def features(self, images: Tensor) -> Tensor:
        """The output of the layer for a batch; layers behind it are not run.

        Args:
            images: `[B, C, *size]`.

        Returns:
            `[B, channels, *]`, without a graph.
        """
        import torch

        caught: list[Tensor] = []

        def stop(_module: nn.Module, _inputs: Any, output: Any) -> None:
            caught.append(self._tensor(output))
            raise _TapReached

        with self._watching(stop), torch.no_grad():
            try:
                self.network(images.to(home(self.network)))
            except _TapReached:
                return caught[0].cpu()
        raise self._not_reached()

    def gradient_energy(self, images: Tensor, masks: Tensor, loss: Loss = task_loss) -> Tensor:
        """Mean squared gradient of each image's loss at each channel of the layer.

        Args:
            images: `[B, C, *size]`.
            masks: the truth, as the loss wants it.
            loss: gives one value for each image, `[B]`.

        Returns:
            `[B, channels]`.
        """
        return self.features_and_energy(images, masks, loss)[1]

    def features_and_energy(
        self, images: Tensor, masks: Tensor, loss: Loss = task_loss
    ) -> tuple[Tensor, Tensor]:
        """Features `[B, channels, *]` and gradient energy `[B, channels]` from one pass."""
        import torch

        leaves: list[Tensor] = []

        def cut(_module: nn.Module, _inputs: Any, output: Any) -> Tensor:
            if leaves:
                raise InvalidValueError(
                    f"layer {self.layer!r} runs more than once in a pass; name one that runs once"
                )
            leaves.append(self._tensor(output).detach().requires_grad_())
            torch.set_grad_enabled(True)  # from here on there is something to differentiate
            # A copy: what comes next may work in place, which a leaf does not allow.
            return leaves[0].clone()

        with self._watching(cut), torch.no_grad():
            there = home(self.network)
            losses = loss(self.network(images.to(there)), masks.to(there))
            if not leaves:
                raise self._not_reached()
            if losses.shape != (len(images),):
                raise InvalidValueError(
                    f"the loss has shape {tuple(losses.shape)} for {len(images)} images; "
                    "it must give one value for each"
                )
            (gradient,) = (
                torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
                if losses.requires_grad
                else (None,)
            )
            if gradient is None:
                raise InvalidValueError(
                    f"the loss does not depend on layer {self.layer!r}; name another layer"
                )
        return leaves[0].detach().cpu(), gradient.square().flatten(2).mean(2).cpu()

    @contextmanager
    def _watching(self, hook: Callable[..., Any]) -> Iterator[None]:
        handle = self._module.register_forward_hook(hook)
        try:
            with evaluating(self.network):
                yield
        finally:
            handle.remove()

    def _tensor(self, output: Any) -> Tensor:
        import torch

        if not isinstance(output, torch.Tensor) or output.ndim < 3:
            kind = (
                f"{output.ndim}-dimensional" if isinstance(output, torch.Tensor) else type(output)
            )
            raise InvalidValueError(
                f"layer {self.layer!r} gives {kind}, not a feature map [batch, channels, …]; "
                "name another layer"
            )
        return output

    def _not_reached(self) -> InvalidValueError:
        return InvalidValueError(
            f"layer {self.layer!r} is not run by the network's forward pass; name another layer"
        )


def _refuse_mixing(modules: dict[str, nn.Module]) -> None:
    from torch.nn.modules.batchnorm import _BatchNorm

    for name, module in modules.items():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise InvalidValueError(
                f"layer {name!r} normalises over the batch even in eval mode, so one image's "
                "features would depend on another's; use track_running_stats=True, or group norm"
            )


def _closest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    return (
        " or ".join(get_close_matches(name, known, n=3, cutoff=0.0)) or "nothing: it has no layers"
    )


def variation(features: Tensor) -> float:
    """The variation of features between images, as a share of their size; 0 if there is none.

    A bottleneck that is nearly the same for all images tells nothing about any of them.

    Args:
        features: `[N, channels, *grid]` of at least two images.
    """
    size = features.double().square().mean()
    spread = features.double().var(dim=0, unbiased=False).mean()
    return float((spread / size).sqrt()) if size > 0 else 0.0


def best() -> torch.device:
    """The device to put networks on: `$CANAL_DEVICE` (`cpu`, `cuda:1`, `mps`), or a GPU if any."""
    import torch

    asked = os.environ.get("CANAL_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidValueError(
            f"CANAL_DEVICE = {asked!r} cannot be used here ({str(error).splitlines()[0]}); leave "
            "it out, or say cpu"
        ) from error
    return device


def home(network: nn.Module) -> torch.device:
    """The device that a network is on."""
    import torch

    first = next(network.parameters(), None)
    return torch.device("cpu") if first is None else first.device


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network in eval mode; `network.train()` after it would thaw layers that were frozen."""
    was_training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in was_training:
            module.training = True
