"""Progress bars on standard error; silent where nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from canal.teachers.training import Progress


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
def counting_named(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar over one thing after the other; gives the function that says what, and how far."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{title}: {what}", completed=done, total=total)

        yield show


@contextmanager
def training(title: str, steps: int) -> Iterator[Callable[[Progress], None]]:
    """A bar over training steps with loss, Dice and remaining time."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
    )
    console = Console(stderr=True)
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=steps, news="")

        def show(progress: Progress) -> None:
            minutes, seconds = divmod(round(progress.seconds_left), 60)
            news = (
                f"loss {progress.loss:.3f}  Dice {100 * progress.dice:.1f}  "
                f"{minutes}:{seconds:02d} left"
            )
            bar.update(task, completed=progress.step, news=news)

        yield show
