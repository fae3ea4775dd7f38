"""Adapters against what a user would pick instead, at one epsilon of the same patients: tables."""

from __future__ import annotations

from collections.abc import Sequence

from canal.experiments.arms import (
    ADAPTERS,
    ALONE,
    ECHO,
    EPSILONS,
    FINE,
    GOALS,
    LONGER,
    OURS,
    POOLED,
    PUPIL,
    START,
    TAUGHT,
    TEACHERS,
    UNION,
    arms,
    course,
)
from canal.experiments.cell import Cell, Places
from canal.experiments.course import StartCell
from canal.experiments.data_set import DataSet
from canal.experiments.estimate import holm
from canal.experiments.markdown import row, shown, table
from canal.experiments.preset import Preset
from canal.experiments.whiskers import figure


def cells(preset: Preset) -> list[Cell]:
    """Everything that the tables are made of."""
    found: dict[str, Cell] = {}
    for name in preset.data_sets:
        for seed in _seeds(preset):
            scene = course(preset, name, seed)
            for arm in arms(scene, _epsilons(preset), smoke=preset.smoke).values():
                found[arm.cell.slug] = arm.cell
    return list(found.values())


def read(preset: Preset, places: Places) -> list[DataSet]:
    """All results; what is not there yet is made."""
    found = []
    for name in preset.data_sets:
        scenes = [course(preset, name, seed) for seed in _seeds(preset)]
        by_seed = [arms(scene, _epsilons(preset), smoke=preset.smoke) for scene in scenes]
        made = {arm: [each[arm].result(places) for each in by_seed] for arm in by_seed[0]}
        found.append(DataSet(name, [StartCell(scene).result(places) for scene in scenes], made))
    return found


def page(preset: Preset, places: Places) -> str:
    """Every arm, and adapters less each rival."""
    data_sets = read(preset, places)
    epsilons = _epsilons(preset)
    return "\n".join(
        (
            _goals(data_sets, epsilons),
            _everybody(data_sets),
            _differences(data_sets, epsilons),
            _students(data_sets, epsilons),
            _gaps(data_sets, epsilons),
        )
    )


def figures(preset: Preset, places: Places) -> dict[str, str]:
    """What pooling, adapters and DP-SGD gain over who is alone; one figure for each epsilon."""
    data_sets = read(preset, places)
    found = {}
    for epsilon in _epsilons(preset):
        drawn = {
            "pooled, not private": POOLED,
            "adapters as they are": f"{TAUGHT} eps {epsilon:g}",
            UNION: f"{UNION}, all weights eps {epsilon:g}",
            "a student of DP-SGD teachers": f"{TEACHERS}, all weights, student eps {epsilon:g}",
        }
        lines = {
            name: {data.name: data.gain(arm) for data in data_sets} for name, arm in drawn.items()
        }
        title = f"Gain over a recipient alone at a patient's epsilon of {epsilon:g}"
        found[f"adapters-{epsilon:g}.svg"] = figure(
            title, "", f"Dice over alone, points, epsilon {epsilon:g}", lines, joined=False
        )
    return found


def _seeds(preset: Preset) -> range:
    return range(preset.few if preset.smoke else preset.seeds)


def _epsilons(preset: Preset) -> tuple[float, ...]:
    return EPSILONS[:1] if preset.smoke else EPSILONS


def _rivals(data: DataSet, epsilon: float) -> list[str]:
    """Arms that are not ours and pay this epsilon."""
    paying = [arm for arm in data.arms if arm.endswith(f" eps {epsilon:g}")]
    return [arm for arm in paying if arm.removesuffix(f" eps {epsilon:g}") not in ADAPTERS]


def _goals(data_sets: Sequence[DataSet], epsilons: Sequence[float]) -> str:
    """What was to be closed of the gap, what is, and by the rival that closes most."""
    lines = []
    for epsilon in epsilons:
        ending = f" eps {epsilon:g}"
        for name in ADAPTERS:
            goal = f"{GOALS[epsilon]} %" if name == OURS[epsilon] else ""
            closed = [data.closed(name + ending) for data in data_sets]
            lines.append(row([f"{epsilon:g}", goal, name, *closed]))
        found = []
        for data in data_sets:
            best = max(_rivals(data, epsilon), key=lambda arm: data.dice(arm).means.mean())
            found.append(f"{data.closed(best)}: {best.removesuffix(ending)}")
        lines.append(row([f"{epsilon:g}", "", "the rival that closes most", *found]))
    return table(["eps", "goal", "gap closed by", *(data.name for data in data_sets)], lines)


def _everybody(data_sets: Sequence[DataSet]) -> str:
    heads = ["arm"]
    for data in data_sets:
        heads += [f"{data.name}: Dice", "gap closed"]
    lines = []
    for arm in data_sets[0].arms:
        cells = [arm]
        for data in data_sets:
            cells += [shown(data.dice(arm).estimate())]
            cells += ["–" if arm == ALONE else data.closed(arm)]
        lines.append(row(cells))
    return table(heads, lines)


def _students(data_sets: Sequence[DataSet], epsilons: Sequence[float]) -> str:
    """What the recipient's own images do to adapters: two ways to a student."""
    lines = []
    for epsilon in epsilons:
        for arm in (FINE, PUPIL):
            student, taught = (f"{each} eps {epsilon:g}" for each in (arm, TAUGHT))
            gains = [shown(data.gain(student, taught), signed=True) for data in data_sets]
            lines.append(row([f"{epsilon:g}", arm, *gains]))
    return table(["eps", "less adapters as they are", *(data.name for data in data_sets)], lines)


def _gaps(data_sets: Sequence[DataSet], epsilons: Sequence[float]) -> str:
    """What adapters close of other gaps: from the initialisation, and to longer training."""
    lines = []
    for epsilon in epsilons:
        for name in ADAPTERS:
            arm = f"{name} eps {epsilon:g}"
            for below, above in ((START, POOLED), (ALONE, LONGER)):
                closed = [data.closed(arm, above, below) for data in data_sets]
                lines.append(row([arm, f"{below} to {above}", *closed]))
    return table(["arm", "gap", *(data.name for data in data_sets)], lines)


def _differences(data_sets: Sequence[DataSet], epsilons: Sequence[float]) -> str:
    """Adapters less every rival at the same epsilon, corrected for how many are looked at.

    What is held against rivals, and adapters as they are: no rival was fine-tuned.
    """
    pairs = []
    for epsilon in epsilons:
        pairs += [
            (epsilon, ours, rival, data.gain(f"{ours} eps {epsilon:g}", rival))
            for ours in dict.fromkeys((OURS[epsilon], TAUGHT))
            for rival in (ALONE, ECHO, *_rivals(data_sets[0], epsilon))
            for data in data_sets
        ]
    corrected = holm([gain.p for *_, gain in pairs])
    heads = ["eps", "arm", "less", *(data.name for data in data_sets)]
    lines = []
    for start in range(0, len(pairs), len(data_sets)):
        epsilon, ours, rival, _ = pairs[start]
        cells = [f"{epsilon:g}", ours, rival.removesuffix(f" eps {epsilon:g}")]
        for (*_, gain), p in list(zip(pairs, corrected, strict=True))[start:][: len(data_sets)]:
            text = shown(gain, signed=True)
            cells.append(f"**{text}**" if p < 0.05 else text)
        lines.append(row(cells))
    return table(heads, lines)
