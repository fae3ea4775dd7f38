"""`canal statistics`: what the cohorts are like, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from canal.cli import plan_options as options
from canal.cli.card import print_made
from canal.cli.flags import Flags, with_flags
from canal.cli.images import sites_of
from canal.cli.ledger import ToCharge, ledger_to_charge
from canal.cli.network import Accept, KeepHealthy
from canal.statistics.plan import StatisticsPlan

statistics_app = typer.Typer(no_args_is_help=True)


@statistics_app.callback()
def _group() -> None:
    """Publish how many patients there are and what their images are like, with noise."""


@statistics_app.command()
@with_flags(
    plan=Flags(
        StatisticsPlan,
        ("relation", "allocation", "area", "intensity", "size"),
        panel="plan",
        defaults={"area": "0.001 to 0.3", "intensity": "16 to 240", "size": "64 to 4096"},
    )
)
def release(
    *,
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
    keep_healthy: KeepHealthy = True,
    accept: Accept = None,
    ledger: ToCharge = None,
    epsilon: Annotated[
        float, typer.Option(help="What the release may cost a patient.", rich_help_panel="plan")
    ] = 1,
    delta: options.Delta = 1e-5,
    budget_split: Annotated[
        tuple[float, float, float, float],
        typer.Option(
            help="Budget shares of the count and of histograms of lesion area, intensity and size.",
            rich_help_panel="plan",
        ),
    ] = (0.25, 0.25, 0.25, 0.25),
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
) -> None:
    """Count patients and draw histograms of their images, with noise. It can be stopped."""
    from canal.cli.progress import counting
    from canal.release.charges import payers
    from canal.release.publish import check_protection
    from canal.release.record import About
    from canal.release.workspace import Workspace
    from canal.statistics.patients import load
    from canal.statistics.release import create

    sites = sites_of(data, split, cohort or [])
    wanted = StatisticsPlan(epsilon, delta=delta, sites=len(sites), split=budget_split, **plan)
    wanted.calibrate()
    charged = seed is None and wanted.allocation != "none"
    book = ledger_to_charge(ledger, payers(wanted, list(sites)), delta, charged=charged)
    check_protection(wanted, list(sites), seed=seed, ledger=book, not_private=not_private)
    with counting("reading images", None) as progress:
        people = [
            load(
                *(name, folder),
                split=split,
                keep_healthy=keep_healthy,
                accept=accept or (),
                progress=progress,
            )
            for name, folder in sites.items()
        ]
    made = create(
        *(out, people, wanted),
        ledger=book,
        seed=seed,
        not_private=not_private,
        about=About(purpose, contact),
    )
    print_made(made, out, as_json=as_json, private=Workspace(out).private)
