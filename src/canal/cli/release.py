"""`canal release`: make a release, check it, read what it promises."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from canal.cli import plan_options as options
from canal.cli.card import print_card, print_json, print_made, summary
from canal.cli.flags import with_flags
from canal.cli.ledger import LEDGER, ToCharge, ledger_to_charge
from canal.cli.network import Accept, KeepHealthy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from canal.release.recompute import PublicInputs
    from canal.release.verification import Verdict

release_app = typer.Typer(no_args_is_help=True)
_Folder = Annotated[Path, typer.Argument(help="The release folder.")]
_Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@release_app.command()
@with_flags(
    wanted=options.feature_plan("allocation", "weight", "broken", broken="--broken-teacher")
)
def create(
    *,
    teacher: Annotated[list[Path], typer.Option(help="A teacher's folder; once for each site.")],
    queries: Annotated[Path, typer.Option(help="The folder of the recipient's images.")],
    out: Annotated[Path, typer.Option(help="Where to publish; a stopped run goes on there.")],
    split: Annotated[Path | None, typer.Option(help="A split; without it, all cases.")] = None,
    part: Annotated[str, typer.Option(help="Part of the split to ask about.")] = "recipient",
    init: Annotated[
        Path | None, typer.Option(help="The shared initialisation, for public statistics.")
    ] = None,
    ledger: ToCharge = None,
    epsilon: options.Epsilon = 8,
    delta: options.Delta = 1e-5,
    preset: options.Preset = "honest",
    budget_split: options.Shares = options.SHARES,
    images_per_person: Annotated[
        int | None,
        typer.Option(
            help="Most query images of one person; counted by their records if not given.",
            rich_help_panel="plan",
        ),
    ] = None,
    accept: Accept = None,
    purpose: options.Purpose = "",
    contact: options.Contact = "",
    seed: Annotated[
        int | None, typer.Option(help="Research run: noise from a seed. Protects nobody.")
    ] = None,
    not_private: Annotated[
        bool, typer.Option("--not-private", help="Yes, release without any noise.")
    ] = False,
    as_json: _Json = False,
    wanted: dict[str, Any],
) -> None:
    """Make a release: clip, average, add noise once, publish. Stopped, it goes on."""
    from canal.cli.network import load_part, refuse_cohorts
    from canal.cli.progress import counting
    from canal.features.ensemble import load_ensemble
    from canal.features.queries import Queries
    from canal.features.release import Options, create, passes
    from canal.learning.settings import DataSettings
    from canal.privacy.budget import BudgetSplit
    from canal.release.charges import payers
    from canal.release.record import About
    from canal.release.workspace import Workspace

    ensemble = load_ensemble(teacher, init)
    if split is not None:
        refuse_cohorts(split, part)
    channels, side = ensemble.images[:2]
    known = DataSettings(side, channels, accept=tuple(accept or ()))
    asked = Queries.of(load_part(queries, split, part, known, unlabelled=True))
    plan = ensemble.plan(
        asked,
        preset,
        images_per_person=images_per_person,
        epsilon=epsilon,
        delta=delta,
        split=BudgetSplit(*budget_split),
        **wanted,
    )
    broken: list[tuple[str, str]] = []
    charged = seed is None and plan.allocation != "none"
    paying = payers(plan, ensemble.cohorts)
    book = ledger_to_charge(ledger, paying, plan.delta, charged=charged)
    with counting("releasing", passes(plan)) as progress:
        made = create(
            out,
            ensemble,
            asked,
            plan,
            ledger=book,
            seed=seed,
            not_private=not_private,
            about=About(purpose, contact),
            options=Options(lambda *which: broken.append(which), _say_alike, progress),
        )
    if broken:
        typer.echo(
            f"{len(broken)} times a teacher returned NaN and counted as zero, first that of "
            f"{broken[0][0]} for {broken[0][1]}. This line is for you alone.",
            err=True,
        )
    print_made(made, out, as_json=as_json, private=Workspace(out).private)


def _say_alike(one: str, other: str) -> None:
    typer.echo(
        f"{one} and {other} have the same weights. If a teacher was given twice, its patients "
        "count twice: stop, and do not publish. This line is for you alone.",
        err=True,
    )


@release_app.command()
def verify(
    folder: _Folder,
    ledger: Annotated[
        Path | None,
        typer.Option(help=f"That was charged; {LEDGER} in this folder.", envvar="CANAL_LEDGER"),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(help="The shared initialisation: what is public is computed again from it."),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="The recipient's images, for the same; with --init.")
    ] = None,
    split: Annotated[Path | None, typer.Option(help="A split; without it, all cases.")] = None,
    part: Annotated[str, typer.Option(help="Part of the split that is public.")] = "recipient",
    keep_healthy: KeepHealthy = True,
    accept: Accept = None,
    allow_not_private: Annotated[
        bool,
        typer.Option(
            "--allow-not-private", help="Exit with 0 for a release that protects nobody, too."
        ),
    ] = False,
    as_json: _Json = False,
) -> None:
    """Check a release without trusting its makers; a patient's epsilon comes first.

    Digests, every number of the statement, the noise, the charge in the ledger; with --init and
    --queries also what is public and has no noise. Exit code 2 where a check fails, or where nobody
    is protected.
    """
    from canal.privacy.ledger import Ledger
    from canal.release.verification import verdict

    here = Path(LEDGER)
    where = ledger or (here if here.is_file() else None)
    book = None if where is None else Ledger(where, must_exist=True)
    with _public_inputs(
        init, queries, split, part, keep_healthy=keep_healthy, accept=accept or ()
    ) as public:
        found = verdict(folder, book, public)
    if as_json:
        print_json(found.to_json())
    else:
        _print_verdict(found)
    if found.failed:
        raise typer.Exit(2)
    if not (found.private or allow_not_private):
        if not as_json:
            typer.echo(
                f"{folder} protects nobody, so this is exit code 2; --allow-not-private accepts it",
                err=True,
            )
        raise typer.Exit(2)


@contextmanager
def _public_inputs(
    init: Path | None,
    queries: Path | None,
    split: Path | None,
    part: str,
    *,
    keep_healthy: bool,
    accept: Collection[str],
) -> Iterator[PublicInputs | None]:
    """What a reader holds, with progress while it is used; None if nothing was given."""
    from canal.cli.images import Images
    from canal.cli.progress import counting
    from canal.errors import InvalidValueError
    from canal.release.recompute import PublicInputs

    if init is None or queries is None:
        if any(given is not None for given in (init, queries, split)):
            missing = "--init" if init is None else "--queries"
            raise InvalidValueError(
                f"{missing} is missing: public inputs are computed again from the shared "
                "initialisation (--init) and the recipient's images (--queries, --split); give both"
            )
        yield None
        return
    arrays = Images(init, keep_healthy=keep_healthy, accept=accept).load(
        queries, split, part, unlabelled=True
    )
    with counting("computing public inputs again", None) as progress:
        yield PublicInputs(init, arrays, progress)


_MARKS = {
    True: ("holds", typer.colors.GREEN),
    None: ("-", typer.colors.YELLOW),
    False: ("FAILS", typer.colors.RED),
}


def _print_verdict(found: Verdict) -> None:
    """The headline, then a line for every check; on a terminal, long ones are folded."""
    import shutil
    import sys
    import textwrap

    first, *more = found.lines()
    good = found.private and not found.failed
    colour = typer.colors.GREEN if good and (found.patient or {})["protects"] else typer.colors.RED
    typer.secho(first, fg=colour, bold=True)
    for line in [*more, ""]:
        typer.echo(line)
    width = max(len(check.what) for check in found.checks)
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for check in found.checks:
        mark, colour = _MARKS[check.passed]
        typer.secho(f"{mark:<6}", fg=colour, nl=False)
        line = f"{check.what:<{width}}  {check.detail}"
        if wide > width + 40:
            hanging = " " * (6 + width + 2)
            folded = textwrap.fill(f"      {line}", wide, subsequent_indent=hanging)
            line = folded[6:]
        typer.echo(line)


@release_app.command()
def show(folder: _Folder, as_json: _Json = False) -> None:
    """Show the card of a release."""
    from canal.release.store import open_release
    from canal.release.verification import check_statement

    release = open_release(folder)
    check_statement(release.manifest)
    if as_json:
        print_json(summary(release) | {"statement": release.statement})
    else:
        print_card(release)
