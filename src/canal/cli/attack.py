"""`canal attack`: what an adversary gets from a release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from canal.cli.network import load_part
from canal.teachers.settings import DataSettings

attack_app = typer.Typer(no_args_is_help=True, help="Attack a release, to see what it gives away.")


@attack_app.command()
def membership(
    release: Annotated[Path, typer.Argument(help="The release folder.")],
    *,
    teacher: Annotated[list[Path], typer.Option(help="A teacher's folder; once for each site.")],
    queries: Annotated[Path, typer.Option(help="The folder of the images it was asked about.")],
    split: Annotated[Path | None, typer.Option(help="A split; without it, all cases.")] = None,
    part: Annotated[str, typer.Option(help="Part of the split that was asked about.")] = (
        "recipient"
    ),
    others: Annotated[
        Path | None,
        typer.Option(help="A folder of such images that it was not asked about; or the test part."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A JSON file, for the report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Is this image among the queries? The best guess of one who holds all teachers."""
    from canal.attacks.finding import Finding, features_mu
    from canal.attacks.matching import match
    from canal.cli.progress import counting
    from canal.errors import InvalidValueError
    from canal.release.ensemble import load_ensemble
    from canal.release.store import Release

    if others is None and split is None:
        raise InvalidValueError("an attack compares with other images; give --others or --split")
    opened = Release.open(release)
    ensemble = load_ensemble(teacher)
    known = DataSettings(size=ensemble.images[1], channels=ensemble.images[0])
    asked = load_part(queries, split, part, known, unlabelled=True)
    compared = (
        load_part(queries, split, "test", known)
        if others is None
        else load_part(others, None, "", known, unlabelled=True)
    )
    images = len(ensemble.teachers) * (len(asked.ids) + len(compared.ids))
    with counting("attacking", images) as progress:
        roc = match(opened, ensemble, asked, compared, progress)
    found = Finding(
        "membership of images",
        opened.manifest.digest,
        roc,
        "image",
        features_mu(opened, "image"),
    )
    if out is not None:
        found.write(out)
    if as_json:
        import json

        typer.echo(json.dumps(found.to_json(), indent=1))
        return
    for sentence in found.words():
        typer.echo(sentence)
    if out is not None:
        typer.echo(out)
