"""Progress bars on standard error; silent where nobody watches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from canal.gradients.release import Progress as Done
    from canal.learning.training import Progress


@contextmanager
def counting(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar over things that are counted; gives the function that counts them.

    Where nobody knows yet how many there are, the bar just moves.
    """
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def measuring(title: str) -> Iterator[Callable[[int, int], None]]:
    """The same where who counts knows how many there will be: it is told with every count."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda count, total: bar.update(task, advance=count, total=total)


def _bar_with_news(console: Console) -> Bar:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
    )
    return Bar(*columns, console=console, disable=not console.is_terminal)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def training(title: str, steps: int) -> Iterator[Callable[[Progress], None]]:
    """A bar over training steps with loss, Dice and remaining time."""
    from rich.console import Console

    with _bar_with_news(Console(stderr=True)) as bar:
        task = bar.add_task(title, total=steps, news="")

        def show(progress: Progress) -> None:
            news = (
                f"loss {progress.loss:.3f}  Dice {100 * progress.dice:.1f}  "
                f"{_clock(progress.seconds_left)} left"
            )
            bar.update(task, completed=progress.step, news=news)

        yield show


@contextmanager
def rounds(title: str, total: int) -> Iterator[Callable[[Done], None]]:
    """A bar over rounds with what they cost so far and the remaining time."""
    from rich.console import Console

    # Of the last few: rounds that an earlier run made are there at once.
    ends = deque([time.monotonic()], maxlen=6)
    with _bar_with_news(Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, news="")

        def show(told: Done) -> None:
            ends.append(time.monotonic())
            pace = (ends[-1] - ends[0]) / (len(ends) - 1)
            spent = "" if told.epsilon is None else f"epsilon {told.epsilon:.3g} spent  "
            news = f"{spent}{_clock(pace * (told.rounds - told.number))} left"
            bar.update(task, completed=told.number, news=news)

        yield show
