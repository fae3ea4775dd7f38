r"""The server optimizer: from published sums to the next network. Free post-processing.

With the direction $s_t$ of round t (the noisy sum over the number of patients, rescaled),
$$m_t = \beta m_{t-1} + s_t, \qquad \theta_{t+1} = \theta_t - \eta_t m_t,$$
and the result is the average of the last iterates.

`Advice` chooses the subspace dimension and the step size from the noise level. All rounds together
give one mean of N patients under noise. Were the patients unanimous, it would have length one, and
on every coordinate noise of standard deviation $1/\text{snr}$ with
$$\text{snr} = \frac{N \sqrt T}{\sigma} = \frac{N \mu}{\Delta}.$$
Noise in k dimensions is as long as $\sqrt k$ of these: the larger the signal-to-noise ratio, the
more dimensions are worth having; and the longer the noise, the sooner must the network stop. Both
rules read public numbers alone. Their constants were chosen on one synthetic hospital;
`python -m paper run choices` tries others beside them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.errors import InvalidValueError
from canal.gradients.plan import DISTANCE

if TYPE_CHECKING:
    from torch import Tensor

    from canal.gradients.mechanism import PatientSum
    from canal.gradients.plan import AdapterPlan


@dataclass(frozen=True)
class UpdateSettings:
    r"""How fast, and how smoothly; none of it changes a guarantee.

    Args:
        step: $\eta$, in units of the clip: how far one round of unanimous patients moves. None
            for one that suits the noise (`canal.gradients.update`); rounds begin with a number.
        momentum: $\beta$.
        averaged: share of the rounds, the last ones, whose iterates are averaged.
        decay: `none`, or `cosine` down to zero.
        power: p of a public basis: how much smaller directions of large gradients are scaled; 0
            for not at all, 1/2 as Adam does.
    """

    step: float | None = None
    momentum: float = 0.9
    averaged: float = 0.5
    decay: str = "none"
    power: float = 0.5

    def __post_init__(self) -> None:
        if self.step is not None and not 0 < self.step < math.inf:
            raise InvalidValueError(f"step = {self.step!r} must be above 0 and finite")
        if not 0 <= self.momentum < 1:
            raise InvalidValueError(f"momentum = {self.momentum!r} must be at least 0, below 1")
        if not 0 <= self.averaged <= 1:
            raise InvalidValueError(f"averaged = {self.averaged!r} must lie between 0 and 1")
        if not 0 <= self.power <= 1:
            raise InvalidValueError(f"power = {self.power!r} must lie between 0 and 1")
        if self.decay not in ("none", "cosine"):
            raise InvalidValueError(f"decay = {self.decay!r} must be none or cosine")

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> UpdateSettings:
        """The reverse of `to_json`, of settings that steps were taken with."""
        found = cls(**values)
        found.rate(0, 1)
        return found

    def rate(self, number: int, rounds: int) -> float:
        """Eta of one round."""
        if self.step is None:
            raise InvalidValueError("step is not settled yet; rounds are taken with a number")
        if self.decay == "none":
            return self.step
        return self.step * (1 + math.cos(math.pi * number / rounds)) / 2

    def reach(self, rounds: int) -> float:
        """How far the adapter is from its start after unanimous rounds, over the step."""
        import torch

        course = Trajectory(torch.zeros(1), replace(self, step=1.0), rounds)
        for _ in range(rounds):
            course.move(-torch.ones(1))
        return float(course.adapter)


class Trajectory:
    """Where the adapter is, and what it will be.

    Args:
        start: `[d]`, in the shared initialisation.
        settings: of every step.
        rounds: T.
    """

    def __init__(self, start: Tensor, settings: UpdateSettings, rounds: int) -> None:
        self.here = start.double()
        self.settings, self.rounds = settings, rounds
        self.number = 0
        self._velocity = self.here * 0
        self._sum, self._counted = self.here * 0, 0

    def move(self, direction: Tensor) -> None:
        """Go against one round's direction, `[d]`."""
        rate = self.settings.rate(self.number, self.rounds)
        self._velocity = self.settings.momentum * self._velocity + direction.double()
        self.here = self.here - rate * self._velocity
        self.number += 1
        # Subtracted last, so that a tenth of ten rounds is one of them.
        if self.number > self.rounds - self.settings.averaged * self.rounds:
            self._sum, self._counted = self._sum + self.here, self._counted + 1

    @property
    def adapter(self) -> Tensor:
        """The average so far, or where it is."""
        return self._sum / self._counted if self._counted else self.here


def voice(plan: AdapterPlan) -> float:
    """What unanimous patients say in all rounds, over the noise on a coordinate of it."""
    if plan.allocation == "none":
        return math.inf
    mu = math.sqrt(2 * plan.rho()["rounds"])
    return plan.patients * mu / DISTANCE[plan.unit] / plan.excess


@dataclass(frozen=True)
class Advice:
    r"""What is done where nothing else is asked for.

    Args:
        heard: directions, over the root of the voice.
        way: how far unanimous patients lead, times the squared length of the noise on their mean.
        furthest: the same without noise, in units of the clip.
    """

    heard: float = 300.0
    way: float = 10.0
    furthest: float = 25.0

    def directions(self, plan: AdapterPlan) -> int:
        """K for such a plan; 0, for all parameters, where they are no more than that."""
        most = self.heard * math.sqrt(voice(plan))
        return 0 if most >= plan.parameters else max(1, int(most))

    def settle(self, update: UpdateSettings, mechanism: PatientSum) -> UpdateSettings:
        """The same with a step, if it has none: the noise says how far.

        Args:
            update: how the next network follows from a sum.
            mechanism: of a round.
        """
        if update.step is not None:
            return update
        noise = mechanism.noise_length**2
        far = min(self.furthest, self.way / noise) if noise else self.furthest
        step = far / update.reach(mechanism.calibrated.plan.rounds)
        # Three digits: it is read by people, and repeated by other machines.
        return replace(update, step=float(np.format_float_scientific(step, precision=2)))
