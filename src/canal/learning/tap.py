r"""The tap: features and task-gradient energy at any named layer of any network.

A hospital brings the network that it already has and names a layer. Features are that layer's
output, and the pass stops there. Gradient energy (Eq. gkd-importance) is, for image i and
channel c,
$$g_{i,c} = \tfrac{1}{HW} \sum_{h,w} (\partial \mathcal L / \partial A_i[c,h,w])^2.$$
The layer's output becomes a leaf of the graph, so nothing is recorded before it and no gradient
goes through the encoder.

Guarantees:
    Exact per image whatever the batch size, since the loss is a sum over images and the network is
    in eval mode, where no layer mixes them; a batch norm that would even then is refused. Mode,
    hooks and gradients of the network are left as found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from canal.errors import InvalidValueError
from canal.learning.device import home
from canal.learning.loss import task_loss
from canal.learning.mode import evaluating

if TYPE_CHECKING:
    from torch import Tensor, nn

Loss = Callable[["Tensor", "Tensor"], "Tensor"]


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
        """What the layer makes of a batch; layers behind it are not run.

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
