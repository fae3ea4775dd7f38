"""`canal audit`: is the epsilon of a release refuted, by the code or by the folder?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from canal.cli.card import print_json
from canal.cli.network import load_part
from canal.teachers.settings import DataSettings

if TYPE_CHECKING:
    from canal.attacks.canary import Canary
    from canal.attacks.traces import Check
    from canal.release.ensemble import Ensemble
    from canal.release.queries import Queries
    from canal.release.store import Release

_PANEL = "with the teachers: the noise in the folder itself, and a canary"


def audit(
    release: Annotated[Path, typer.Argument(help="The release folder.")],
    draws: Annotated[int, typer.Option(help="In each of two worlds, for each unit.")] = 100_000,
    unit: Annotated[
        Literal["patient", "image"] | None,
        typer.Option(help="Whose neighbours to try; both if not given.", show_default=False),
    ] = None,
    without: Annotated[
        Path | None,
        typer.Option(
            help="A site's teacher, trained again without one patient: what did that one move?",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    teacher: Annotated[
        list[Path] | None,
        typer.Option(
            help="A teacher of the release; once for each site.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="The folder of the images that were asked.", rich_help_panel=_PANEL),
    ] = None,
    split: Annotated[
        Path | None,
        typer.Option(help="A split; without it, all cases.", rich_help_panel=_PANEL),
    ] = None,
    part: Annotated[
        str, typer.Option(help="Part of the split that was asked about.", rich_help_panel=_PANEL)
    ] = "recipient",
    out: Annotated[Path | None, typer.Option(help="A JSON file, for the report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Tell two worst-case worlds apart, with the code of a release: a lower bound on epsilon."""
    from dataclasses import replace

    from canal.attacks.auditor import Auditor
    from canal.attacks.hostile import AUDITED
    from canal.cli.progress import counting
    from canal.errors import InvalidValueError
    from canal.release.store import Release

    if (queries is None) == bool(teacher):
        raise InvalidValueError(
            "the noise in the folder is seen with --teacher for every site and --queries; give "
            "both or none"
        )
    if without is not None and queries is None:
        raise InvalidValueError(
            "a canary needs --without, --queries, and --teacher for every site; give all three"
        )
    opened = Release.open(release)
    auditor = Auditor(opened, draws=draws, units=AUDITED if unit is None else (unit,))
    with counting("auditing", auditor.work) as progress:
        found = auditor.run(progress)
    if teacher and queries is not None:
        ensemble, asked = _asked(teacher, queries, split, part)
        found = replace(found, checks=(*found.checks, *_folder(opened, ensemble, asked)))
        if without is not None:
            found = replace(found, canary=_canary(opened, ensemble, without, asked))
    if out is not None:
        found.write(out)
    if as_json:
        print_json(found.to_json())
    else:
        for sentence in found.words():
            typer.echo(sentence)
        if out is not None:
            typer.echo(out)
    if not found.holds:
        raise typer.Exit(2)


def _asked(
    teachers: list[Path], queries: Path, split: Path | None, part: str
) -> tuple[Ensemble, Queries]:
    from canal.release.ensemble import load_ensemble
    from canal.release.queries import Queries

    ensemble = load_ensemble(teachers)
    known = DataSettings(size=ensemble.images[1], channels=ensemble.images[0])
    return ensemble, Queries.of(load_part(queries, split, part, known, unlabelled=True))


def _folder(release: Release, ensemble: Ensemble, asked: Queries) -> list[Check]:
    from canal.attacks.residue import Residue
    from canal.attacks.view import passes
    from canal.cli.progress import counting

    with counting("the folder's own noise", passes(release.plan)) as progress:
        return Residue.of(release, ensemble, asked, progress).checks()


def _canary(release: Release, ensemble: Ensemble, without: Path, asked: Queries) -> Canary:
    from canal.attacks.canary import exchange, measure
    from canal.attacks.view import passes
    from canal.cli.progress import counting
    from canal.release.ensemble import load_ensemble

    other = load_ensemble([without])
    with counting("canary", 2 * passes(release.plan)) as progress:
        return measure(release, ensemble, exchange(ensemble, other), asked, progress)
