r"""From published sums to the next network: post-processing, free, the same for all who repeat it.

With the direction $s_t$ of round t (the noisy sum over the number of patients, rescaled),
$$m_t = \beta m_{t-1} + s_t, \qquad \theta_{t+1} = \theta_t - \eta_t m_t,$$
and the adapter is the average of the last iterates.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from canal.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class UpdateSettings:
    r"""How fast, and how smoothly; none of it changes a guarantee.

    Args:
        step: $\eta$, in units of the clip: how far one round of unanimous patients moves. None
            for one that suits the noise (`canal.gradients.advice`); rounds begin with a number.
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
