r"""Harm: what noise does to the recipient's loss, allocated over channels and flat.

Noise of variance $\sigma_c^2$ on the parameters of channel c raises the loss by about
$\sum_c s_c \sigma_c^2$. At one mean energy of the gradients and one price, both allocations of
`canal.adapters.public` come, by the same Cauchy-Schwarz, to the harm of flat noise times
$$\frac{(\sum_c \sqrt{s_c v_c})^2}{\sum_c s_c \sum_c v_c} \le 1.$$
That is theory: it counts the noise alone, not what the clip of each channel takes from the signal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from canal.adapters.adapter import Adapter
from canal.adapters.public import Array
from canal.adapters.shared import share
from canal.experiments.cell import Cell, Places, Report
from canal.experiments.course import Course


@dataclass(frozen=True)
class HarmCell(Cell):
    """What allocation over channels would leave of the harm, before any patient is asked.

    Args:
        scene: whose initialisation and recipient are looked at.
        parts: of the network that would be taught.
    """

    scene: Course
    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scene.name}-harm"

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Look at the recipient's images."""
        stage = self.scene.on(places, report)
        shared = share(stage.init, stage.part("recipient"), Adapter(self.parts), "channels")
        public = shared.start.public
        energy = public.bounds**2
        return {"left": left(public.weights / energy, energy), "channels": len(energy)}


def left(harm: Array, energy: Array) -> float:
    """The harm of noise allocated over channels, over that of flat noise.

    Args:
        harm: $s_c$ of every channel.
        energy: $v_c$ of every channel.
    """
    return float(np.sqrt(harm * energy).sum() ** 2 / (harm.sum() * energy.sum()))
