"""A figure of means with intervals over a few values of one quantity, as SVG of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from canal.experiments.drawing import STYLE
from canal.experiments.estimate import Estimate

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 24, 44
# Of the legend: lines below each other, names beside each other.
LINE, BESIDE = 18, 2
COLOURS = ("#0b5270", "#a50d1e", "#52606a", "#7a5c00")
MARKS = ("circle", "square", "diamond", "cross")


def figure(
    title: str,
    x_name: str,
    y_name: str,
    lines: Mapping[str, Mapping[str, Estimate]],
    *,
    joined: bool = True,
) -> str:
    """One line for each name, its points side by side at equal distances.

    Args:
        title: what it shows.
        x_name: name of the first axis.
        y_name: name of the second.
        lines: estimates by what is written below the axis, the same for all lines.
        joined: draw the lines; where the first axis has no order there are points alone.
    """
    ticks = list(next(iter(lines.values())))
    top = TOP + LINE * math.ceil(len(lines) / BESIDE)
    ends = [
        end for line in lines.values() for each in line.values() for end in (each.low, each.high)
    ]
    step = _round_step((max(ends) - min(ends)) / 4)
    low, high = step * math.floor(min(ends) / step), step * math.ceil(max(ends) / step)
    high = high if high > low else low + step

    def across(place: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (place + 0.5) / len(ticks)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - top - BOTTOM) * (value - low) / (high - low)

    parts = []
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        parts.append(f'<path class="grid" d="M{LEFT} {up(value):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 6, up(value) + 4, f"{value:g}", "end"))
    parts += [
        _text(across(place), HEIGHT - BOTTOM + 18, tick, "middle")
        for place, tick in enumerate(ticks)
    ]
    words = []
    for number, (name, line) in enumerate(lines.items()):
        shift = 0.12 * (number - (len(lines) - 1) / 2)
        places = [(across(i + shift), each) for i, each in enumerate(line.values())]
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        if joined:
            drawn = "L".join(f"{x:.1f} {up(each.mean):.1f}" for x, each in places)
            parts.append(f'<path class="line" stroke="{colour}" stroke-opacity=".5" d="M{drawn}"/>')
        for x, each in places:
            parts.append(
                f'<path class="line" stroke="{colour}" '
                f'd="M{x:.1f} {up(each.low):.1f}V{up(each.high):.1f}"/>'
                + _mark(mark, x, up(each.mean), colour)
            )
        left = LEFT + number % BESIDE * (WIDTH - LEFT) / BESIDE
        base = TOP + 8 + LINE * (number // BESIDE)
        parts.append(
            _mark(mark, left + 6, base - 4, colour) + _text(left + 16, base, name, "start", "name")
        )
        words.append(
            f"{name}: "
            + ", ".join(
                f"{each.mean:.1f} ({each.low:.1f} to {each.high:.1f}) at {tick}"
                for tick, each in line.items()
            )
            + "."
        )
    parts.append(_text(2, 13, y_name, "start", "name"))
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 6, x_name, "end", "name"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{escape(title)}</title><desc>{escape(' '.join(words))}</desc>"
        f"<style>{STYLE}</style>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, not below."""
    power = 10.0 ** math.floor(math.log10(max(rough, 1e-3)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * (1 - 1e-9))


def _text(x: float, y: float, words: str, anchor: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _mark(kind: str, x: float, y: float, colour: str) -> str:
    """What differs, differs in more than hue."""
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>'
    shape: Sequence[str] = {
        "square": ("m-4 -4h8v8h-8z", "fill"),
        "diamond": ("m0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z", "fill"),
        "cross": ("m-4 -4l8 8m0 -8l-8 8", "stroke"),
    }[kind]
    look = f'style="fill:{colour}"' if shape[1] == "fill" else f'stroke="{colour}" stroke-width="2"'
    return f'<path d="M{x:.1f} {y:.1f}{shape[0]}" {look}/>'
