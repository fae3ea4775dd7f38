r"""The mechanism: the mean of K clipped bottlenecks, with noise added once (Alg. precompute).

$$\tilde z_i = \hat c \odot \tfrac1K\bigl(\textstyle\sum_k
    \mathrm{norm}(\phi_k(x_i)) + \eta_i\bigr), \qquad \eta_{i,c} \sim
    \mathcal N(0, (K\sigma_c)^2)$$
All of it in integers: what each teacher gives is on the lattice, the sum and the noise too. Only
published channels are touched: those of the top M whose noise is finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.features.calibration import CalibratedPlan, feature_lattice
from canal.features.clipping import Clipped, clip
from canal.features.statistics import Statistics
from canal.privacy.lattice import TAIL_SIGMAS, Lattice, fitting_shift
from canal.release.noisy_sum import NoisySum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
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

    @cached_property
    def noisy_sum(self) -> NoisySum:
        """The sum over teachers of one query, `[M, *grid]`."""
        plan = self.calibrated.plan
        return NoisySum(
            "features",
            self.lattice,
            self.teachers * self.sigma,
            float(self.teachers),
            plan.shares,
            plan.colluding,
            self.shift,
            "int16",
        )
