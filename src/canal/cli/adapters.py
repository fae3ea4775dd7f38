"""`canal adapters`: patients teach some parameters of the shared network, in noisy rounds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from canal.cli import plan_options as options
from canal.cli.card import print_made, warn
from canal.cli.flags import Flags, with_flags
from canal.cli.images import Images, sites_of
from canal.cli.ledger import ToCharge, ledger_to_charge
from canal.cli.network import Accept, KeepHealthy
from canal.gradients.patients import CHUNK
from canal.gradients.plan import AdapterPlan
from canal.gradients.start import Measured
from canal.gradients.update import UpdateSettings

adapters_app = typer.Typer(no_args_is_help=True)
# A number of patients that is off by more than this factor is asked about.
_FAR = 3
_PLAN, _STEPS = "plan", "steps, which cost nothing"
_Init = Annotated[Path, typer.Option(help="Folder of the shared initialisation.")]


@adapters_app.command()
@with_flags(
    plan=Flags(
        AdapterPlan,
        ("relation", "rounds", "directions", "allocation"),
        panel=_PLAN,
        defaults={"directions": "chosen from the noise level"},
    ),
    update=Flags(UpdateSettings, panel=_STEPS, defaults={"step": "chosen from the noise level"}),
    measured=Flags(
        Measured,
        ("quantile", "views", "chunk"),
        panel=_STEPS,
        defaults={"quantile": "0.5", "views": "1", "chunk": str(CHUNK)},
    ),
)
def train(
    *,
    init: _Init,
    data: Annotated[
        list[Path],
        typer.Option(help="The folder of the data set; without --split, one for each site."),
    ],
    out: Annotated[Path, typer.Option(help="Where to publish; a stopped run goes on there.")],
    split: Annotated[Path | None, typer.Option(help="A split; its cohorts are the sites.")] = None,
    cohort: Annotated[
        list[str] | None,
        typer.Option(help="A site; every cohort of the split, or the folders' names."),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="The recipient's images, public; its part of the split if not given."),
    ] = None,
    recipient: Annotated[str, typer.Option(help="Part of the split that is public.")] = "recipient",
    keep_healthy: KeepHealthy = True,
    accept: Accept = None,
    ledger: ToCharge = None,
    epsilon: Annotated[
        float, typer.Option(help="What the release may cost a patient.", rich_help_panel=_PLAN)
    ] = 8,
    delta: options.Delta = 1e-5,
    patients: Annotated[
        int | None,
        typer.Option(
            help="Needed: N at all sites, as stated in public; with --count-patients the most.",
            rich_help_panel=_PLAN,
        ),
    ] = None,
    count_patients: Annotated[
        float | None,
        typer.Option(
            help="Share of the budget that counts them with noise, say 0.01.",
            rich_help_panel=_PLAN,
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="What is taught: norms, head, or a pattern of names; all weights if not given.",
            rich_help_panel=_PLAN,
        ),
    ] = None,
    rank: Annotated[
        int,
        typer.Option(
            help="Of a product of two thin convolutions beside each, with norms, head; 0: none.",
            rich_help_panel=_PLAN,
        ),
    ] = 0,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="The number of patients is meant, however many are here."),
    ] = False,
    purpose: options.Purpose = "",
    contact: options.Contact = "",
    seed: Annotated[
        int | None, typer.Option(help="Research run: noise from a seed. Protects nobody.")
    ] = None,
    not_private: Annotated[
        bool, typer.Option("--not-private", help="Yes, release without any noise.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    plan: dict[str, Any],
    update: dict[str, Any],
    measured: dict[str, Any],
) -> None:
    """Make a release of adapters: clip every patient, add noise once a round. It can be stopped."""
    from canal.cli.progress import measuring
    from canal.cli.progress import rounds as watching
    from canal.data.overlap import compare, contents, digests, lookalikes
    from canal.errors import InvalidValueError
    from canal.gradients.patients import Patients
    from canal.gradients.release import train as make
    from canal.gradients.start import count_parameters, share
    from canal.gradients.target_modules import HEAD, NORMS, Adapter
    from canal.gradients.update import Advice
    from canal.learning.teacher import trained_on
    from canal.release.charges import charges
    from canal.release.publish import check_protection
    from canal.release.record import About
    from canal.release.workspace import Workspace

    if patients is None:
        raise InvalidValueError(
            "--patients is missing: how many there are is never read from the cohorts in silence; "
            "state a number that anybody may know, or have them counted with --count-patients 0.01 "
            "and let --patients be the most that are expected"
        )
    sites = sites_of(data, split, cohort or [])
    few = (NORMS, HEAD) if rank else Adapter.parts
    adapter = Adapter(tuple(part) if part else few, rank)
    # All of it is fixed before anybody's patients are read.
    asked_for = AdapterPlan(
        epsilon,
        patients,
        count_parameters(init, adapter),
        delta=delta,
        sites=len(sites),
        count=count_patients or 0.0,
        adapter=adapter,
        **{name: value for name, value in plan.items() if name != "directions"},
    )
    wanted = replace(asked_for, directions=plan.get("directions", Advice().directions(asked_for)))
    charged = seed is None and wanted.allocation != "none"
    paying = [(name, wanted.unit) for name in sites]
    book = ledger_to_charge(ledger, paying, delta, charged=charged)
    check_protection(wanted, list(sites), seed=seed, ledger=book, not_private=not_private)
    steps = UpdateSettings(**update)
    views, chunk = measured.get("views", 1), measured.get("chunk", CHUNK)
    images = Images(init, keep_healthy=keep_healthy, accept=accept or ())
    asked = images.public(data, split, queries, recipient)
    people = [
        Patients(name, images.load(folder, split, name), views=views, chunk=chunk)
        for name, folder in sites.items()
    ]
    # Again when it is charged; but measuring takes a while, and would be for nothing.
    compare(
        {each.cohort: frozenset(digests(each.arrays)) for each in people},
        frozenset(digests(asked)),
        contents(trained_on(init)),
    )
    for words in lookalikes({each.cohort: each.arrays for each in people} | {"the queries": asked}):
        typer.echo(f"{words}. This line is for you alone.", err=True)
    workspace = Workspace(out)
    if not (yes or workspace.is_begun):
        _ask_if_far(patients, sum(map(len, people)), at_most=bool(count_patients))
    if book is not None and charged and not workspace.is_begun:
        book.check(
            charges(wanted.calibrate(), list(sites)),
            people={each.cohort: each.people for each in people},
            public=digests(asked),
        )
    with measuring("measuring on public images") as progress:
        shared = share(
            *(init, asked, adapter, wanted.allocation),
            update=steps,
            directions=wanted.directions,
            quantile=measured.get("quantile", 0.5),
            views=views,
            chunk=chunk,
            kept=workspace,
            progress=progress,
        )
    with watching("teaching", wanted.rounds) as report:
        made = make(
            *(out, people, shared, wanted),
            ledger=book,
            seed=seed,
            not_private=not_private,
            about=About(purpose, contact),
            report=report,
        )
    print_made(made, out, as_json=as_json, private=workspace.private)


@adapters_app.command()
def apply(
    *,
    release: Annotated[Path, typer.Option(help="Folder of a release of adapters.")],
    init: _Init,
    out: Annotated[Path, typer.Option(help="Folder for the network.")],
) -> None:
    """Write the shared network as the release teaches it, without any training of one's own."""
    from canal.gradients.store import AdapterRelease, save_taught

    opened = AdapterRelease.open(release)
    save_taught(out, init, opened)
    warn(opened)
    typer.echo(f"{out}: the initialisation, taught in {len(opened)} rounds")


def _ask_if_far(stated: int, here: int, *, at_most: bool) -> None:
    """Ask whoever sits here whether a number of patients is meant; nothing of it is written down.

    Args:
        stated: N, public.
        here: how many there are; private.
        at_most: N is the most that are expected.
    """
    from canal.errors import InvalidValueError

    if here <= _FAR * stated and (at_most or stated <= _FAR * here):
        return
    instead = (
        "a number that anybody may know (not the one that is here: it would tell whether one more "
        "was there), or have them counted with --count-patients"
    )
    if not _is_attended():
        raise InvalidValueError(
            f"--patients {stated} is far from how many are here, so steps would be of another "
            f"length; say --yes if it is meant, or give {instead}"
        )
    typer.echo(
        f"--patients {stated}, and {here} are here; steps would be of another length. This line is "
        "for you alone.",
        err=True,
    )
    if not typer.confirm(f"Go on with {stated}?", err=True):
        raise InvalidValueError(f"nothing was charged; give {instead}")


def _is_attended() -> bool:
    """Whether somebody sits at a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()
