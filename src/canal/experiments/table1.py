"""The paper's Table 1, CANAL against uniform noise, with the controls that it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from canal.experiments.cell import Cell, Places
from canal.experiments.data_set import DataSet
from canal.experiments.estimate import holm
from canal.experiments.markdown import decibels, row, shown, table
from canal.experiments.preset import Preset
from canal.experiments.stage import Scene
from canal.experiments.students import Asked, NetworksCell, StudentCell
from canal.privacy.units import UNITS
from canal.release.digits import upwards

ALLOCATIONS = {"uniform": "uniform", "canal": "CANAL"}
CONTROLS = {
    "alone": "alone",
    "noise-only": "noise in place of features",
    "noiseless": "features without noise",
    "noiseless-all": "the same, all channels",
    "pooled": "all images pooled",
}
MEMBERS = {"initialisation": "the initialisation", "teachers": "a teacher", "ensemble": "ensemble"}
HONEST = "CANAL, a patient's"
# What the paper reports, by data set and epsilon: uniform, CANAL.
REPORTED = {
    "Kvasir-SEG": {1: (69.40, 70.81), 2: (73.08, 73.56), 4: (74.20, 75.22), 8: (73.71, 74.98)},
    "BUSI": {1: (59.77, 61.42), 2: (63.00, 64.27), 4: (65.55, 66.59), 8: (66.20, 67.01)},
    "ISIC 2018": {1: (82.75, 83.14), 2: (83.75, 84.17), 4: (84.58, 84.79), 8: (83.94, 84.52)},
}


def students(scene: Scene, epsilons: Sequence[float]) -> dict[str, StudentCell]:
    """All students of one scene, by arm."""
    largest = max(epsilons)
    found = {
        "alone": StudentCell(scene, "alone"),
        "noise-only": StudentCell(scene, "noise-only", Asked(epsilon=largest)),
        "noiseless": StudentCell(scene, "noiseless", Asked(allocation="none")),
        "noiseless-all": StudentCell(scene, "noiseless", Asked(allocation="none", share=1.0)),
        "pooled": StudentCell(scene, "pooled"),
    }
    for epsilon in epsilons:
        for allocation in ALLOCATIONS:
            asked = Asked(epsilon=epsilon, allocation=allocation)
            found[f"{allocation} {epsilon:g}"] = StudentCell(scene, "release", asked)
    found[f"{HONEST} {largest:g}"] = StudentCell(scene, "release", Asked("honest", epsilon=largest))
    return found


def cells(preset: Preset) -> list[Cell]:
    """Everything that the table is made of."""
    found: list[Cell] = []
    for data_set in preset.data_sets:
        for scene in preset.scenes(data_set, preset.seeds):
            found += [NetworksCell(scene), *students(scene, preset.epsilons).values()]
    return found


def read(preset: Preset, places: Places) -> list[DataSet]:
    """All results; what is not there yet is made."""
    found = []
    for name in preset.data_sets:
        scenes = preset.scenes(name, preset.seeds)
        by_arm = [students(scene, preset.epsilons) for scene in scenes]
        arms = {arm: [each[arm].result(places) for each in by_arm] for arm in by_arm[0]}
        found.append(DataSet(name, [NetworksCell(s).result(places) for s in scenes], arms))
    return found


def page(preset: Preset, places: Places) -> str:
    """The tables of `docs/results.md`: every arm; CANAL against uniform; whether anything helps."""
    data_sets = read(preset, places)
    return "\n".join((_everything(data_sets), _comparison(data_sets), _reasons(data_sets)))


def label(arm: str) -> str:
    """An arm, for people."""
    if arm in CONTROLS | MEMBERS:
        return (CONTROLS | MEMBERS)[arm]
    allocation, epsilon = arm.rsplit(" ", 1)
    return f"{ALLOCATIONS.get(allocation, allocation)} eps {epsilon}"


def _everything(data_sets: Sequence[DataSet]) -> str:
    heads = ["arm", f"eps: {', '.join(UNITS)}"]
    for data in data_sets:
        heads += [f"{data.name}: Dice", "gap closed"]
    lines = []
    arms = [*MEMBERS, *data_sets[0].arms]
    for arm in arms:
        cells = [label(arm), _epsilons(data_sets, arm)]
        for data in data_sets:
            cells += [shown(data.dice(arm).estimate())]
            cells += ["–" if arm in ("alone", *MEMBERS) else data.closed(arm)]
        lines.append(row(cells))
    return table(heads, lines)


def _epsilons(data_sets: Sequence[DataSet], arm: str) -> str:
    """The largest over data sets and seeds; infinite where nothing is promised."""
    cells = [cell for data in data_sets for cell in data.arms.get(arm, ())]
    releases = [cell["release"] for cell in cells if cell["release"] is not None]
    if not releases:
        return "–"
    return ", ".join(_largest([each["epsilon"][unit] for each in releases]) for unit in UNITS)


def _largest(epsilons: Sequence[float | None]) -> str:
    known = [value for value in epsilons if value is not None]
    return "∞" if len(known) < len(epsilons) else f"{upwards(max(known), 4):g}"


def _comparison(data_sets: Sequence[DataSet]) -> str:
    """CANAL less uniform noise at every epsilon, corrected for how many are looked at."""
    pairs = [
        (data, arm, data.gain(arm, arm.replace("canal", "uniform")))
        for data in data_sets
        for arm in data.arms
        if arm.startswith("canal ")
    ]
    corrected = holm([gain.p for _, _, gain in pairs])
    heads = ["data", "eps", "CANAL − uniform", "p", "p, Holm", "the paper's CANAL − uniform"]
    lines = [
        row(
            [
                *(data.name, arm.split()[1], shown(gain, signed=True)),
                *(f"{gain.p:.2g}", f"{p:.2g}", _reported(data.name, float(arm.split()[1]))),
            ]
        )
        for (data, arm, gain), p in zip(pairs, corrected, strict=True)
    ]
    return table(heads, lines)


def _reported(name: str, epsilon: float) -> str:
    found = REPORTED.get(name, {}).get(int(epsilon))
    return "–" if found is None else f"{found[1]:.2f} − {found[0]:.2f} = +{found[1] - found[0]:.2f}"


def _reasons(data_sets: Sequence[DataSet]) -> str:
    """What each arm gains over a student alone, and how much signal there was to gain it from."""
    heads = ["arm", *(f"{data.name}: {what}" for data in data_sets for what in ("gain", "signal"))]
    lines = []
    for arm in data_sets[0].arms:
        if arm == "alone":
            continue
        cells = [label(arm)]
        for data in data_sets:
            cells += [shown(data.gain(arm), signed=True), _signal(data.arms[arm], arm)]
        lines.append(row(cells))
    return table(heads, lines)


def _signal(results: Sequence[Mapping[str, Any]], arm: str) -> str:
    if arm in ("noise-only", "pooled"):
        return "–"
    if arm.startswith("noiseless"):
        return "all"
    return decibels(cell["release"]["signal_db"] for cell in results)
