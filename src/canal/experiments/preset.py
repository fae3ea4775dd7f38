"""Presets: how large an experiment is. The code is the same for all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from canal.experiments.stage import PAPERS, Scene
from canal.learning.settings import TrainingSettings


@dataclass(frozen=True)
class Preset:
    """The size of the experiments.

    Args:
        scene: what all scenes have in common.
        data_sets: of Table 1 and the qualitative figure.
        seeds: of Table 1.
        few: seeds of the levers and the ensemble sizes.
        epsilons: of Table 1.
        sizes: K of the figure of ensemble sizes.
        smoke: only to see that everything runs.
    """

    scene: Scene
    data_sets: tuple[str, ...] = PAPERS
    seeds: int = 5
    few: int = 3
    epsilons: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    sizes: tuple[int, ...] = (1, 2, 3, 5, 8)
    smoke: bool = False

    def scenes(self, data_set: str, seeds: int) -> list[Scene]:
        """One for each seed."""
        return [replace(self.scene, data_set=data_set, seed=seed) for seed in range(seeds)]


PRESETS = {
    # For two cores.
    "cpu": Preset(
        Scene(
            "",
            size=64,
            recipient=50,
            base_channels=8,
            training=TrainingSettings(steps=600, batch_size=8),
        )
    ),
    # For a GPU.
    "paper": Preset(
        Scene(
            "",
            size=256,
            recipient=50,
            base_channels=64,
            training=TrainingSettings(steps=10_000, batch_size=8),
        )
    ),
    # Seconds, on invented images: that everything runs, and nothing else.
    "smoke": Preset(
        Scene(
            "",
            size=32,
            recipient=6,
            base_channels=8,
            training=TrainingSettings(steps=2, batch_size=4, save_every=2),
        ),
        data_sets=("synthetic",),
        seeds=2,
        few=1,
        epsilons=(8.0,),
        sizes=(1, 2),
        smoke=True,
    ),
}
