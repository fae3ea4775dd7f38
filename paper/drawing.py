"""Figures as SVG files: they need no page around them, and say in words what they show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canal.attacks.roc import allowed_tpr
from canal.release.chart import lines
from paper.estimates import Estimate

STYLE = (
    "text{font:12px sans-serif;fill:#52606a}.name{fill:#1a2328}path{fill:none}"
    ".grid{stroke:#d3dbe0}.tick{stroke:#52606a}.line{stroke-width:2.5}"
)
WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 24, 44
# Of the legend: lines below each other, names beside each other.
LINE, BESIDE = 18, 2
# What differs, differs in more than hue.
COLOURS = ("#0b5270", "#a50d1e", "#52606a", "#7a5c00")
MARKS = (
    '<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>',
    '<path d="M{x:.1f} {y:.1f}m-4 -4h8v8h-8z" style="fill:{colour}"/>',
    '<path d="M{x:.1f} {y:.1f}m0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z" style="fill:{colour}"/>',
    '<path d="M{x:.1f} {y:.1f}m-4 -4l8 8m0 -8l-8 8" stroke="{colour}" stroke-width="2"/>',
)
# Lowest rate of false alarms of a ROC.
LOWEST = 5e-3
# Colour and dashes of the lines of a ROC: attacks, what is allowed, guessing.
LOOKS = (
    "stroke:#a50d1e",
    "stroke:#7a5c00;stroke-dasharray:12 3",
    "stroke:#0b5270",
    "stroke:#52606a;stroke-dasharray:9 6",
    "stroke:#52606a;stroke-dasharray:1 6",
)
# Of outlines: an image, the gap between two, the head, the names of data sets.
SIDE, GAP, HEAD, NAMES = 96, 8, 30, 84


def whiskers(
    title: str,
    x_name: str,
    y_name: str,
    drawn: Mapping[str, Mapping[str, Estimate]],
    *,
    joined: bool = True,
) -> str:
    """Means with intervals: one line for each name, its points side by side at equal distances.

    Args:
        title: what it shows.
        x_name: name of the first axis.
        y_name: name of the second.
        drawn: estimates by what is written below the axis, the same for all lines.
        joined: draw the lines; where the first axis has no order there are points alone.
    """
    ticks = list(next(iter(drawn.values())))
    top = TOP + LINE * math.ceil(len(drawn) / BESIDE)
    ends = [
        end for line in drawn.values() for each in line.values() for end in (each.low, each.high)
    ]
    step = _round_step((max(ends) - min(ends)) / 4)
    low, high = step * math.floor(min(ends) / step), step * math.ceil(max(ends) / step)
    high = high if high > low else low + step

    def across(place: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (place + 0.5) / len(ticks)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - top - BOTTOM) * (value - low) / (high - low)

    parts, words = [], []
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        parts.append(f'<path class="grid" d="M{LEFT} {up(value):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 6, up(value) + 4, f"{value:g}", "end"))
    parts += [
        _text(across(place), HEIGHT - BOTTOM + 18, tick, "middle")
        for place, tick in enumerate(ticks)
    ]
    for number, (name, line) in enumerate(drawn.items()):
        shift = 0.12 * (number - (len(drawn) - 1) / 2)
        places = [(across(i + shift), each) for i, each in enumerate(line.values())]
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        stroke = f'<path class="line" stroke="{colour}"'
        if joined:
            path = "L".join(f"{x:.1f} {up(each.mean):.1f}" for x, each in places)
            parts.append(f'{stroke} stroke-opacity=".5" d="M{path}"/>')
        for x, each in places:
            parts.append(f'{stroke} d="M{x:.1f} {up(each.low):.1f}V{up(each.high):.1f}"/>')
            parts.append(mark.format(x=x, y=up(each.mean), colour=colour))
        left = LEFT + number % BESIDE * (WIDTH - LEFT) / BESIDE
        base = TOP + 8 + LINE * (number // BESIDE)
        parts.append(mark.format(x=left + 6, y=base - 4, colour=colour))
        parts.append(_text(left + 16, base, name, "start", "name"))
        said = ", ".join(f"{each} at {tick}" for tick, each in line.items())
        words.append(f"{name}: {said}.")
    parts.append(_text(2, 13, y_name, "start", "name"))
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 6, x_name, "end", "name"))
    return _svg(WIDTH, HEIGHT, title, " ".join(words), STYLE, "".join(parts))


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, not below."""
    power = 10.0 ** math.floor(math.log10(max(rough, 1e-3)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * (1 - 1e-9))


def _text(x: float, y: float, words: str, anchor: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(width: int, height: int, title: str, words: str, style: str, content: str) -> str:
    about = f"<desc>{escape(words)}</desc>" if words else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{escape(title)}</title>{about}<style>{style}</style>"
        f'<rect width="{width}" height="{height}" fill="#fff"/>{content}</svg>\n'
    )


def _styled(svg: str, looks: str) -> str:
    """A chart of a page (`canal.release.chart`) as a file, with CSS for its own lines."""
    return svg.replace("<title", f"<style>{STYLE}{looks}</style><title", 1) + "\n"


def loglog(
    name: str, title: str, drawn: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str
) -> str:
    """Lines on logarithmic axes."""
    return _styled(lines(name, title, drawn, x, y), ".line{stroke:#0b5270}")


def roc(attacks: Mapping[str, Sequence[Sequence[float]]], allowed: str, mu: float) -> str:
    """ROC curves on logarithmic axes, with the most that a guarantee of mu allows.

    Args:
        attacks: rates of false alarms and of members found, by name.
        allowed: name of the curve of what is allowed.
        mu: of the guarantee.
    """
    drawn = {name: _staircase(curve) for name, curve in attacks.items()}
    drawn[allowed] = [(x, allowed_tpr(x, mu)) for x in np.geomspace(LOWEST, 1, 60).tolist()]
    drawn["guessing"] = [(LOWEST, LOWEST), (1.0, 1.0)]
    styles = {name: f"curve-{number}" for number, name in enumerate(drawn)}
    page = lines(
        *("roc", "Membership of images: members found against false alarms", drawn),
        *("outsiders wrongly named", "members rightly named"),
        styles=styles,
        named=False,
    )
    legend = "".join(
        f'<path class="line {styles[name]}" d="M192 {152 + 18 * row}h26"/>'
        f'<text class="name" x="225" y="{156 + 18 * row}">{escape(name)}</text>'
        for row, name in enumerate(drawn)
    )
    looks = "".join(f".curve-{number}{{{look}}}" for number, look in enumerate(LOOKS))
    return _styled(page.replace("</svg>", f"{legend}</svg>"), looks)


def _staircase(curve: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """From the lowest rate that is drawn; nothing found is at the bottom."""
    found = max((true for false, true in curve if false <= LOWEST), default=0.0)
    shown = [(LOWEST, max(found, LOWEST))]
    for false, true in curve:
        if false > LOWEST:
            shown += [(false, shown[-1][1]), (false, max(true, LOWEST))]
    return shown


def outline_sheet(found: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str:
    """Rows of images, columns of students; the truth is grey below each.

    Args:
        found: results of `Outlines`, by data set.
        names: of the columns, the truth first.
    """
    rows = [
        (name, each["side"], truth, outlines)
        for name, each in found.items()
        for truth, outlines in zip(each["truth"], each["outlines"], strict=True)
    ]
    columns = [NAMES + (SIDE + GAP) * k for k in range(len(names))]
    parts = [
        f'<text x="{left}" y="18">{escape(name)}</text>'
        for left, name in zip(columns, names, strict=True)
    ]
    for line, (name, side, truth, outlines) in enumerate(rows):
        top = HEAD + line * (SIDE + GAP)
        parts.append(f'<text x="0" y="{top + SIDE / 2}">{escape(name)}</text>')
        for left, path in zip(columns, ("", *outlines), strict=True):
            place = f'transform="translate({left} {top}) scale({SIDE / side:g})"'
            parts.append(f'<g {place}><rect class="box" width="{side}" height="{side}"/>')
            ours = f'<path class="ours" d="{path}"/>' if path else ""
            parts.append(f'<path class="truth" d="{truth}"/>{ours}</g>')
    style = (
        "text{font:12px sans-serif;fill:#1a2328}.box{fill:#f3f6f8}"
        ".truth{fill:#d3dbe0;stroke:none}.ours{fill:none;stroke:#a50d1e;stroke-width:1}"
    )
    width, height = NAMES + len(names) * (SIDE + GAP), HEAD + len(rows) * (SIDE + GAP)
    title = "Outlines of every student over the truth in grey"
    return _svg(width, height, title, "", style, "".join(parts))


def filled(mask: NDArray[np.uint8]) -> str:
    """A mask, one bar for each run of pixels in a row, as SVG writes a path."""
    steps = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    starts, ends = (np.argwhere(steps == sign).tolist() for sign in (1, -1))
    return "".join(
        f"M{start} {row}h{end - start}v1h{start - end}z"
        for (row, start), (_, end) in zip(starts, ends, strict=True)
    )


def outline(mask: NDArray[np.uint8]) -> str:
    """The border of a mask along its pixels, as SVG writes a path."""
    padded = np.pad(mask.astype(bool), 1)
    level = np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1]).tolist()
    upright = np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1]).tolist()
    return "".join(f"M{x} {y}h1" for y, x in level) + "".join(f"M{x} {y}v1" for y, x in upright)
