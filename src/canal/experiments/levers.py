"""Levers: what each of our changes to the paper's mechanism does, alone and together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from canal.experiments.cell import Cell, Places
from canal.experiments.estimate import Estimate, holm
from canal.experiments.markdown import decibels, row, shown, table
from canal.experiments.preset import Preset
from canal.experiments.stage import Scene
from canal.experiments.students import Asked, NetworksCell, StudentCell, dice
from canal.learning.settings import DistillSettings

PAPERS = "the paper's mechanism"
TOGETHER = "all together, K = 10"
DATA_SETS = ("BUSI", "Kvasir-SEG")
EPSILONS = (8.0, 1.0)
# Whose epsilon it is, by what that asks of a plan.
ACCOUNTINGS: dict[str, tuple[tuple[str, object], ...]] = {
    "paper": (),
    "patient": (("unit", "patient"),),
}
_PUBLIC = (("caps_source", "public"), ("importance_source", "public"))


@dataclass(frozen=True)
class Lever:
    """What is changed.

    Args:
        choices: arguments of `Plan`.
        allocation: of the noise.
        share: of the channels that are released.
        sites: K.
        distill: how the student listens.
    """

    choices: tuple[tuple[str, object], ...] = ()
    allocation: str = "canal"
    share: float = 0.1
    sites: int = 3
    distill: DistillSettings = field(default_factory=DistillSettings)

    def student(self, scene: Scene, unit: str, epsilon: float) -> StudentCell:
        """With this changed, and nothing else."""
        choices = ACCOUNTINGS[unit] + self.choices
        asked = Asked("paper", epsilon, self.allocation, self.share, choices)
        return StudentCell(replace(scene, sites=self.sites), "release", asked, self.distill)


LEVERS = {
    PAPERS: Lever(),
    "exact conversion": Lever((("conversion", "exact"),)),
    "non-negative sensitivity": Lever((("nonnegative", True),)),
    "matched weight": Lever((("weight", "matched"),)),
    "public statistics": Lever(_PUBLIC),
    "reverse water-filling": Lever(allocation="reverse"),
    "cosine projection": Lever(distill=DistillSettings(frequencies=2)),
    "Wiener": Lever(distill=DistillSettings(wiener=True)),
    "precision-weighted loss": Lever(distill=DistillSettings(channel_weight="precision")),
    "M = 1 %": Lever(share=0.01),
    "M = 5 %": Lever(share=0.05),
    "M = 25 %": Lever(share=0.25),
    "M = 100 %": Lever(share=1.0),
    "K = 1": Lever(sites=1),
    "K = 5": Lever(sites=5),
    "K = 10": Lever(sites=10),
    TOGETHER: Lever(
        (("conversion", "exact"), ("nonnegative", True), ("weight", "matched"), *_PUBLIC),
        allocation="reverse",
        sites=10,
        distill=DistillSettings(frequencies=2, wiener=True, channel_weight="precision"),
    ),
}


def data_sets(preset: Preset) -> tuple[str, ...]:
    """Those of the issue that the preset has, or what it has."""
    return tuple(name for name in DATA_SETS if name in preset.data_sets) or preset.data_sets


def levers(preset: Preset) -> dict[str, Lever]:
    """All of them; a few are enough to see that everything runs."""
    few = (PAPERS, "Wiener", "M = 1 %", "K = 10", TOGETHER)
    return {name: LEVERS[name] for name in (few if preset.smoke else LEVERS)}


def columns(preset: Preset) -> list[tuple[str, float]]:
    """Accounting and epsilon; one pair is enough to see that everything runs."""
    found = [(unit, epsilon) for unit in ACCOUNTINGS for epsilon in EPSILONS]
    return found[-2:-1] if preset.smoke else found


def cells(preset: Preset) -> Sequence[Cell]:
    """Everything that the table is made of."""
    return [
        lever.student(scene, unit, epsilon)
        for data_set in data_sets(preset)
        for scene in preset.scenes(data_set, preset.few)
        for lever in levers(preset).values()
        for unit, epsilon in columns(preset)
    ]


def page(preset: Preset, places: Places) -> str:
    """One table a data set: gain over the paper's mechanism in Dice, and the signal in dB.

    Gains that chance does not explain, at 5 % over the whole table (Holm), are bold.
    """
    heads = ["lever"]
    for unit, epsilon in columns(preset):
        heads += [f"{unit} eps {epsilon:g}: signal", "Dice"]
    tables = []
    for name in data_sets(preset):
        found = {
            (label, column): _measured(preset, places, name, lever, *column)
            for label, lever in levers(preset).items()
            for column in columns(preset)
        }
        turned = [key for key in found if key[0] != PAPERS]
        p_values = dict(zip(turned, holm([found[key][0].p for key in turned]), strict=True))
        rows = []
        for label in levers(preset):
            cells = [label]
            for column in columns(preset):
                gain, signal = found[label, column]
                text = shown(gain, signed=label != PAPERS)
                bold = p_values.get((label, column), 1.0) < 0.05
                cells += [signal, f"**{text}**" if bold else text]
            rows.append(row(cells))
        tables.append(f"{name}:\n\n{table(heads, rows)}")
    return "\n".join(tables)


def _measured(
    preset: Preset, places: Places, data_set: str, lever: Lever, unit: str, epsilon: float
) -> tuple[Estimate, str]:
    """Dice of the paper's mechanism, or what a lever gains over it; and the mean signal."""
    scenes = preset.scenes(data_set, preset.few)
    networks = [NetworksCell(replace(s, sites=lever.sites)).result(places) for s in scenes]
    made = [lever.student(scene, unit, epsilon).result(places) for scene in scenes]
    signal = decibels(each["release"]["signal_db"] for each in made)
    ours = dice(made, networks)
    if lever is LEVERS[PAPERS]:
        return ours.estimate(), signal
    papers = [LEVERS[PAPERS].student(scene, unit, epsilon).result(places) for scene in scenes]
    return ours.minus(dice(papers, networks)).estimate(), signal
