"""A ratio of two measurements; timings are taken in turns so that both meet the same machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """One line of the table.

    Args:
        what: what was measured.
        against: the rival.
        ours: what we need, the best of our rounds; less is better.
        theirs: what the rival needs, the best of its rounds.
        target: how many times as good as the rival we ask ourselves to be, at least.
        unit: of both numbers.
    """

    what: str
    against: str
    ours: float
    theirs: float
    target: float
    unit: str = "ms"

    @property
    def speed(self) -> float:
        """How many times as fast, or as small, as the rival we are."""
        return self.theirs / self.ours

    @property
    def reached(self) -> bool:
        """Whether the target was met."""
        return self.speed >= self.target


def compare(
    what: str,
    ours: Callable[[], object],
    against: str,
    theirs: Callable[[], object],
    *,
    target: float,
    rounds: int = 7,
    their_rounds: int | None = None,
    their_share: float = 1.0,
) -> Ratio:
    """Time two calls in turns and keep the best of each.

    Args:
        what: name of our side.
        ours: our side.
        against: name of the rival.
        theirs: the rival; called once to warm up unless it runs a single round.
        target: speed that we ask for, as a multiple of the rival's.
        rounds: how often each runs.
        their_rounds: how often the rival runs, where it is too slow for as many.
        their_share: the part of our work that the rival's call does, where it is too slow for all.
    """
    their_rounds = rounds if their_rounds is None else their_rounds
    ours()
    if their_rounds > 1:
        theirs()
    mine, others = [], []
    for turn in range(max(rounds, their_rounds)):
        if turn < rounds:
            mine.append(_seconds(ours))
        if turn < their_rounds:
            others.append(_seconds(theirs))
    return Ratio(what, against, min(mine) * 1e3, min(others) / their_share * 1e3, target)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
