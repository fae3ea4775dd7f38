"""The student: a network, and an adapter that speaks the release's channels.

The adapter is a convolution of kernel 1 (paper, ssec:exp-setup) on the student's own bottleneck. It
is there for training alone: what is kept afterwards is the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from canal.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import Tensor


class Student(nn.Module):
    """A network whose bottleneck is matched.

    Args:
        network: any that gives logits.
        layer: whose output is matched.
        channels: of that layer.
        released: M, channels of the targets.
        dims: 2 or 3.
    """

    def __init__(
        self, network: nn.Module, layer: str, channels: int, released: int, dims: int
    ) -> None:
        super().__init__()
        self.network = network
        self.adapter = (nn.Conv2d if dims == 2 else nn.Conv3d)(channels, released, 1)
        modules = dict(network.named_modules())
        if layer not in modules:
            raise InvalidValueError(f"the network has no layer {layer!r}")
        self._features: Tensor | None = None
        modules[layer].register_forward_hook(self._keep)

    def _keep(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        self._features = output

    def forward(self, images: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.network(images)
        return logits

    def matched(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the bottleneck in the release's channels; one pass."""
        logits = self.network(images)
        assert self._features is not None  # noqa: S101  # the hook ran
        features, self._features = self._features, None
        return logits, self.adapter(features)
