"""The figure of `docs/attacks.md`: an attack's ROC beside what its guarantee allows, as SVG."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from canal.attacks.roc import allowed_tpr
from canal.experiments.drawing import alone
from canal.release.chart import lines

CANAL = "CANAL, the paper's eps 8"
LITTLE = "CANAL, the paper's eps 1,000"
ALLOWED, CHANCE = "most that eps 8 allows", "guessing"
# Colour and dashes of each line.
LOOKS = {
    "no noise": "stroke:#a50d1e",
    LITTLE: "stroke:#7a5c00;stroke-dasharray:12 3",
    CANAL: "stroke:#0b5270",
    ALLOWED: "stroke:#52606a;stroke-dasharray:9 6",
    CHANCE: "stroke:#52606a;stroke-dasharray:1 6",
}
LOWEST = 5e-3


def figure(cells: list[dict[str, Any]]) -> str:
    """ROC of the attack on images on logarithmic axes, with the curve that the guarantee allows.

    Args:
        cells: of one seed, as `canal.experiments.attacks` makes them.
    """
    arms = {cell["cell"]["arm"]["name"]: cell for cell in cells}
    mu = arms[CANAL]["images"]["allowed"]["mu"]
    drawn = {name: _curve(arms[name]["images"]["roc"]) for name in ("no noise", LITTLE, CANAL)}
    drawn[ALLOWED] = [(x, allowed_tpr(x, mu)) for x in np.geomspace(LOWEST, 1, 60).tolist()]
    drawn[CHANCE] = [(LOWEST, LOWEST), (1.0, 1.0)]
    styles = {name: f"curve-{number}" for number, name in enumerate(LOOKS)}
    title = "Membership of images: members found against false alarms"
    page = lines(
        *("roc", title, drawn, "outsiders wrongly named", "members rightly named"),
        styles=styles,
        named=False,
    )
    legend = "".join(
        f'<path class="line {styles[name]}" d="M192 {152 + 18 * row}h26"/>'
        f'<text class="name" x="225" y="{156 + 18 * row}">{escape(name)}</text>'
        for row, name in enumerate(LOOKS)
    )
    looks = "".join(f".{styles[name]}{{{look}}}" for name, look in LOOKS.items())
    return alone(page.replace("</svg>", f"{legend}</svg>"), looks)


def _curve(roc: list[list[float]]) -> list[tuple[float, float]]:
    """A staircase from the lowest rate that is drawn; nothing found is at the bottom."""
    found = max((true for false, true in roc if false <= LOWEST), default=0.0)
    shown = [(LOWEST, max(found, LOWEST))]
    for false, true in roc:
        if false > LOWEST:
            shown += [(false, shown[-1][1]), (false, max(true, LOWEST))]
    return shown
