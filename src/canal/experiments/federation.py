"""Three real hospitals with polyps: each in turn asks the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from canal.experiments.cell import Cell, Places
from canal.experiments.markdown import row, shown, table
from canal.experiments.preset import Preset
from canal.experiments.stage import Federation, Scene
from canal.experiments.students import Asked, NetworksCell, StudentCell, dice

HOSPITALS = ("Kvasir-SEG", "CVC-ClinicDB", "ETIS-Larib")
ARMS = {
    "alone": StudentCell(Scene(""), "alone"),
    "features without noise": StudentCell(Scene(""), "noiseless", Asked(allocation="none")),
    "CANAL, the paper's eps 8": StudentCell(Scene(""), "release", Asked()),
    "CANAL, a patient's eps 8": StudentCell(Scene(""), "release", Asked("honest")),
    "all images pooled": StudentCell(Scene(""), "pooled"),
}


def scenes(preset: Preset, recipient: str) -> list[Federation]:
    """Of one recipient, all seeds; half of its images are tested on, for some have few."""
    hospitals = HOSPITALS if recipient in HOSPITALS else (recipient, recipient)
    others = tuple(
        name for place, name in enumerate(hospitals) if place != hospitals.index(recipient)
    )
    common = asdict(preset.scene) | {"training": preset.scene.training, "test": 0.5}
    return [
        Federation(**common | {"data_set": recipient, "seed": seed, "others": others})
        for seed in range(preset.few)
    ]


def recipients(preset: Preset) -> tuple[str, ...]:
    """Who asks; the invented hospital asks itself, to see that it runs."""
    return preset.data_sets if "synthetic" in preset.data_sets else HOSPITALS


def cells(preset: Preset) -> Sequence[Cell]:
    """Everything that the table is made of."""
    return [
        replace(cell, scene=scene)
        for recipient in recipients(preset)
        for scene in scenes(preset, recipient)
        for cell in ARMS.values()
    ]


def page(preset: Preset, places: Places) -> str:
    """One column a recipient."""
    columns = {}
    for recipient in recipients(preset):
        chosen = scenes(preset, recipient)
        networks = [NetworksCell(scene).result(places) for scene in chosen]
        column = {
            f"the teacher of {site}": dice([each["networks"][site] for each in networks], networks)
            for site in chosen[0].others
        }
        column["their ensemble"] = dice(
            [each["networks"]["ensemble"] for each in networks], networks
        )
        for arm, cell in ARMS.items():
            made = [replace(cell, scene=scene).result(places) for scene in chosen]
            column[arm] = dice(made, networks)
        columns[recipient] = column
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [
        row([name, *(shown(c[name].estimate()) if name in c else "–" for c in columns.values())])
        for name in names
    ]
    return table(
        ["on the recipient's test images", *(f"recipient {name}" for name in columns)], rows
    )
