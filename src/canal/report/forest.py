"""A forest plot: dots with whiskers in the rows of a table, above one linear axis.

Places are shares of the width, so a row is as wide as its screen and its letters stay letters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_STEPS = (1, 2, 5, 10, 20, 50)
_MOST_TICKS = 6
# Half the height of a row, in pixels of the page.
_MIDDLE = "50%"


@dataclass(frozen=True)
class Scale:
    """A linear axis in points of Dice (hundredths), from one round value to another.

    Args:
        low: where it begins.
        high: where it ends.
        step: between ticks.
    """

    low: int
    high: int
    step: int

    @classmethod
    def around(cls, values: Sequence[float]) -> Scale:
        """The finest that holds these shares of 1 between few ticks."""
        least, most = 100 * min(values), 100 * max(values)
        for step in _STEPS:
            low, high = step * math.floor(least / step), step * math.ceil(most / step)
            if high == low:
                high += step
            if (high - low) // step < _MOST_TICKS:
                break
        return cls(low, high, step)

    def at(self, value: float) -> float:
        """Where a share of 1 is drawn, in percent of the width."""
        return 100 * (100 * value - self.low) / (self.high - self.low)

    def axis(self) -> str:
        """The line below all rows, with its ticks."""
        ticks = "".join(
            f'<span style="left:{self.at(tick / 100):.2f}%">{tick}</span>'
            for tick in range(self.low, self.high + 1, self.step)
        )
        return f'<div class="axis">{ticks}</div>'


def whiskers(
    name: str,
    title: str,
    value: float,
    interval: tuple[float, float],
    scale: Scale,
    zero: float | None,
) -> str:
    """One row: a dot, its interval, and the line that all are compared with.

    Args:
        name: of the drawing, for its identifiers.
        title: what it shows.
        value: where the dot is.
        interval: where the whiskers end.
        scale: of all rows.
        zero: where that line is; None for none.
    """
    low, high = interval
    start, end = (min(max(scale.at(each), 0.0), 100.0) for each in interval)
    drawn = _off(value, scale) or (
        _line("range", start, end, _MIDDLE, _MIDDLE)
        + "".join(_off(each, scale) for each in interval)
        + f'<circle cx="{scale.at(value):.2f}%" cy="{_MIDDLE}" r="5.5"/>'
    )
    words = f"{100 * value:.1f}, 95 % interval {100 * low:.1f} to {100 * high:.1f}."
    line = "" if zero is None else _line("zero", scale.at(zero), scale.at(zero), "0", "100%")
    return (
        f'<svg class="whiskers" role="img" aria-labelledby="{name}-title {name}-words">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-words">{escape(words)}</desc>{line}{drawn}</svg>'
    )


def _off(value: float, scale: Scale) -> str:
    """An arrow at the end of the axis that a value lies beyond; empty if it does not."""
    place = scale.at(value)
    if 0 <= place <= 100:
        return ""
    end, sign = ("0%", "◂") if place < 0 else ("100%", "▸")
    anchor = "start" if place < 0 else "end"
    return (
        f'<text class="off" x="{end}" y="{_MIDDLE}" dy=".35em" text-anchor="{anchor}">{sign}</text>'
    )


def _line(style: str, start: float, end: float, top: str, bottom: str) -> str:
    return f'<line class="{style}" x1="{start:.2f}%" x2="{end:.2f}%" y1="{top}" y2="{bottom}"/>'
