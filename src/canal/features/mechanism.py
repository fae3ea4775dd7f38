r"""The mechanism: the mean of K clipped bottlenecks, with noise added once (Alg. precompute).

$$\tilde z_i = \hat c \odot \tfrac1K\bigl(\textstyle\sum_k
    \mathrm{norm}(\phi_k(x_i)) + \eta_i\bigr), \qquad \eta_{i,c} \sim
    \mathcal N(0, (K\sigma_c)^2)$$
All of it in integers: what each teacher gives is on the lattice, the sum and the noise too. Only
published channels are touched: those of the top M whose noise is finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.features.calibration import CalibratedPlan, feature_lattice
from canal.features.clipping import Clipped, clip
from canal.features.statistics import Statistics
from canal.privacy.lattice import (
    TAIL_SIGMAS,
    Lattice,
    coarsen,
    fitting_shift,
    rounded_gaussian,
)
from canal.privacy.shares import check_share, share_std

if TYPE_CHECKING:
    from torch import Tensor

    from canal.privacy.randomness import Stream


@dataclass(frozen=True)
class Mechanism:
    """Everything that turns features into what is published; all of it public.

    Args:
        calibrated: the plan with its sigmas.
        channels: indices of the published channels.
        caps: of those.
        sigma: of their mean over teachers, as it is accounted for.
        lattice: of every contribution and of the noise.
        shift: halvings that make each channel fit 16 bits, once it is noisy.
    """

    calibrated: CalibratedPlan
    channels: NDArray[np.int64]
    caps: NDArray[np.float64]
    sigma: NDArray[np.float64]
    lattice: Lattice
    shift: NDArray[np.int64]

    @classmethod
    def of(cls, calibrated: CalibratedPlan, statistics: Statistics) -> Mechanism:
        """The mechanism of a calibrated plan and its caps."""
        channels = np.array(calibrated.published, dtype=np.int64)
        teachers = calibrated.plan.participants.teachers
        sigma = calibrated.published_sigma
        lattice = feature_lattice(calibrated.plan)
        largest = teachers * (1 + TAIL_SIGMAS * sigma * calibrated.plan.excess) / lattice.step
        return cls(
            calibrated,
            channels,
            statistics.caps.estimate()[channels],
            sigma,
            lattice,
            fitting_shift(largest),
        )

    @property
    def teachers(self) -> int:
        """K, whatever became of a teacher: the divisor stays."""
        return self.calibrated.plan.participants.teachers

    @property
    def noise(self) -> NDArray[np.float64]:
        """The sigma that readers find in a release: with the shares of those who may tell."""
        return self.sigma * self.calibrated.plan.excess

    @property
    def scale(self) -> NDArray[np.float64]:
        """What one stored unit of each channel is worth as a feature."""
        return np.ldexp(self.lattice.step * self.caps / self.teachers, self.shift)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        kept = dict(zip(self.calibrated.ranking, self.calibrated.scores, strict=True))
        return {
            "channels": self.channels.tolist(),
            "weights": [kept[channel] for channel in self.channels.tolist()],
            "caps": self.caps.tolist(),
            "sigma": self.noise.tolist(),
            "step": self.lattice.step,
            "shift": self.shift.tolist(),
            "scale": self.scale.tolist(),
        }

    def contribution(self, features: Tensor) -> Clipped:
        """What one teacher adds, `[B, M, *grid]`; this is computed at the site.

        Args:
            features: `[B, C, *grid]` at the tap; private.
        """
        chosen = features[:, self.channels.tolist()].double().cpu().numpy()
        nonnegative = self.calibrated.plan.nonnegative
        return clip(chosen, self.caps, self.lattice, nonnegative=nonnegative)

    def share(self, given: ArrayLike, stream: Stream) -> NDArray[np.int64]:
        """Add a site's share of the noise to what it gives for one image.

        Args:
            given: `[M, *grid]` integers; private.
            stream: of this site and this image.
        """
        plan, integers = self.calibrated.plan, np.asarray(given)
        std = share_std(self.teachers * self.sigma, plan.shares, plan.colluding)
        steps = std / self.lattice.step
        check_share(steps)
        reach = float(self.teachers)
        self.lattice.check(reach, self.teachers * self.noise, "int32")
        axes = (-1,) + (1,) * (integers.ndim - 1)
        noisy = rounded_gaussian(steps.reshape(axes), integers.shape, stream)
        noisy += integers
        return noisy

    def perturb(self, total: ArrayLike, stream: Stream) -> NDArray[np.signedinteger]:
        """Add noise once to the sum for one image, and keep it in 16 bits.

        Where noise comes in shares, add what is left of it when t of them are known: nobody does
        that in a release, it is what an audit draws.

        Args:
            total: `[M, *grid]` integers; private.
            stream: of this one image.
        """
        noisy, plan = np.asarray(total), self.calibrated.plan
        if plan.trust == "secure-sum":
            for _ in range(plan.shares - plan.colluding):
                noisy = self.share(noisy, stream)
        elif plan.allocation != "none":
            std = (self.teachers * self.sigma).reshape((-1,) + (1,) * (noisy.ndim - 1))
            noisy = self.lattice.perturb(
                noisy, std, stream, bound=float(self.teachers), storage="int32"
            )
        return self.store(noisy)

    def store(self, noisy: ArrayLike) -> NDArray[np.signedinteger]:
        """Keep a noisy sum for one image, `[M, *grid]`, in 16 bits."""
        axes = (-1,) + (1,) * (np.ndim(noisy) - 1)
        return coarsen(noisy, self.shift.reshape(axes))
