r"""Per-image gradients of some parameters, many images in one pass.

One pass forward and one back give, at every layer that is asked for, its input x and the gradient
g at its output. The gradient of a weight is then a sum over positions of products of the two,
taken image by image:

=================  =====================================================================
layer              gradient of image i
=================  =====================================================================
convolution        the weight gradient of a convolution in B groups, one an image
its bias           $\sum_p g_{i,c,p}$
norm               $\sum_p g \hat x$ and $\sum_p g$, see below
linear             $\sum_p g_{i,p} x_{i,p}^\top$
=================  =====================================================================

Nothing is computed for parameters that nobody asked for. Layers of other kinds, weights that two
layers share and outputs that are changed in place are differentiated one image at a time, which is
slower and gives the same.

Guarantees:
    A row depends on its own image. With some kernels a sample's gradient depends, in its low-order
    bits, on the rest of the batch; one patient more or less would then change what others add, and
    no clip bounds that. `check_rows` tries the machine on public images, in batches of the shapes
    that will be used, and refuses it before anything private is read.

*Norms.* With $\hat x = (x - m) / s$ over a group of n values, scale w, shift b and the gradient g
at the output, summed over positions p,
$$ \partial w = \sum_p g \hat x, \qquad \partial b = \sum_p g, \qquad
   \partial x = \frac1s\left(w g - \frac1n \sum_c w_c\,\partial b_c
                             - \hat x \frac1n \sum_c w_c\,\partial w_c\right). $$
The two sums that the gradient at the input needs anyway are the gradients of the weights, and
torch's own kernel for channels that lie last is slow (`python -m bench adapters` has both).

*Curvature.* With J the derivative of an image's logits and p their probabilities, the Gauss-Newton
matrix of the mean cross-entropy is $J^\top \mathrm{diag}(p(1-p)) J$ over the number of pixels: how
much a small change of the parameters costs, whatever the labels. For r of independent signs
(`Signs`), $\mathbb E\,(J^\top \sqrt{p(1-p)}\, r)_i^2$ is its diagonal, so one pass back from random
signs says of every parameter how much noise in it harms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from canal.errors import InvalidValueError
from canal.learning.networks import evaluating, home, task_loss

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.gradients.subspace import Basis, Factors


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


def check_rows(gradients: Gradients, images: Tensor, masks: Tensor) -> None:
    """See, on public images, that a row depends on its image alone: not on others, nor on chance.

    Args:
        gradients: of the network.
        images: a batch as large as those to come; public.
        masks: of the same.

    Raises:
        InvalidValueError: some kernel lets one image into the last bits of another, or computes
            other bits the second time.
    """
    import torch

    rows = gradients(images, masks)
    if not torch.equal(rows, gradients(images, masks)):
        raise InvalidValueError(
            "this machine computes the same gradient in other last bits the second time; set "
            "OMP_NUM_THREADS=1, or compute on the CPU"
        )
    turned = gradients(images.roll(1, 0), masks.roll(1, 0)).roll(-1, 0)
    others = torch.cat([images[:1], torch.zeros_like(images[1:])])
    alone = gradients(others, torch.cat([masks[:1], torch.zeros_like(masks[1:])]))
    # Every second image is another one, ten times as bright: those between must not notice.
    bright, inverse = images.clone(), masks.clone()
    bright[1::2], inverse[1::2] = -10 * images[1::2], 1 - masks[1::2]
    beside = gradients(bright, inverse)
    if (
        not torch.equal(rows, turned)
        or not torch.equal(rows[0], alone[0])
        or not torch.equal(rows[::2], beside[::2])
    ):
        raise InvalidValueError(
            "the kernels of this machine let images that are computed together into each other's "
            "last bits, so one patient could show in another's part; take a chunk of 1"
        )


def made_up(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Images that show nothing, and masks of it, as `check_rows` may see them."""
    import torch

    generator = torch.Generator().manual_seed(0)
    images = torch.rand(shape, generator=generator) * 2 - 1
    return images, (images[:, :1] > 0).float()


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
