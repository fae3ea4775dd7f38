r"""The gradient of every image on its own, for some parameters, many images in one pass.

One pass forward and one back give, at every layer that is asked for, its input x and the gradient
g at its output. The gradient of a weight is then a sum over positions of products of the two,
taken image by image:

=================  =====================================================================
layer              gradient of image i
=================  =====================================================================
convolution        the weight gradient of a convolution in B groups, one an image
its bias           $\sum_p g_{i,c,p}$
norm               see `canal.gradients.norm`
linear             $\sum_p g_{i,p} x_{i,p}^\top$
=================  =====================================================================

Nothing is computed for parameters that nobody asked for. Layers of other kinds, weights that two
layers share and outputs that are changed in place are differentiated one image at a time, which is
slower and gives the same.

Guarantees:
    A row depends on its own image. That no kernel of a machine lets others into its last bits is
    seen (`canal.gradients.machine`) before anything private is read: with it, one patient more or
    less changes nothing but that patient's own contribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from canal.errors import InvalidValueError
from canal.learning.networks import evaluating, home, task_loss

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.gradients.basis import Basis, Factors

Loss = Callable[["Tensor", "Tensor"], "Tensor"]
# Floats in a line of the cache.
_LINE = 16


class Gradients:
    """Gradients of some parameters of a network, image by image.

    Args:
        network: whose images do not mix; put in eval mode for each pass.
        names: of the parameters, in the order of the columns.
        loss: of each image, `[B]`.
        basis: in which rows are given; a layer turns both sides first where that is less work.
    """

    def __init__(
        self,
        network: nn.Module,
        names: Sequence[str],
        loss: Loss = task_loss,
        basis: Basis | None = None,
    ) -> None:
        from canal.gradients.norm import is_plain

        have = dict(network.named_parameters())
        unknown = [name for name in names if name not in have]
        if unknown or not names:
            raise InvalidValueError(
                f"the network has no parameter {unknown[0]!r}" if unknown else "name a parameter"
            )
        self.network, self.names, self.loss, self.basis = network, tuple(names), loss, basis
        modules = dict(network.named_modules())
        self._leaves: dict[str, list[str]] = {}
        for name in names:
            module, _, leaf = name.rpartition(".")
            self._leaves.setdefault(module, []).append(leaf)
        self._rules = {
            name: _rule(modules[name]) if {*leaves} <= {"weight", "bias"} else None
            for name, leaves in self._leaves.items()
            if not is_plain(modules[name])
        }
        factors = (None,) * len(names) if basis is None else basis.factors
        self._factors = dict(zip(names, factors, strict=True))
        everywhere = [id(each) for _, each in network.named_parameters(remove_duplicate=False)]
        self._tied = any(everywhere.count(id(have[name])) > 1 for name in names)

    def __call__(self, images: Tensor, masks: Tensor) -> Tensor:
        """`[B, d]`, one row an image; private if the images are.

        Args:
            images: float `[B, C, *size]`.
            masks: zeros and ones, `[B, 1, *size]`.
        """
        there = home(self.network)
        images, masks = images.to(there), masks.to(there)
        with evaluating(self.network):
            rows = None
            if None not in self._rules.values() and not self._tied:
                rows = self._together(images, masks)
            if rows is not None:
                return rows
            rows = self._one_by_one(images, masks)
            return rows if self.basis is None else self.basis.project(rows.cpu())

    def _together(self, images: Tensor, masks: Tensor) -> Tensor | None:
        """All rows at once; None where a layer's input or output was changed in place."""
        import torch

        from canal.gradients.norm import apart

        modules = dict(self.network.named_modules())
        seen: list[tuple[str, Tensor, Tensor]] = []
        versions: list[tuple[int, int]] = []

        def watch(name: str) -> Callable[..., Tensor]:
            def hook(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
                if not output.requires_grad:
                    # The first layer that is asked for starts the graph.
                    output = output + output.new_zeros((), requires_grad=True)
                seen.append((name, inputs[0].detach(), output))
                versions.append((inputs[0]._version, output._version))
                return output

            return hook

        frozen = [each for each in self.network.parameters() if each.requires_grad]
        handles = [modules[name].register_forward_hook(watch(name)) for name in self._rules]
        try:
            for each in frozen:
                each.requires_grad_(False)
            with torch.enable_grad(), apart(self.network, self.names) as norms:
                total = self.loss(self.network(images), masks).sum()
                now = [(given._version, output._version) for _, given, output in seen]
                if now != versions:
                    return None
                outputs = [output for _, _, output in seen]
                back = torch.autograd.grad(total, [*outputs, *(each for _, each in norms)])
        finally:
            for handle in handles:
                handle.remove()
            for each in frozen:
                each.requires_grad_(True)
        found: dict[str, Tensor] = {}

        def add(name: str, part: Tensor) -> None:
            # A layer that is used twice has the sum of both.
            found[name] = found[name] + part if name in found else part

        for (name, _), part in zip(norms, back[len(seen) :], strict=True):
            add(name, _turned(part, self._factors[name]))
        for (name, given, _), gradient in zip(seen, back[: len(seen)], strict=True):
            rule = self._rules[name]
            assert rule is not None  # noqa: S101  # else they are taken one by one
            for leaf in self._leaves[name]:
                whole = f"{name}.{leaf}" if name else leaf
                factors = self._factors[whole]
                if factors is not None and 0 in factors.size:
                    add(whole, gradient.new_zeros((len(images), *factors.size)))
                else:
                    add(whole, rule(modules[name], leaf, given, gradient, factors))
        if self.basis is not None:
            return self.basis.select([found[name] for name in self.names])
        return torch.cat([found[name].flatten(1) for name in self.names], dim=1)

    def _one_by_one(self, images: Tensor, masks: Tensor) -> Tensor:
        import torch

        wanted = [dict(self.network.named_parameters())[name] for name in self.names]
        before = [each.requires_grad for each in wanted]
        rows = []
        try:
            for each in wanted:
                each.requires_grad_(True)
            with torch.enable_grad():
                for row in range(len(images)):
                    one = slice(row, row + 1)
                    image = images[one].detach().requires_grad_()
                    loss = self.loss(self.network(image), masks[one]).sum()
                    # Of the image too: torch (2.13, channels last) dies of a group norm whose
                    # weight has a gradient and whose input has none.
                    *parts, _ = torch.autograd.grad(loss, [*wanted, image])
                    rows.append(torch.cat([part.reshape(-1) for part in parts]))
        finally:
            for each, was in zip(wanted, before, strict=True):
                each.requires_grad_(was)
        return torch.stack(rows)


_Rule = Callable[["nn.Module", str, "Tensor", "Tensor", "Factors | None"], "Tensor"]


def _rule(module: nn.Module) -> _Rule | None:
    """How to take the gradients of a layer apart; None where we do not know."""
    from torch import nn

    # A subclass may compute something else.
    kind: Any = type(module)
    if kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        plain = module.padding_mode == "zeros" and not isinstance(module.padding, str)
        return _convolution if plain else None
    if kind in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
        return _convolution
    return _linear if kind is nn.Linear else None


def _turned(rows: Tensor, factors: Factors | None) -> Tensor:
    """Gradients of one parameter, `[B, ...]`, in its directions `[B, r, s]`, if there are any."""
    if factors is None:
        return rows
    r, s = factors.size
    each = _aligned(rows.reshape(len(rows), len(factors.left), -1))
    # One product an image: of one for all of them, an image's part depends on where it stands.
    left, right = _aligned(factors.left.T), _aligned(factors.right)
    found = left.expand(len(rows), -1, -1).bmm(each).bmm(right.expand(len(rows), -1, -1))
    return found[:, :r, :s]


def _aligned(matrices: Tensor) -> Tensor:
    """With zeros up to whole lines of the cache: kernels take other sums where a line is cut."""
    import torch.nn.functional as F  # noqa: N812

    short = [-size % _LINE for size in (matrices.shape[-1], matrices.shape[-2])]
    return F.pad(matrices, (0, short[0], 0, short[1])) if any(short) else matrices.contiguous()


def _first(factors: Factors, positions: int) -> bool:
    """Is it less work to turn both sides at every position, or the sum over them afterwards?"""
    (m, r), (n, s) = factors.left.shape, factors.right.shape
    return positions * (n * s + r * (m + s)) <= m * n * positions + r * n * (m + s)


def _convolution(
    module: Any, leaf: str, given: Tensor, gradient: Tensor, factors: Factors | None
) -> Tensor:
    import torch

    if leaf == "bias":
        return _turned(gradient.flatten(2).sum(2), factors)
    batch, weight = len(given), module.weight
    near, far = (given, gradient) if module.transposed else (gradient, given)
    if factors is not None and module.groups == 1 and _first(factors, near[0, 0].numel()):
        # Both sides are turned first, so that no gradient of the whole weight is ever made.
        filters = factors.right.T.reshape(-1, *weight.shape[1:])
        convolve = (torch.conv1d, torch.conv2d, torch.conv3d)[weight.ndim - 3]
        seen = convolve(far, filters, None, module.stride, module.padding, module.dilation)
        left = _aligned(factors.left.T).expand(batch, -1, -1)
        across = left.bmm(_aligned(near.flatten(2)))
        found = across.bmm(_aligned(seen.flatten(2)).mT)
        return found[:, : factors.size[0], : factors.size[1]]
    # Only its shape is read: one weight for every image, without the memory for it.
    weights = weight.new_empty(()).expand(batch * weight.shape[0], *weight.shape[1:])
    _, found, _ = torch.ops.aten.convolution_backward(
        gradient.reshape(1, -1, *gradient.shape[2:]),
        given.reshape(1, -1, *given.shape[2:]),
        weights,
        None,
        module.stride,
        module.padding,
        module.dilation,
        module.transposed,
        module.output_padding,
        batch * module.groups,
        (False, True, False),
    )
    return _turned(found.reshape(batch, -1), factors)


def _linear(
    _module: nn.Module, leaf: str, given: Tensor, gradient: Tensor, factors: Factors | None
) -> Tensor:
    import torch

    gradient, given = (each.reshape(len(each), -1, each.shape[-1]) for each in (gradient, given))
    if leaf == "bias":
        return _turned(gradient.sum(1), factors)
    return _turned(torch.einsum("bpo,bpi->boi", gradient, given), factors)
