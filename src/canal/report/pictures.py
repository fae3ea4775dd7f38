"""What it looks like: some test images with the truth and what each student makes of them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from canal.learning import checkpoint, pictures
from canal.learning.evaluation import from_worst_to_best
from canal.learning.evaluation import scores as scores_of
from canal.learning.prediction import predict
from canal.release.digits import number
from canal.release.page import code, note, section
from canal.report.arms import Arm, Arms

if TYPE_CHECKING:
    from canal.data.arrays import Arrays

TITLE = "What it looks like"
ROWS, COLUMNS = 5, 6


@dataclass(frozen=True)
class Panel:
    """One picture.

    Args:
        caption: below it.
        alt: for whoever cannot see it.
        png: the file.
    """

    caption: str
    alt: str
    png: bytes


def panels(arms: Arms, arrays: Arrays) -> list[list[Panel]]:
    """Rows of pictures, from the worst to the best image of the student of the headline.

    Args:
        arms: whose networks are asked.
        arrays: that they were measured on, or more.
    """
    leader = arms.main or next(iter(arms.students), None)
    if leader is None or leader.network.scores is None:
        return []
    scores = leader.network.scores
    ids = [scores[row].id for row in from_worst_to_best([s.dice for s in scores], ROWS)]
    chosen = arrays.rows(ids)
    masks = {}
    for arm in _shown(arms, leader):
        network, about = checkpoint.load(arm.network.path)
        fits = about.size == chosen.images.shape[2:]
        if fits and about.architecture.get("in_channels") == chosen.images.shape[1]:
            masks[arm] = predict(network, chosen)
    dice = {arm: [score.dice for score in scores_of(mask, chosen)] for arm, mask in masks.items()}
    rows = []
    for row, name in enumerate(ids):
        image, truth, *found = pictures.plane(
            chosen.images[row], chosen.masks[row], *(mask[row] for mask in masks.values())
        )
        panels = [
            Panel("Image", f"Image {name}", pictures.png(image)),
            Panel("Truth", f"Truth of {name}, outlined", pictures.png(image, truth)),
        ]
        for arm, mask in zip(masks, found, strict=True):
            words = f"Dice {100 * dice[arm][row]:.0f}"
            drawn = pictures.png(image, mask, pictures.PREDICTION)
            panels.append(
                Panel(f"{arm.name}: {words}", f"{arm.name} on {name}, outlined: {words}", drawn)
            )
        rows.append(panels)
    return rows


def _shown(arms: Arms, leader: Arm) -> Sequence[Arm]:
    """Uniform, the leader, alone, adapters, then the others in their order; on the same images."""
    first = (arms.uniform(leader), leader, arms.alone(leader), arms.adapters(leader))
    ordered = dict.fromkeys(arm for arm in (*first, *arms.students) if arm is not None)
    same = [arm for arm in ordered if arm.network.dice.keys() == leader.network.dice.keys()]
    return same[: COLUMNS - 2]


def render(rows: Sequence[Sequence[Panel]], *, asked: bool) -> str:
    """The section.

    Args:
        rows: of pictures.
        asked: whether images were to be shown at all.
    """
    if not asked:
        missing = code("canal report RUN --data DIR --split FILE")
        return section(
            TITLE,
            "<p>A report shows no patient’s image unless it is asked to; "
            f"{missing} adds some, with what each student makes of them.</p>",
        )
    if not rows:
        return section(TITLE, "<p>No student was measured, so there is nothing to choose from.</p>")
    return section(TITLE, *_grid(rows), style="wide long")


def _grid(rows: Sequence[Sequence[Panel]]) -> Iterator[str]:
    columns = f"grid-template-columns:repeat({max(map(len, rows))},minmax(0,1fr))"
    for row in rows:
        yield f'<div class="panels" style="{columns}">' + "".join(map(_figure, row)) + "</div>"
    yield note(
        f"{number(len(rows))} test images, from the worst to the best of the student of the "
        "headline, evenly by rank. Green is the truth, orange what a student drew."
    )


def _figure(panel: Panel) -> str:
    data = base64.b64encode(panel.png).decode()
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{escape(panel.alt)}">'
        f"<figcaption>{escape(panel.caption)}</figcaption></figure>"
    )
