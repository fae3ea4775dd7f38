"""Tables of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from canal.experiments.estimate import Estimate


def row(cells: Sequence[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join(cells) + " |"


def table(heads: Sequence[str], rows: Sequence[str]) -> str:
    """Heads and lines."""
    return "\n".join([row(heads), row(["---"] * len(heads)), *rows]) + "\n"


def decibels(values: Iterable[float | None]) -> str:
    """A mean over seeds; one without any signal makes it minus infinity."""
    found = list(values)
    if None in found:
        return "−∞ dB"
    return f"{np.mean([value for value in found if value is not None]):.1f} dB"


def shown(found: Estimate, *, signed: bool = False) -> str:
    """A mean and its interval, in points of Dice."""
    sign = "+" if signed else ""
    return f"{found.mean:{sign}.1f} ({found.low:{sign}.1f} to {found.high:{sign}.1f})"
