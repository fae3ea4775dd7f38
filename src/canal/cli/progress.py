"""Progress bars on standard error; silent where nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID

    from canal.experiments.cell import Cell
    from canal.experiments.grid import Watch
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
def watching(total: int) -> Iterator[Watch]:
    """Bars over the cells of a grid, one for each that is being made, and one over all.

    Where nobody watches, a line for each cell that is there, or is not and why.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    from canal.experiments.grid import Watch

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
    )
    console = Console(stderr=True)
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        whole = bar.add_task("cells", total=total, news="")
        tasks: dict[str, TaskID] = {}

        def begin(cell: Cell) -> None:
            tasks[cell.slug] = bar.add_task(escape(cell.name), total=None, news="")

        def report(cell: Cell, what: str, done: int, of: int) -> None:
            bar.update(tasks[cell.slug], completed=done, total=of, news=escape(what))

        def end(cell: Cell, failure: str | None, left: float | None) -> None:
            if cell.slug in tasks:
                bar.remove_task(tasks.pop(cell.slug))
            news = "" if left is None else f"{_clock(left)} left"
            bar.update(whole, advance=1, news=news)
            if failure is not None:
                console.print(f"[red]failed[/red] {escape(cell.slug)}: {escape(failure)}")
            elif not console.is_terminal:
                console.print(f"made {escape(cell.name)}", f"({news})" if news else "")

        yield Watch(begin, report, end)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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
            news = (
                f"loss {progress.loss:.3f}  Dice {100 * progress.dice:.1f}  "
                f"{_clock(progress.seconds_left)} left"
            )
            bar.update(task, completed=progress.step, news=news)

        yield show
