"""`canal plan`: what a release will cost and carry, before any data is touched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from canal.cli import plan_options as options
from canal.cli.flags import with_flags

if TYPE_CHECKING:
    from canal.features.forecast import Forecast


@with_flags(wanted=options.feature_plan())
def plan(
    epsilon: options.Epsilon = 8,
    delta: options.Delta = 1e-5,
    teachers: Annotated[int, typer.Option(help="K: sites, one teacher each.")] = 3,
    queries: Annotated[int, typer.Option(help="N: images that the recipient asks about.")] = 1000,
    images_per_person: Annotated[
        int, typer.Option(help="Most query images that show one person.")
    ] = 1,
    channels: Annotated[int, typer.Option(help="C: channels of the bottleneck.")] = 512,
    height: Annotated[int, typer.Option(help="Height of the bottleneck.")] = 16,
    width: Annotated[int, typer.Option(help="Width of the bottleneck.")] = 16,
    preset: options.Preset = "honest",
    budget_split: options.Shares = options.SHARES,
    importance: Annotated[
        Path | None,
        typer.Option(help="Public scores, one a channel (.json, .npy, text); flat if not given."),
    ] = None,
    iterations: Annotated[int, typer.Option(help="Steps of a per-iteration release.")] = 10_000,
    batch_size: Annotated[int, typer.Option(help="Its batch size.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    *,
    wanted: dict[str, Any],
) -> None:
    """Say what a release will cost and carry, before any data is touched."""
    from canal.features.forecast import forecast, read_importance
    from canal.features.plan import Plan
    from canal.privacy.budget import BudgetSplit
    from canal.privacy.units import Participants

    made = Plan.preset(
        preset,
        epsilon=epsilon,
        delta=delta,
        participants=Participants(teachers, queries, images_per_person),
        channels=channels,
        grid=(height, width),
        split=BudgetSplit(*budget_split),
        **wanted,
    )
    scores = None if importance is None else read_importance(importance)
    seen = forecast(made, scores, iterations=iterations, batch_size=batch_size)
    if as_json:
        import json

        typer.echo(json.dumps(seen.to_json(), indent=2, allow_nan=False))
    else:
        _print(seen)


def _print(seen: Forecast) -> None:
    import numpy as np
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from canal.features.forecast import decibels

    plan, console = seen.plan, Console(highlight=False)
    rho, guarantee = plan.rho(), seen.guarantee()

    def table(title: str, *columns: str) -> Table:
        made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for number, name in enumerate(columns):
            made.add_column(name, justify="right" if number else "left", no_wrap=number == 0)
        return made

    people, grid = plan.participants, " x ".join(map(str, plan.grid))
    console.print(
        f"\n[bold]{plan.released} of {plan.channels} channels, {grid}[/], "
        f"K = {people.teachers} teachers, N = {people.queries} queries, "
        f"epsilon {plan.epsilon:g} at delta {plan.delta:g} for a unit of [bold]{plan.unit}[/], "
        f"{plan.conversion} conversion\n"
    )

    budget = table("Budget", "part", "share", "rho", "noise std", "source")
    shares = plan.paid_split
    for part, source in plan.sources.items():
        std = f"{float(seen.canal.sigma(part)[0]):.4g}" if source == "private" else "-"
        budget.add_row(part, f"{getattr(shares, part):.0%}", f"{rho[part]:.4g}", std, source)
    budget.add_row("features", f"{shares.release:.0%}", f"{rho['release']:.4g}", "below", "private")
    console.print(budget)

    def span(values: np.ndarray, form: str) -> str:
        # Not np.median: it loads numpy.ma, and a plan should be there at once.
        finite = np.sort(values[np.isfinite(values)])
        shown = [f"{finite[place]:{form}}" for place in (0, finite.size // 2, -1)]
        return shown[0] if len(set(shown)) == 1 else " / ".join(shown)

    noise = table(
        "Noise on the features, and what is left of them (least / median / most)",
        *("allocation", "noise std", "signal to noise, dB"),
    )
    for name, made in (("uniform", seen.uniform), ("water-filling", seen.canal)):
        signal = span(decibels(made.snr()), ".1f")
        noise.add_row(name, span(made.sigma("features"), ".4g"), signal)
    console.print(noise)

    promise = table("Guarantee", "unit", "epsilon", "rho", "what one unit is")
    promise.columns[-1].justify = "left"
    for name, entry in guarantee.items():
        style = "bold" if name == plan.unit else ""
        cost = [
            "none" if entry[kind] is None else f"{entry[kind]:.4g}" for kind in ("epsilon", "rho")
        ]
        promise.add_row(name, *cost, entry["neighbours"], style=style)
    console.print(promise)

    each = table(
        "Released at every iteration instead of once",
        *("times", "epsilon, same noise", "noise x, same epsilon", "signal lost, dB"),
    )
    for price in sorted(set(seen.penalties), key=lambda price: price.releases):
        each.add_row(
            f"{price.releases}",
            f"{price.epsilon_per_iteration:.4g}",
            f"{price.sigma_factor:.3g}",
            f"{price.snr_loss_db:.1f}",
            style="bold" if price == seen.penalties[0] else "",
        )
    console.print(each)
    for sentence in seen.words():
        console.print(f"- {sentence}")
    console.print()
