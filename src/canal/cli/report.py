"""`canal report`: a run as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from canal.cli.flags import with_settings
from canal.cli.network import load_part
from canal.learning.settings import Settings

if TYPE_CHECKING:
    from canal.data.arrays import Arrays
    from canal.report.run import Run


@with_settings("data")
def report(
    *,
    run: Annotated[
        Path, typer.Argument(help="A folder with networks, releases and attacks, at any depth.")
    ],
    out: Annotated[Path | None, typer.Option(help="The page; RUN/report.html.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The data set: show some of its test images.")
    ] = None,
    split: Annotated[Path | None, typer.Option(help="A split; without it, all cases.")] = None,
    part: Annotated[str, typer.Option(help="Part of the split that was measured on.")] = "test",
    as_json: Annotated[bool, typer.Option("--json", help="The same facts for programs.")] = False,
    settings: Settings,
) -> None:
    """Write what a run found as one page: utility, privacy, attacks, how to do it again."""
    from canal.cli.card import print_json
    from canal.errors import InvalidValueError
    from canal.files import replace_file
    from canal.report.render import render
    from canal.report.run import Run

    out = run / "report.html" if out is None else out
    if not out.parent.is_dir() and out.parent != run:
        raise InvalidValueError(f"{out.parent} is no folder to write the report in; make it first")
    found = Run.read(run)
    arrays = None if data is None else _images(found, data, split, part, settings)
    replace_file(out, render(found, arrays).encode())
    if as_json:
        from canal.report.facts import facts

        print_json(facts(found) | {"page": str(out)})
        return
    typer.echo(
        f"{len(found.networks)} networks, {len(found.releases)} releases, "
        f"{len(found.attacks)} attacks\n{out}"
    )


def _images(run: Run, data: Path, split: Path | None, part: str, settings: Settings) -> Arrays:
    from dataclasses import replace

    from canal.errors import InvalidValueError

    students = [network for network in run.having("student") if network.scores]
    if not students:
        raise InvalidValueError(
            f"no student in {run.path} was measured, so there is no image to show; run `canal "
            "student evaluate` first, or leave out --data"
        )
    made = students[0].about
    # The network knows what it was made for.
    known = replace(settings.data, size=made.size[0], channels=made.architecture["in_channels"])
    return load_part(data, split, part, known)
