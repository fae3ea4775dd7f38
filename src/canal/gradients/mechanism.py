r"""The mechanism of one round: clipped gradients summed as integers, integer noise added once.

$$\tilde s_t = \sum_{\text{patients}} \mathrm{clip}(g_p) + \eta_t, \qquad
\eta_{t,b} \sim \mathcal N(0, \sigma_b^2),$$
in units of the bounds, on a lattice. The direction that readers take from it is
$(C_b/C)\,\tilde s_t / (a N)$: scaled back, a step of gradient descent in units of the clip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError
from canal.gradients.basis import Basis
from canal.gradients.clip import Clip
from canal.gradients.plan import CalibratedAdapterPlan
from canal.gradients.public import Public
from canal.privacy.lattice import Lattice
from canal.privacy.shares import check_share
from canal.release.noisy_sum import NoisySum

if TYPE_CHECKING:
    from torch import Tensor

    from canal.release.noise import Noise

Stored = NDArray[np.int32]
COUNT = "count"
# Patients are counted in small parts of one, so that shares of the noise are many of them wide.
COUNT_STEP = 2.0**-10


@dataclass(frozen=True, eq=False)
class Mechanism:
    """Everything that turns gradients into what is published; all of it public.

    Args:
        calibrated: the plan with its sigmas.
        clip: bounds every patient.
        basis: in which gradients are taken; None for the parameters as they are.
    """

    calibrated: CalibratedAdapterPlan
    clip: Clip
    basis: Basis | None = None

    @classmethod
    def of(cls, calibrated: CalibratedAdapterPlan, public: Public) -> Mechanism:
        """The mechanism of a calibrated plan and what was measured on public images.

        Raises:
            InvalidValueError: they do not fit, or shares of the noise would be too narrow.
        """
        made = cls(calibrated, public.clip(calibrated.plan), public.basis)
        if calibrated.plan.trust == "secure-sum":
            check_share(made.noisy_sum.share_steps)
            if calibrated.plan.count:
                check_share(made.noisy_count.share_steps)
        return made

    @property
    def sigma(self) -> NDArray[np.float64]:
        """Of every coordinate of a sum, in units of its bound, as it is accounted for."""
        return self.calibrated.sigma[self.clip.blocks]

    @property
    def noise_length(self) -> float:
        """How long the noise is on the mean of all rounds; unanimous patients are one long."""
        plan = self.calibrated.plan
        units = self.sigma * plan.excess * self.clip.direction
        if self.basis is not None:
            units = units * self.basis.scale.double().numpy()
        length = float(np.linalg.norm(units))
        return length / (plan.patients * math.sqrt(plan.rounds))

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return self.numbers(self.calibrated, self.clip.bounds)

    @staticmethod
    def numbers(calibrated: CalibratedAdapterPlan, bounds: NDArray[np.float64]) -> dict[str, Any]:
        """What readers need to know, from the plan and the bounds of its blocks."""
        if len(bounds) != calibrated.plan.blocks:
            raise InvalidValueError(f"give a bound for each of the {calibrated.plan.blocks} blocks")
        excess = calibrated.plan.excess
        return {
            "sigma": (calibrated.sigma * excess).tolist(),
            "bounds": bounds.tolist(),
            "step": calibrated.lattice.step,
            "count_sigma": calibrated.count_sigma * excess,
        }

    @cached_property
    def noisy_sum(self) -> NoisySum:
        """The sum of one round over all sites, `[d]`."""
        plan = self.calibrated.plan
        bound = float(plan.patients * plan.sites)
        return NoisySum(
            *("rounds", self.calibrated.lattice, self.sigma, bound),
            *(plan.shares, plan.colluding),
        )

    @cached_property
    def noisy_count(self) -> NoisySum:
        """The number of all patients, in parts of one."""
        plan, std = self.calibrated.plan, np.array(self.calibrated.count_sigma)
        bound = float(plan.patients * plan.sites)
        return NoisySum(COUNT, Lattice(COUNT_STEP), std, bound, plan.shares, plan.colluding)

    def count(self, patients: int, own: Noise | None) -> int:
        """How many patients a site has, in parts of one; with its share of the noise, if any."""
        parts = round(patients / COUNT_STEP)
        if own is None:
            return parts
        return int(self.noisy_count.share(parts, own.of_statistic(COUNT)))

    def bounded(self, total: ArrayLike) -> NDArray[np.int64]:
        """A site's sum as if it had no more patients than the plan says; never further apart."""
        most = round(self.calibrated.plan.patients / self.calibrated.lattice.step)
        return np.clip(np.asarray(total, dtype=np.int64), -most, most)

    def direction(self, stored: ArrayLike, patients: float) -> Tensor:
        """Where a published sum points, `[d]`: of length one at most, if all agree and a = 1.

        Args:
            stored: of a round.
            patients: N, as it is known in public.
        """
        import torch

        unit = self.clip.direction * (self.calibrated.lattice.step / patients)
        found = torch.from_numpy(np.asarray(stored, dtype=np.float64) * unit)
        return found if self.basis is None else self.basis.expand(found)
