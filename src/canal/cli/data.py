"""`canal data`: look at a data set, split it, or make a synthetic one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from canal.cli.network import Accept

if TYPE_CHECKING:
    from canal.data.check import Check

data_app = typer.Typer(no_args_is_help=True)
_Path = Annotated[Path, typer.Argument(help="The folder as it was downloaded, or a datalist.")]
_KeepHealthy = Annotated[bool, typer.Option(help="Keep cases that are known to show no lesion.")]
_Json = Annotated[bool, typer.Option("--json", help="For programs.")]
_SHOWN = 10


@data_app.command()
def check(path: _Path, keep_healthy: _KeepHealthy = True, as_json: _Json = False) -> None:
    """Say what a folder holds and what is to be fixed; exit code 1 if anything is."""
    from canal.cli.progress import counting
    from canal.data.check import check as look
    from canal.data.readers import read

    data = read(path, keep_healthy=keep_healthy)
    with counting("reading", len(data.cases)) as progress:
        found = look(data, progress=progress)
    if as_json:
        import json

        typer.echo(json.dumps(found.to_json(), indent=1))
    else:
        _print_check(found)
    if found.problems:
        raise typer.Exit(1)


@data_app.command()
def split(
    path: _Path,
    out: Annotated[Path, typer.Option(help="The JSON file to write.")],
    cohorts: Annotated[int, typer.Option(help="K, sites that teach.")] = 3,
    test: Annotated[float, typer.Option(help="Share that is only measured on.")] = 0.2,
    recipient: Annotated[int, typer.Option(help="Images of the recipient, at least.")] = 60,
    partition: Annotated[
        Literal["equal", "site", "dirichlet"],
        typer.Option(help="Equal cohorts, one for each folder, or skewed by lesion size."),
    ] = "equal",
    alpha: Annotated[float, typer.Option(help="Of dirichlet; small is very skewed.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the split.")] = 0,
    keep_healthy: _KeepHealthy = True,
    accept: Accept = None,
    as_json: _Json = False,
) -> None:
    """Divide cases into test, recipient and cohorts; groups and near-duplicates stay together."""
    from canal.cli.progress import counting
    from canal.data.decode import decode_mask
    from canal.data.duplicates import near_duplicates
    from canal.data.readers import read
    from canal.data.split import as_table, make_split

    data = read(path, keep_healthy=keep_healthy)
    data.check(accept or ())
    with counting("comparing images", len(data.cases)) as progress:
        duplicates = near_duplicates(data.cases, progress=progress)
    areas = None
    if partition == "dirichlet":
        areas = {case.id: float(decode_mask(case, size=None).mean()) for case in data.cases}
    made = make_split(
        data.cases,
        cohorts=cohorts,
        test=test,
        recipient=recipient,
        partition=partition,
        alpha=alpha,
        areas=areas,
        duplicates=duplicates,
        seed=seed,
    )
    made.write(out)
    rows = as_table(made)
    if as_json:
        import json

        typer.echo(json.dumps({"digest": made.digest, "parts": rows}, indent=1))
    else:
        width = max(len(str(row["part"])) for row in rows)
        for row in rows:
            typer.echo(f"{row['part']:<{width}}  {row['cases']:>6} cases")
        typer.echo(f"written to {out}, digest {made.digest[:12]}")


@data_app.command()
def synthetic(
    out: Annotated[Path, typer.Argument(help="The folder to make.")],
    count: Annotated[int, typer.Option(help="Images in all.")] = 300,
    size: Annotated[int, typer.Option(help="Pixels a side.")] = 64,
    dims: Annotated[int, typer.Option(min=2, max=3, help="2 for images, 3 for volumes.")] = 2,
    channels: Annotated[int, typer.Option(help="3 for colour, 1 for grey.")] = 3,
    seed: Annotated[int, typer.Option(help="The same seed makes the same images.")] = 0,
) -> None:
    """Make images of three invented hospitals, to try everything on."""
    from canal.data.synthetic import write

    write(out, count, size=(size,) * dims, channels=channels, seed=seed)
    typer.echo(f"{count} images in {out}")


def _print_check(found: Check) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()

    def few(entries: list[str]) -> Text:
        more = f" … ({len(entries)} in all)" if len(entries) > _SHOWN else ""
        return Text(", ".join(entries[:_SHOWN]) + more)

    table.add_row("recognised as", found.layout)
    grouped = f" in {found.groups} patients or sequences" if found.groups < found.cases else ""
    table.add_row("cases", f"{found.cases}{grouped}")
    if found.sites:
        table.add_row("sites", few([f"{name} ({n})" for name, n in found.sites.items()]))
    table.add_row("sizes", few([f"{size} ({n})" for size, n in found.sizes.items()]))
    table.add_row("colour", few([f"{kind} ({n})" for kind, n in found.channels.items()]))
    table.add_row("empty masks", few(list(found.empty_masks)) if found.empty_masks else "none")
    twins = [" = ".join(group) for group in found.near_duplicates]
    table.add_row("near-duplicates", few(twins) if twins else "none")
    table.add_row("to fix", str(len(found.problems)) if found.problems else "nothing")
    console.print(table)
    for problem in found.problems:
        way = f" (--accept {problem.name})" if problem.name else ""
        console.print(Text(f"- {problem.file} {problem.what}: {problem.remedy}{way}"))
