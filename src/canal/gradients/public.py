r"""What the recipient's own images say about gradients, before any patient is asked: for nothing.

With the shared initialisation and the recipient's labelled images, channel by channel: $v_c$, the
mean squared norm of an image's gradient, $s_c$, the curvature of the recipient's own loss
(`canal.gradients.gradients`), and $d_c$, its number of parameters. Noise of variance $\sigma_c^2$
on every parameter of a channel harms by $\sum_c s_c \sigma_c^2$.

*Ellipsoid*: gradients are rescaled by $a_c$, clipped as a whole to C, and get even noise; scaled
back, $\sigma_c \propto 1/a_c$. At a fixed mean energy $\sum_c a_c^2 v_c$ the least harm is at
$$a_c^2 \propto \sqrt{s_c / v_c} \quad\text{with } s_c \text{ of the whole channel},$$
the paper's rule with $\Delta_c^2$ replaced by $v_c$ (s of one parameter times $d_c$). By
Cauchy-Schwarz the harm is that of flat noise times
$(\sum_c \sqrt{s_c v_c})^2 / (\sum_c s_c \sum_c v_c) \le 1$: none is gained where
$s_c \propto v_c$, as with the Fisher information of the same gradients.

*Channels*: every channel is clipped to its own bound $C_c$, the same quantile of the norms there,
and noise is water-filled with the weights $s_c C_c^2$, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import InvalidValueError
from canal.gradients.clip import Clip
from canal.gradients.subspace import Basis, digest

if TYPE_CHECKING:
    from torch import Tensor

    from canal.gradients.plan import AdapterPlan, Allocation

Array = NDArray[np.float64]
# A channel that no public image moves still has a scale: this share of the mean.
_FLOOR = 1e-2


@dataclass(frozen=True, eq=False)
class Public:
    """Numbers that everybody may know; they are published with the release.

    Args:
        channels: the channel of every coordinate.
        scales: a of every channel.
        bounds: $C_b$ of every block.
        weights: of every block: what a unit of noise variance in it harms.
        length: C, of whole gradients.
        basis: in which gradients are taken; every direction is a channel then, or all are one.
    """

    channels: NDArray[np.int64]
    scales: Array
    bounds: Array
    weights: Array
    length: float
    basis: Basis | None = None

    def __post_init__(self) -> None:
        if self.bounds.shape != self.weights.shape or len(self.bounds) not in (1, len(self.scales)):
            raise InvalidValueError("bounds and weights are of one block, or of every channel")

    @property
    def blocks(self) -> int:
        """How many are clipped on their own."""
        return len(self.bounds)

    def fit(self, plan: AdapterPlan) -> AdapterPlan:
        """The same plan, for as many directions as were found and as many blocks as there are."""
        directions = 0 if self.basis is None else len(self.basis)
        return replace(plan, directions=directions, blocks=self.blocks)

    def clip(self, plan: AdapterPlan) -> Clip:
        """How a patient is bounded under a plan."""
        if plan.blocks != self.blocks or plan.coordinates != len(self.channels):
            raise InvalidValueError(
                f"the plan is for {plan.coordinates} numbers in {plan.blocks} blocks, but there "
                f"are {len(self.channels)} in {self.blocks}"
            )
        if self.basis is not None:
            self.basis.check(plan.directions, plan.parameters)
        return self.bounding

    @property
    def bounding(self) -> Clip:
        """How a patient is bounded who has these coordinates, whatever plan they belong to."""
        blocks = self.channels if self.blocks > 1 else np.zeros_like(self.channels)
        return Clip(self.scales[self.channels], blocks, self.bounds, self.length)

    def to_json(self) -> dict[str, Any]:
        """As plain values; the channels follow from network and adapter."""
        return {
            "scales": self.scales.tolist(),
            "bounds": self.bounds.tolist(),
            "weights": self.weights.tolist(),
            "length": self.length,
            "basis": "" if self.basis is None else digest(self.basis),
        }

    @classmethod
    def from_json(
        cls, values: dict[str, Any], channels: NDArray[np.int64], basis: Basis | None = None
    ) -> Public:
        """The reverse of `to_json`.

        Args:
            values: as written.
            channels: of every parameter; not used where there is a basis.
            basis: whose digest was written down.
        """
        if values["basis"] != ("" if basis is None else digest(basis)):
            raise InvalidValueError("this is another basis than the one that was agreed on")
        numbers = {
            name: np.array(values[name], np.float64) for name in ("scales", "bounds", "weights")
        }
        channels = channels if basis is None else _channels(basis, len(numbers["scales"]) > 1)
        if channels.max() >= len(numbers["scales"]):
            raise InvalidValueError("these scales are of another network")
        return cls(channels, **numbers, length=float(values["length"]), basis=basis)


def measure(
    gradients: Iterable[Tensor],
    channels: NDArray[np.int64],
    allocation: Allocation,
    *,
    curvature: Iterable[Tensor] | None = None,
    quantile: float = 0.5,
    basis: Basis | None = None,
) -> Public:
    """Scales, bounds and weights from the gradients of public images.

    Args:
        gradients: rows `[d]` of the recipient's images, or `[k]` in a basis; one after the other,
            or some `[n, d]` at a time. None is kept.
        channels: the channel of every coordinate.
        allocation: of the plan.
        curvature: rows in the same way, whose squares are on average what noise in a coordinate
            harms (`canal.gradients.gradients`); all count alike where not given.
        quantile: of the images' norms, or of those of every channel: where they are clipped.
        basis: that they were taken in.
    """
    import torch

    if basis is not None:
        channels = _channels(basis, allocation in ("ellipsoid", "channels"))
    count = int(channels.max()) + 1
    sizes = np.bincount(channels, minlength=count).astype(np.float64)
    energies = _energies(gradients, channels, count)
    found = energies.mean(dim=0).numpy()
    if not np.isfinite(found).all() or not found.sum() > 0:
        raise InvalidValueError(
            "the recipient's images have no gradient that could be measured; train the "
            "initialisation, or name other parameters"
        )
    # Never nothing: a patient may move what no public image moved.
    least = _FLOOR * found.sum() * sizes / sizes.sum()
    found = np.maximum(found, least)
    harm = sizes
    if curvature is not None:
        harm = _energies(curvature, channels, count).mean(dim=0).numpy()
    harm = np.maximum(harm, _FLOOR * harm.sum() * sizes / sizes.sum())
    scales = np.ones(count)
    if allocation == "ellipsoid":
        scales = (harm / found) ** 0.25
        # Steps are measured in the same units as flat ones.
        scales /= np.sqrt((sizes * scales**2).sum() / sizes.sum())
    length = float((energies @ torch.from_numpy(scales**2)).sqrt().quantile(quantile))
    if allocation == "channels":
        middle = energies.sqrt().quantile(quantile, dim=0).numpy()
        bounds = np.maximum(middle, np.sqrt(least))
        return Public(channels, scales, bounds, harm * bounds**2, length, basis)
    return Public(channels, scales, np.array([length]), np.ones(1), length, basis)


def _energies(rows: Iterable[Tensor], channels: NDArray[np.int64], count: int) -> Tensor:
    """The squared norm of every row in every channel, `[n, count]`."""
    import torch

    where, found = torch.from_numpy(channels), []
    for part in rows:
        squares = torch.atleast_2d(part).double().square()
        found.append(squares.new_zeros(len(squares), count).index_add_(1, where, squares))
    return torch.cat(found)


def _channels(basis: Basis, apart: bool) -> NDArray[np.int64]:
    """Of every direction: one of its own, or one for all of them, which are scaled already."""
    return np.arange(len(basis)) if apart else np.zeros(len(basis), dtype=np.int64)
