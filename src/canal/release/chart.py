"""Charts for a page: inline SVG, written by hand, logarithmic but for histograms.

A chart says in words what it shows, for whoever cannot see it. What differs, differs in more than
hue. Colours, dashes and sizes are the page's, by class; the drawing is as wide as a phone, so its
letters stay legible there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import NormalDist

from canal.release.digits import number, percent

Point = tuple[float, float]

WIDTH, HEIGHT = 400, 290
TOP, BOTTOM = 44, 46
LETTER, LINE = 7.2, 17
# Room right of a plot: for the names of its lines, or half a tick label.
NAMES, MARGIN = 54, 22
MOST_TICKS = 6
# How groups of points are drawn; they differ in shape.
MARKS = ("dots", "crosses")
CROSS = 4
ROOM = 1.1


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis that begins and ends at a round value: 1, 2 or 5 times a power of ten.

    Args:
        first: number of its first round value, counted from 1 = 10⁰.
        last: number of its last.
        start: where the first is drawn.
        end: where the last is.
    """

    first: int
    last: int
    start: float = 0.0
    end: float = 1.0

    @classmethod
    def around(cls, values: Sequence[float], room: float = 1.0) -> Axis:
        """The shortest that holds these, all above 0, with a factor of room at both ends."""
        low, high = min(values) / room, max(values) * room
        first = 3 * math.floor(math.log10(low)) + 3
        while _round_value(first) > low:
            first -= 1
        last = first + 1
        while _round_value(last) < high:
            last += 1
        return cls(first, last)

    def drawn(self, start: float, end: float) -> Axis:
        """The same, between two places."""
        return Axis(self.first, self.last, start, end)

    def at(self, value: float) -> float:
        """Where a value is drawn."""
        low, high = (math.log(_round_value(step)) for step in (self.first, self.last))
        return self.start + (self.end - self.start) * (math.log(value) - low) / (high - low)

    @property
    def ticks(self) -> list[float]:
        """Round values to name: all, or powers of ten, or some of those."""
        steps = list(range(self.first, self.last + 1))
        if len(steps) > MOST_TICKS:
            steps = [step for step in steps if step % 3 == 0]
        return [_round_value(step) for step in steps[:: math.ceil(len(steps) / MOST_TICKS)]]


def _round_value(step: int) -> float:
    power, place = divmod(step, 3)
    return float(f"{(1, 2, 5)[place]}e{power}")


@dataclass(frozen=True)
class Plot:
    """Two axes with their names, to draw between.

    Args:
        x: to the right.
        y: up.
        x_name: what the first is, with its unit.
        y_name: what the second is.
    """

    x: Axis
    y: Axis
    x_name: str
    y_name: str

    @classmethod
    def around(
        cls, points: Sequence[Point], x_name: str, y_name: str, *, room: float, right: float
    ) -> Plot:
        """Axes that hold all points.

        Args:
            points: to be drawn, all above 0.
            x_name: see `Plot`.
            y_name: see `Plot`.
            room: factor at both ends of the first axis.
            right: width that is kept free.
        """
        x = Axis.around([x for x, _ in points], room)
        y = Axis.around([y for _, y in points], ROOM)
        left = 10 + LETTER * max(len(number(tick)) for tick in y.ticks)
        return cls(x.drawn(left, WIDTH - right), y.drawn(HEIGHT - BOTTOM, TOP), x_name, y_name)

    def places(self, points: Iterable[Point]) -> list[str]:
        """Where points are drawn, as SVG writes it."""
        return [f"{self.x.at(x):.1f} {self.y.at(y):.1f}" for x, y in points]

    def frame(self) -> str:
        """Grid, tick labels, names of the axes."""
        x, y = self.x, self.y
        rows = (
            f'<path class="grid" d="M{x.start:.1f} {y.at(tick):.1f}H{x.end:.1f}"/>'
            + _label(x.start - 7, y.at(tick) + 4, number(tick), "end")
            for tick in y.ticks
        )
        columns = (
            f'<path class="tick" d="M{x.at(tick):.1f} {y.start}v5"/>'
            + _label(x.at(tick), y.start + 19, number(tick), "middle")
            for tick in x.ticks
        )
        return (
            "".join((*rows, *columns))
            + f'<path class="tick" d="M{x.start:.1f} {y.start}H{x.end:.1f}"/>'
            + _label(0, 13, self.y_name, "start", "name")
            + _label(x.end, HEIGHT - 5, self.x_name, "end", "name")
        )


def scatter(
    name: str, title: str, groups: Mapping[str, Sequence[Point]], x_name: str, y_name: str
) -> str:
    """Groups of points, all above 0; at least one, and no more groups than `MARKS`.

    Args:
        name: of the drawing, for its identifiers.
        title: what it shows.
        groups: points of each, by what they are called; the first are dots, the next crosses.
        x_name: name of the first axis.
        y_name: name of the second.
    """
    plot = Plot.around(
        [point for points in groups.values() for point in points],
        *(x_name, y_name),
        room=ROOM,
        right=MARGIN,
    )
    words, content = [], [plot.frame()]
    for (label, points), mark in zip(groups.items(), MARKS[: len(groups)], strict=True):
        ends = [
            number(end)
            for values in zip(*points, strict=True)
            for end in (min(values), max(values))
        ]
        words.append(
            (f"{label}: " if len(groups) > 1 else "")
            + f"{number(len(points))} points. {x_name} from {ends[0]} to {ends[1]}; "
            f"{y_name} from {ends[2]} to {ends[3]}."
        )
        # A line of no length with round ends is a dot, at a tenth of the bytes of a circle.
        half = CROSS / 2
        shape = (
            "h0"
            if mark == "dots"
            else f"m{-half:g} {-half:g}l{CROSS} {CROSS}m0 {-CROSS}l{-CROSS} {CROSS}"
        )
        drawn = "".join(f"M{place}{shape}" for place in plot.places(points))
        content.append(f'<path class="{mark}" d="{drawn}"/>')
    return _svg(name, title, " ".join(words), "".join(content))


def lines(
    name: str,
    title: str,
    drawn: Mapping[str, Sequence[Point]],
    x_name: str,
    y_name: str,
    here: tuple[float, str] | None = None,
    *,
    styles: Mapping[str, str] | None = None,
    named: bool = True,
) -> str:
    """Lines with their names at the end, and one place on the first axis that may be marked.

    Args:
        name: of the drawing, for its identifiers.
        title: what it shows.
        drawn: points of each line, left to right, by its name.
        x_name: name of the first axis.
        y_name: name of the second.
        here: the marked place, which every line has a point at, and what to call it.
        styles: class of each line; its name unless given.
        named: False where the lines end in one place, and a legend has their names.
    """
    styles = {} if styles is None else styles
    points = [point for line in drawn.values() for point in line]
    right = max(NAMES, 9 + LETTER * max(map(len, drawn))) if named else MARGIN
    plot = Plot.around(points, x_name, y_name, room=1.0, right=right)
    parts = [plot.frame()]
    if here is not None:
        where, mark = plot.x.at(here[0]), here[1]
        middle = (plot.x.start + plot.x.end) / 2
        parts += (
            f'<path class="here" d="M{where:.1f} {plot.y.start}V{plot.y.end - 6}"/>',
            _label(where, TOP - 11, mark, "start" if where < middle else "end"),
        )
    heights = _apart([plot.y.at(line[-1][1]) for line in drawn.values()])
    words = []
    for (label, line), height in zip(drawn.items(), heights, strict=True):
        style = escape(styles.get(label, label))
        parts.append(f'<path class="line {style}" d="M{" ".join(plot.places(line))}"/>')
        said = [line[0], line[-1]]
        if here is not None:
            marked = dict(line)[here[0]]
            said.insert(1, (here[0], marked))
            parts.append(f'<circle cx="{where:.1f}" cy="{plot.y.at(marked):.1f}" r="4"/>')
        if named:
            parts.append(_label(plot.x.end + 7, height + 4, label, "start", "name"))
        words.append(f"{label}: " + ", ".join(f"{number(y)} at {number(x)}" for x, y in said) + ".")
    return _svg(name, title, " ".join((f"{y_name} against {x_name}.", *words)), "".join(parts))


def bar(name: str, title: str, shares: Mapping[str, float]) -> str:
    """Shares of a whole, side by side; their numbers belong into a legend.

    Args:
        name: of the drawing, for its identifiers.
        title: what is shared.
        shares: of 1, by name, which is the class as well.
    """
    pieces, start = [], 0.0
    for part, share in shares.items():
        place = f'x="{100 * start:.3f}" width="{100 * share:.3f}"'
        if share > 0:
            pieces.append(f'<rect class="{escape(part)}" {place} y="0" height="8"/>')
        start += share
    words = ", ".join(f"{part} {percent(share)}" for part, share in shares.items())
    shape = 'class="bar" viewBox="0 0 100 8" preserveAspectRatio="none"'
    return _svg(name, title, f"{words}.", "".join(pieces), shape)


def histogram(name: str, title: str, counts: Mapping[str, float], error: float, x_name: str) -> str:
    """Bars of noisy counts with 95 % intervals, one below the other, on a linear axis from 0.

    Args:
        name: of the drawing, for its identifiers.
        title: what is counted.
        counts: by bin; what is below 0 is drawn as 0.
        error: standard deviation of the noise on each.
        x_name: name of the axis, with its unit.
    """
    reach = NormalDist().inv_cdf(0.975) * error
    most = max(reach, *(count + reach for count in counts.values())) or 1.0
    step = next(v for v in map(_round_value, itertools.count(-30)) if most <= v * (MOST_TICKS - 1))
    start, end = 10 + LETTER * max(map(len, counts)), WIDTH - MARGIN
    bottom = LINE * len(counts) + 4

    def at(count: float) -> float:
        return start + (end - start) * max(count, 0.0) / most

    parts = []
    for number_of in range(int(most / step) + 1):
        x = at(number_of * step)
        parts.append(f'<path class="grid" d="M{x:.1f} 0V{bottom}"/>')
        parts.append(_label(x, bottom + 15, number(number_of * step), "middle"))
    for row, (label, count) in enumerate(counts.items()):
        y = LINE * row + 2
        parts.append(_label(start - 7, y + 12, label, "end"))
        place = f'x="{start:.1f}" width="{at(count) - start:.1f}" y="{y}" height="{LINE - 5}"'
        parts.append(f'<rect class="features" {place}/>')
        whisker = f"M{at(count - reach):.1f} {y + LINE / 2 - 2.5:g}H{at(count + reach):.1f}"
        parts.append(f'<path class="line" d="{whisker}"/>')
    parts.append(_label(end, bottom + 33, x_name, "end", "name"))
    words = ", ".join(f"{label}: {number(count)}" for label, count in counts.items())
    words = f"{x_name} by bin, each ± {number(reach)} at 95 %. {words}."
    shape = f'class="chart" viewBox="0 0 {WIDTH} {bottom + 40}"'
    return _svg(name, title, words, "".join(parts), shape)


def _apart(heights: Sequence[float]) -> list[float]:
    """Heights of labels, moved down as far as it takes to be a line apart, and kept on the plot."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    moved = list(heights)
    for rank, index in enumerate(order):
        if rank:
            moved[index] = max(moved[index], moved[order[rank - 1]] + LINE)
    excess = max(0.0, max(moved) - (HEIGHT - BOTTOM))
    return [height - excess for height in moved]


def _label(x: float, y: float, words: str, anchor: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(name: str, title: str, words: str, content: str, shape: str = "") -> str:
    shape = shape or f'class="chart" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {shape} role="img" '
        f'aria-labelledby="{name}-title {name}-words"><title id="{name}-title">{escape(title)}'
        f'</title><desc id="{name}-words">{escape(words)}</desc>{content}</svg>'
    )
