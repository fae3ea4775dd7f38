"""The paper's qualitative figure at epsilon 2: outlines of the truth and of every student.

The page shows outlines alone, since the images belong to their data sets; the same figure with the
images is written among the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.errors import InvalidValueError
from canal.experiments.cell import Cell, Places, say_nothing
from canal.experiments.markdown import row, table
from canal.experiments.preset import Preset
from canal.experiments.stage import Scene
from canal.experiments.students import StudentCell
from canal.experiments.table1 import label, students
from canal.learning import checkpoint, pictures
from canal.learning.prediction import predict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from canal.data.arrays import Arrays

EPSILON = 2.0
# Shares of the test images, by Dice of a student alone, that are shown: not chosen by eye.
QUANTILES = (0.25, 0.75)
SIDE, GAP, HEAD, NAMES = 96, 8, 30, 84


def arms(scene: Scene, preset: Preset) -> dict[str, StudentCell]:
    """Whose outlines are drawn."""
    epsilon = EPSILON if EPSILON in preset.epsilons else preset.epsilons[0]
    found = students(scene, preset.epsilons)
    return {
        name: found[name]
        for name in ("alone", f"uniform {epsilon:g}", f"canal {epsilon:g}", "pooled")
    }


def cells(preset: Preset) -> Sequence[Cell]:
    """Of the first seed; all of them are Table 1's."""
    return [
        cell
        for data_set in preset.data_sets
        for cell in arms(preset.scenes(data_set, 1)[0], preset).values()
    ]


def page(preset: Preset, places: Places) -> str:
    """Dice of what is shown, so that nobody has to judge outlines by eye."""
    rows = []
    for data_set in preset.data_sets:
        chosen = arms(preset.scenes(data_set, 1)[0], preset)
        found = {arm: cell.result(places)["images"] for arm, cell in chosen.items()}
        rows += [
            row([data_set, *(f"{100 * dice[case]:.0f}" for dice in found.values())])
            for case in _cases(found["alone"])
        ]
    names = [label(arm) for arm in arms(preset.scene, preset)]
    return table(["Dice of the image shown", *names], rows)


def figures(preset: Preset, places: Places) -> dict[str, str]:
    """Outlines, drawn where the students were trained; with the images among the runs."""
    rows, names = [], ["truth"]
    for data_set in preset.data_sets:
        scene = preset.scenes(data_set, 1)[0]
        chosen = arms(scene, preset)
        names = ["truth", *(label(arm) for arm in chosen)]
        test = scene.on(places, say_nothing).part("test")
        masks = {arm: _masks(cell, places, test) for arm, cell in chosen.items()}
        for case in _cases(chosen["alone"].result(places)["images"]):
            shown = [test.masks[case, 0], *(found[case, 0] for found in masks.values())]
            rows.append((data_set, test.images[case], shown))
    colours = [pictures.TRUTH, *[pictures.PREDICTION] * (len(names) - 1)]
    columns = [
        [pictures.outlined(image, shown[k][None], colour) for _, image, shown in rows]
        for k, colour in enumerate(colours)
    ]
    pictures.sheet(columns, names).save(places.runs / "qualitative.png")
    return {"qualitative.svg": _svg(rows, names)}


def _cases(dice: Sequence[float]) -> list[int]:
    """Which test images are shown: by their place in the order of a student alone."""
    order = np.argsort(dice, kind="stable")
    return [int(order[round(quantile * (len(order) - 1))]) for quantile in QUANTILES]


def _masks(cell: StudentCell, places: Places, test: Arrays) -> NDArray[np.uint8]:
    folder = places.runs / cell.slug / "student"
    if not folder.is_dir():
        raise InvalidValueError(
            f"the figure is drawn where the students are, and {folder} is not there; remove the "
            f"results of {cell.name} to train it again"
        )
    return predict(checkpoint.load(folder)[0], test)


def _svg(rows: Sequence[tuple[str, Any, Sequence[NDArray[np.uint8]]]], names: Sequence[str]) -> str:
    """Rows of cases, columns of students; the truth is grey below each."""
    width, height = NAMES + len(names) * (SIDE + GAP), HEAD + len(rows) * (SIDE + GAP)
    parts = [
        f'<text x="{NAMES + (SIDE + GAP) * k}" y="18">{escape(name)}</text>'
        for k, name in enumerate(names)
    ]
    for line, (data_set, _, masks) in enumerate(rows):
        top = HEAD + line * (SIDE + GAP)
        parts.append(f'<text x="0" y="{top + SIDE / 2}">{escape(data_set)}</text>')
        for k, mask in enumerate(masks):
            left, scale = NAMES + (SIDE + GAP) * k, SIDE / len(mask)
            place = f'transform="translate({left} {top}) scale({scale:g})"'
            parts.append(f'<g {place}><rect class="box" width="{len(mask)}" height="{len(mask)}"/>')
            parts.append(f'<path class="truth" d="{_area(masks[0])}"/>')
            parts.append(f'<path class="ours" d="{_outline(mask)}"/></g>' if k else "</g>")
    style = (
        "text{font:12px sans-serif;fill:#1a2328}.box{fill:#f3f6f8}"
        ".truth{fill:#d3dbe0;stroke:none}.ours{fill:none;stroke:#a50d1e;stroke-width:1}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        "<title>Outlines of every student over the truth in grey</title>"
        f"<style>{style}</style>"
        f'<rect width="{width}" height="{height}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _area(mask: NDArray[np.uint8]) -> str:
    """A mask, one bar for each run of pixels in a row."""
    steps = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    starts, ends = (np.argwhere(steps == sign).tolist() for sign in (1, -1))
    return "".join(
        f"M{start} {row}h{end - start}v1h{start - end}z"
        for (row, start), (_, end) in zip(starts, ends, strict=True)
    )


def _outline(mask: NDArray[np.uint8]) -> str:
    """The border of a mask along its pixels, as SVG writes it."""
    padded = np.pad(mask.astype(bool), 1)
    level = np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1]).tolist()
    upright = np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1]).tolist()
    return "".join(f"M{x} {y}h1" for y, x in level) + "".join(f"M{x} {y}v1" for y, x in upright)
