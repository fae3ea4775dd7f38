r"""Harm: what noise does to the recipient's loss, allocated over channels and flat.

Noise of variance $\sigma_c^2$ on the parameters of channel c raises the loss by about
$\sum_c s_c \sigma_c^2$, with the curvature $s_c$ of the recipient's own loss. Were all gradients
of the energies $v_c$, both allocations of `canal.gradients.public` would leave, of the harm of flat
noise at the same price,
$$\frac{(\sum_c \sqrt{s_c v_c})^2}{\sum_c s_c \sum_c v_c} \le 1.$$
That is theory. Clips are medians of lengths, which are not alike, so the noise that plans really
draw leaves something else; and neither counts what a clip takes from the signal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from canal.experiments.cell import Cell, Places, Report
from canal.experiments.course import Course
from canal.gradients.adapter import Adapter
from canal.gradients.plan import AdapterPlan, Allocation
from canal.gradients.public import Array, Public
from canal.gradients.shared import share

ALLOCATIONS: tuple[Allocation, ...] = ("flat", "ellipsoid", "channels")


@dataclass(frozen=True)
class HarmCell(Cell):
    """What allocation over channels leaves of the harm, before any patient is asked.

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
        asked, adapter = stage.part("recipient"), Adapter(self.parts)
        return left(
            {each: share(stage.init, asked, adapter, each).start.public for each in ALLOCATIONS}
        )


def left(looked: dict[Allocation, Public]) -> dict[str, float]:
    """The harm of noise allocated over channels, over that of flat noise; and what theory says.

    Args:
        looked: what the recipient's images say, as each allocation wants to know it.
    """
    channels, ellipsoid = looked["channels"], looked["ellipsoid"]
    curvature = channels.weights / channels.bounds**2
    energy = curvature / ellipsoid.scales**4  # but for a factor, which theory does not know
    flat = harm(looked["flat"], "flat", curvature)
    return {
        "theory": theory(curvature, energy),
        "ellipsoid": harm(ellipsoid, "ellipsoid", curvature) / flat,
        "channels": harm(channels, "channels", curvature) / flat,
    }


def harm(public: Public, allocation: Allocation, curvature: Array) -> float:
    """Of one round's noise; only comparable with others of the same parameters.

    Args:
        public: bounds, scales and weights.
        allocation: of the noise.
        curvature: $s_c$ of every channel.
    """
    # Any epsilon and any crowd: they change the harm of all allocations alike.
    plan = public.fit(AdapterPlan(8.0, 100, len(public.channels), allocation=allocation))
    noise = plan.calibrate(public.weights).sigma * public.bounds / public.scales
    return float((curvature * noise**2).sum())


def theory(curvature: Array, energy: Array) -> float:
    """What both allocations leave where every gradient has these energies.

    Args:
        curvature: $s_c$ of every channel.
        energy: $v_c$ of every channel.
    """
    return float(np.sqrt(curvature * energy).sum() ** 2 / (curvature.sum() * energy.sum()))
