"""Three real hospitals with polyps: each in turn asks the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from canal.experiments.cell import Cell, Places
from canal.experiments.markdown import decibels, row, shown, table
from canal.experiments.preset import Preset
from canal.experiments.stage import Federation
from canal.experiments.students import Asked, NetworksCell, StudentCell, dice
from canal.release.digits import upwards
from canal.student import Mode

HOSPITALS = ("Kvasir-SEG", "CVC-ClinicDB", "ETIS-Larib")
# What each student listens to.
ARMS: dict[str, tuple[Mode, Asked | None]] = {
    "alone": ("alone", None),
    "features without noise": ("noiseless", Asked(allocation="none")),
    "CANAL, the paper's eps 8": ("release", Asked()),
    "CANAL, a patient's eps 8": ("release", Asked("honest")),
    "all images pooled": ("pooled", None),
}

NOISY = ("CANAL, the paper's eps 8", "CANAL, a patient's eps 8")


def scenes(preset: Preset, recipient: str) -> list[Federation]:
    """Of one recipient, all seeds; half of its images are tested on, for some have few."""
    hospitals = HOSPITALS if recipient in HOSPITALS else (recipient, "elsewhere")
    others = tuple(
        name for place, name in enumerate(hospitals) if place != hospitals.index(recipient)
    )
    common = asdict(preset.scene) | {"training": preset.scene.training, "test": 0.5}
    return [
        Federation(**common | {"data_set": recipient, "seed": seed, "others": others})
        for seed in range(preset.few)
    ]


def recipients(preset: Preset) -> tuple[str, ...]:
    """Who asks; one invented hospital asks another, to see that it runs."""
    return preset.data_sets if "synthetic" in preset.data_sets else HOSPITALS


def cells(preset: Preset) -> Sequence[Cell]:
    """Everything that the table is made of."""
    return [
        StudentCell(scene, *arm)
        for recipient in recipients(preset)
        for scene in scenes(preset, recipient)
        for arm in ARMS.values()
    ]


def page(preset: Preset, places: Places) -> str:
    """Dice of everyone, and gains over a student alone; one column a recipient."""
    columns = {name: _column(preset, places, name) for name in recipients(preset)}
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    # Whoever is a teacher for one is the recipient of another: all teachers beside each other.
    names.sort(key=lambda name: (not name.startswith("its"), not name.startswith("the teacher")))
    rows = [row([name, *(c.get(name, "–") for c in columns.values())]) for name in names]
    return table(["", *(f"recipient {name}" for name in columns)], rows)


def _column(preset: Preset, places: Places, recipient: str) -> dict[str, str]:
    chosen = scenes(preset, recipient)
    networks = [NetworksCell(scene).result(places) for scene in chosen]
    made = {
        name: [StudentCell(scene, *arm).result(places) for scene in chosen]
        for name, arm in ARMS.items()
    }
    column = {
        "its labelled images (people on them)": _counted(networks, "recipient"),
        "its test images (people)": _counted(networks, "test"),
    }
    for who in (*chosen[0].others, "ensemble"):
        name = "their ensemble" if who == "ensemble" else f"the teacher of {who}"
        column[name] = shown(
            dice([each["networks"][who] for each in networks], networks).estimate()
        )
    alone = dice(made["alone"], networks)
    for arm, cells in made.items():
        ours = dice(cells, networks)
        column[arm] = shown(ours.estimate())
        if arm != "alone":
            gain = ours.minus(alone).estimate()
            column[f"{arm}: gain over alone"] = f"{shown(gain, signed=True)}, p {gain.p:.2g}"
        if arm in NOISY:
            column[f"{arm}: signal"] = decibels(cell["release"]["signal_db"] for cell in cells)
            patient = [cell["release"]["epsilon"]["patient"] for cell in cells]
            column[f"{arm}: a patient's eps"] = f"{upwards(max(patient), 4):g}"
    return column


def _counted(networks: Sequence[Mapping[str, Any]], part: str) -> str:
    """Over seeds, from the least to the most."""
    images = [each["sizes"][part] for each in networks]
    people = [each["crowd"][part] for each in networks]
    return " ".join(
        template.format("–".join(map(str, sorted({min(counts), max(counts)}))))
        for template, counts in (("{}", images), ("({})", people))
    )
