"""`canal audit`: is the epsilon of a release refuted, by the code or by the folder?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from canal.cli.card import print_json
from canal.cli.individual import show
from canal.cli.network import KeepHealthy, load_part
from canal.data.case import ACCEPTABLE
from canal.errors import InvalidValueError
from canal.learning.settings import DataSettings

if TYPE_CHECKING:
    from canal.attacks.audit import Audit, Auditor
    from canal.attacks.individual import CohortLosses, IndividualLoss
    from canal.attacks.traces import Check
    from canal.features.ensemble import Ensemble
    from canal.features.queries import Queries
    from canal.features.store import Release
    from canal.gradients.store import AdapterRelease
    from canal.release.store import Folder

_FEATURES = "features, with the teachers: the noise in the folder itself, and a canary"
_ADAPTERS = "adapters, at a hospital: what its own patients paid"


@dataclass(frozen=True)
class _Given:
    """What was given beside the release; each kind takes some of it."""

    teacher: list[Path] | None
    queries: Path | None
    without: Path | None
    init: Path | None
    data: Path | None
    most: int | None
    chunk: int | None
    split: Path | None
    part: str | None
    keep_healthy: bool

    def refuse(self, names: Sequence[str], kind: str, instead: str) -> None:
        """Say which of these a kind of release has no use for, and what it has."""
        given = [f"--{name}" for name in names if getattr(self, name) not in (None, [])]
        if given:
            raise InvalidValueError(
                f"{', '.join(given)}: this is a release of {kind}, which has no use for that; "
                f"{instead}"
            )


def audit(
    release: Annotated[Path, typer.Argument(help="The release folder, of features or adapters.")],
    draws: Annotated[int, typer.Option(help="In each of two worlds, for each unit.")] = 100_000,
    unit: Annotated[
        Literal["membership", "patient", "image"] | None,
        typer.Option(
            help="Whose neighbours to try; all that the kind of release has if not given: "
            "patient and image of features, membership and patient of adapters.",
            show_default=False,
        ),
    ] = None,
    without: Annotated[
        Path | None,
        typer.Option(
            help="A site's teacher, trained again without one patient: what did that one move?",
            rich_help_panel=_FEATURES,
        ),
    ] = None,
    teacher: Annotated[
        list[Path] | None,
        typer.Option(
            help="A teacher of the release; once for each site.",
            rich_help_panel=_FEATURES,
            show_default=False,
        ),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="The folder of the images that were asked.", rich_help_panel=_FEATURES),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the initialisation that the rounds started from.",
            rich_help_panel=_ADAPTERS,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The folder of the hospital's images.", rich_help_panel=_ADAPTERS),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            help="Look at this many of its patients, the first; at all if not given.",
            rich_help_panel=_ADAPTERS,
        ),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(help="Images a pass, as in the release.", rich_help_panel=_ADAPTERS),
    ] = None,
    split: Annotated[
        Path | None, typer.Option(help="A split of the folder; without it, all cases.")
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            help="Part of the split: the one that was asked about, `recipient` if not given; or "
            "the hospital's cohort.",
            show_default=False,
        ),
    ] = None,
    keep_healthy: KeepHealthy = True,
    simulate: Annotated[
        bool,
        typer.Option(
            help="Make releases of invented sites too, in one process and across sites, and see "
            "that they hold what they should."
        ),
    ] = True,
    out: Annotated[
        Path | None, typer.Option(help="A JSON file for the report; no figure of a patient.")
    ] = None,
    private: Annotated[
        Path | None,
        typer.Option(
            help="A JSON file for the hospital alone, outside of the run: what each of its "
            "patients lost, and other figures without noise.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Tell two worst-case worlds apart, with the code of a release: a lower bound on epsilon.

    What is computed with the data of patients has no noise. It is shown at a terminal, and kept
    with --private; a pipe, --out and --json never get it.
    """
    from canal.attacks import individual
    from canal.attacks.audit import Auditor
    from canal.federation.audit import usual
    from canal.release.store import open_release

    given = _Given(teacher, queries, without, init, data, most, chunk, split, part, keep_healthy)
    opened = open_release(release)
    if private is not None:
        if not (queries or data):
            raise InvalidValueError(
                f"--private {private} would be empty: nothing was asked that needs a site's data; "
                "leave it out, or give --init and --data, or --teacher and --queries"
            )
        individual.check_place(private, release, out)
    chosen = () if unit is None else (unit,)
    simulations = usual(opened) if simulate else ()
    auditor = Auditor(opened, draws=draws, units=chosen, simulations=simulations)
    found = _WITH_DATA.get(opened.kind, _of_others)(opened, given, auditor)
    if out is not None:
        found.write(out)
    kept = found.individual()
    if kept is not None and private is not None:
        individual.write(private, kept)
    if as_json:
        print_json(found.to_json())
    else:
        for sentence in found.words():
            typer.echo(sentence)
        if kept is not None:
            show(kept["words"], private)
        for file in (out, private):
            if file is not None:
                typer.echo(file)
    if not found.holds:
        raise typer.Exit(2)


def _play(auditor: Auditor) -> Audit:
    from canal.cli.progress import counting

    with counting("auditing", auditor.work) as progress:
        return auditor.run(progress)


def _of_features(release: Release, given: _Given, auditor: Auditor) -> Audit:
    given.refuse(
        ("init", "data", "most", "chunk"),
        "features",
        "its noise is seen with --teacher for every site and --queries",
    )
    if (given.queries is None) == bool(given.teacher):
        raise InvalidValueError(
            "the noise in the folder is seen with --teacher for every site and --queries; give "
            "both or none"
        )
    if given.without is not None and given.queries is None:
        raise InvalidValueError(
            "a canary needs --without, --queries, and --teacher for every site; give all three"
        )
    found = _play(auditor)
    if given.teacher and given.queries is not None:
        ensemble, asked = _asked(given.teacher, given.queries, given.split, given.part)
        found = replace(found, residue=tuple(_folder(release, ensemble, asked)))
        if given.without is not None:
            found = replace(found, canary=_canary(release, ensemble, given.without, asked))
    return found


def _of_adapters(release: AdapterRelease, given: _Given, auditor: Auditor) -> Audit:
    given.refuse(
        ("teacher", "queries", "without"),
        "adapters",
        "what a hospital's own patients paid is seen with --init and --data",
    )
    together = (given.init, given.data)
    alone = {given.most, given.chunk, given.split, given.part}
    if together.count(None) == 1 or (None in together and alone != {None}):
        raise InvalidValueError(
            "what a hospital's own patients paid is seen with --init and --data; give both or none"
        )
    cohorts = release.manifest.participants["cohorts"]
    if given.split is not None and given.part not in cohorts:
        raise InvalidValueError(
            f"--part {given.part or 'is missing'}: name the hospital's cohort, one of "
            f"{', '.join(cohorts)}"
        )
    if given.part is not None and given.split is None:
        raise InvalidValueError("--part is of a split; give --split, or a folder of its own")
    # First what can be refused at once.
    paid = None
    if given.init is not None and given.data is not None:
        paid = _paid(release, given.init, given.data, given)
    return replace(_play(auditor), canary=paid)


def _of_others(release: Folder, given: _Given, auditor: Auditor) -> Audit:
    everything = ("teacher", "queries", "without", "init", "data", "most", "chunk")
    given.refuse(everything, release.kind, "its statement is audited without any data")
    return _play(auditor)


# What those who hold private data may look at.
_WITH_DATA: dict[str, Callable[..., Audit]] = {"features": _of_features, "adapters": _of_adapters}


def _paid(release: AdapterRelease, init: Path, data: Path, given: _Given) -> CohortLosses:
    from canal.attacks.individual import first_patients, losses_of_patients
    from canal.cli.images import Images
    from canal.cli.progress import counting
    from canal.gradients.patients import CHUNK
    from canal.learning.teacher import load_initialisation

    name = given.part or data.resolve().name
    # Whoever made the release decided what to accept.
    images = Images(init, keep_healthy=given.keep_healthy, accept=ACCEPTABLE)
    arrays = images.load(data, given.split, name)
    chunk = CHUNK if given.chunk is None else given.chunk
    people, among = first_patients(release, name, arrays, given.most, chunk)
    with counting("what patients paid", people.passes * len(release)) as progress:
        network, _ = load_initialisation(init)
        return losses_of_patients(release, network, people, among, progress)


def _asked(
    teachers: list[Path], queries: Path, split: Path | None, part: str | None
) -> tuple[Ensemble, Queries]:
    from canal.features.ensemble import load_ensemble
    from canal.features.queries import Queries

    ensemble = load_ensemble(teachers)
    channels, side = ensemble.images[:2]
    known = DataSettings(side, channels, accept=tuple(ACCEPTABLE))
    asked = load_part(queries, split, part or "recipient", known, unlabelled=True)
    return ensemble, Queries.of(asked)


def _folder(release: Release, ensemble: Ensemble, asked: Queries) -> list[Check]:
    from canal.attacks.residue import Residue
    from canal.attacks.view import passes
    from canal.cli.progress import counting

    with counting("the folder's own noise", passes(release.plan)) as progress:
        return Residue.of(release, ensemble, asked, progress).checks()


def _canary(release: Release, ensemble: Ensemble, without: Path, asked: Queries) -> IndividualLoss:
    from canal.attacks.individual import exchange, loss_of_patient
    from canal.attacks.view import passes
    from canal.cli.progress import counting
    from canal.features.ensemble import load_ensemble

    other = load_ensemble([without])
    with counting("canary", 2 * passes(release.plan)) as progress:
        return loss_of_patient(release, ensemble, exchange(ensemble, other), asked, progress)
