r"""Consensus: how much of what patients say to a network they all say.

Of patients' gradients u of length one, the mean has the squared length
$$\lVert \mathbb E\,u \rVert^2 \approx \frac{\lVert \sum u \rVert^2 - N}{N (N - 1)},$$
without what N strangers have in common by chance. It is what the noise has to be held against; and
gradients that are longer on patients than on the recipient's own images tell of a network that has
learned the latter by heart. Research alone: nothing here is private, or paid for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from canal.experiments.cell import Cell, Places, Report
from canal.experiments.course import Course
from canal.gradients.adapter import Adapter
from canal.gradients.gradients import Gradients
from canal.gradients.patients import Patients
from canal.learning.teacher import load_initialisation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


@dataclass(frozen=True)
class ConsensusCell(Cell):
    """What patients say to the shared initialisation, before the first round."""

    scene: Course

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scene.name}-consensus"

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """One pass over all patients, and one over the recipient's images."""
        stage = self.scene.on(places, report)
        network, _ = load_initialisation(stage.init)
        gradients = Gradients(network, Adapter().install(network).names)
        sites = [Patients(name, stage.part(name)) for name in stage.sites]
        common, theirs = consensus(rows for site in sites for rows in site.gradients(gradients, 0))
        _, own = consensus(Patients("recipient", stage.part("recipient")).gradients(gradients, 0))
        return {"consensus": common, "patients": theirs, "recipient": own}


def consensus(gradients: Iterable[Tensor]) -> tuple[float, float]:
    """How long the mean of their directions is, without chance; and their median length.

    Args:
        gradients: one row a patient, in any number of parts.
    """
    import torch

    total: Any = 0
    lengths = []
    for rows in gradients:
        length = rows.norm(dim=1)
        total = total + (rows / length.clamp(min=1e-30)[:, None]).sum(0).double()
        lengths.append(length)
    every = torch.cat(lengths)
    count = int((every > 0).sum())
    squared = (float(total.square().sum()) - count) / max(1, count * (count - 1))
    return max(0.0, squared) ** 0.5, float(every.median())
