r"""Advice: in how many directions patients are heard, and how far the network goes on their word.

What all rounds together say is one mean of N patients under noise. Were they unanimous, it would
have length one, and on every coordinate noise of standard deviation $1/\text{voice}$ with
$$\text{voice} = \frac{N \sqrt T}{\sigma} = \frac{N \mu}{\Delta}.$$
Noise in k directions is as long as $\sqrt k$ of these, so the more voice the more directions are
worth hearing; and the longer the noise, the sooner must the network stop. Both rules take public
numbers alone, and cost nothing. Their constants were chosen on one invented hospital;
`python -m paper run choices` tries others beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from canal.gradients.plan import DISTANCE

if TYPE_CHECKING:
    from canal.gradients.mechanism import PatientSum
    from canal.gradients.plan import AdapterPlan
    from canal.gradients.update import UpdateSettings


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
