"""`canal ledger`: who may spend what, what was spent, and whether anyone edited it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from canal.privacy.gaussian import Conversion
from canal.privacy.units import Unit

if TYPE_CHECKING:
    from canal.privacy.chain import Row
    from canal.privacy.ledger import Ledger, Unprotected

ledger_app = typer.Typer(no_args_is_help=True)
LEDGER = "ledger.sqlite"
ToCharge = Annotated[
    Path | None,
    typer.Option(
        help=f"To charge; {LEDGER} in this folder, or CANAL_LEDGER.", envvar="CANAL_LEDGER"
    ),
]
_Path = Annotated[Path, typer.Argument(help="The ledger, an SQLite file.")]
# Of a line that nobody reads on a terminal: nothing is cut off.
_WIDE = 240
# Of a budget, what is left of one that was spent as far as numbers go.
_NOTHING = 1e-9
_Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@ledger_app.command()
def show(path: _Path, as_json: _Json = False) -> None:
    """Show every budget, what was spent of it, and every charge."""
    from dataclasses import asdict

    from canal.privacy.ledger import Ledger, balances, head_of

    rows = Ledger(path, must_exist=True).verify()
    head = head_of(rows)
    if as_json:
        import json

        seen = {
            "head": head,
            "balances": [asdict(balance) for balance in balances(rows)],
            "rows": [asdict(row) for row in rows],
        }
        typer.echo(json.dumps(seen, indent=2))
        return

    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    budgets = Table(title="Budgets", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in ("cohort", "unit"):
        budgets.add_column(name)
    for name in ("epsilon", "of", "delta", "rho left", "not finished"):
        budgets.add_column(name, justify="right")
    for balance in balances(rows):
        budgets.add_row(
            Text(balance.cohort),
            balance.unit,
            f"{balance.epsilon_spent:.4g}",
            f"{balance.epsilon_budget:.4g}",
            f"{balance.delta:g}",
            f"{balance.remaining if balance.remaining > _NOTHING * balance.budget else 0:.4g}",
            f"{balance.uncommitted:.4g}",
        )
    console.print(budgets)
    history = Table(title="Rows", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in ("row", "at (UTC)", "action", "cohort", "unit", "rho", "release", "note"):
        history.add_column(name, justify="right" if name in ("row", "rho") else "left")
    for row in rows:
        history.add_row(
            f"{row.seq}",
            row.at.removesuffix("+00:00"),
            row.action,
            Text(row.cohort),
            row.unit,
            f"{row.rho:.4g}",
            Text(row.key[:12]),
            Text(_said(row)),
        )
    console.print(history)
    console.print(f"head {head}\n")


@ledger_app.command()
def verify(
    path: _Path,
    head: Annotated[
        list[str] | None,
        typer.Option(help="A head noted elsewhere, or on a card; it must be there. Or several."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Check that no row was edited, added, moved or taken from the middle; exit code 2 if so."""
    from canal.privacy.ledger import Ledger, head_of

    ledger = Ledger(path, must_exist=True)
    rows = ledger.verify(head=head or ())
    ledger.check(())  # whose patients the cohorts are
    found, count = head_of(rows), len(rows)
    if as_json:
        import json

        typer.echo(json.dumps({"ok": True, "rows": count, "head": found}))
    else:
        typer.echo(f"{count} rows, the chain holds; head {found}")


@ledger_app.command()
def head(path: _Path, as_json: _Json = False) -> None:
    """Print the head: whoever keeps it elsewhere sees later whether rows are gone, or forged."""
    from canal.privacy.ledger import Ledger, head_of

    rows = Ledger(path, must_exist=True).verify()
    if as_json:
        import json

        typer.echo(json.dumps({"head": head_of(rows), "rows": len(rows)}))
    else:
        typer.echo(head_of(rows))


@ledger_app.command()
def budget(
    path: _Path,
    cohort: Annotated[
        list[str], typer.Option(help="Whose budget: a site's cohort, or the queries; or several.")
    ],
    epsilon: Annotated[float, typer.Option(help="What it may spend in all.")],
    delta: Annotated[float, typer.Option(help="Delta of the same.")] = 1e-5,
    unit: Annotated[Unit, typer.Option(help="Unit of privacy.")] = "patient",
    conversion: Annotated[Conversion, typer.Option(help="Between epsilon and rho.")] = "exact",
) -> None:
    """Set what a cohort may spend; a later word replaces an earlier one, both stay on record."""
    from canal.privacy.ledger import Ledger

    ledger = Ledger(path)
    ledger.set_budget(cohort, unit, epsilon=epsilon, delta=delta, conversion=conversion)
    for name in cohort:
        left = ledger.balance(name, unit)
        typer.echo(
            f"cohort {name}, unit {unit}: epsilon {epsilon:g} at delta {delta:g} "
            f"(rho {left.budget:.4g}, {left.remaining:.4g} left)"
        )


_Cohorts = Annotated[list[str], typer.Option("--cohort", help="A site's cohort; or several.")]
_Seeded = Annotated[bool, typer.Option("--seeded", help="Noise from a seed: anyone can redo it.")]
_Noiseless = Annotated[bool, typer.Option("--noiseless", help="No noise at all.")]


@ledger_app.command()
def forbid(
    path: _Path, cohort: _Cohorts, seeded: _Seeded = False, noiseless: _Noiseless = False
) -> None:
    """Refuse from now on releases of a cohort that protect nobody; it stays on record."""
    from canal.privacy.ledger import Ledger

    Ledger(path, must_exist=True).forbid(cohort, _kinds(seeded, noiseless))
    _say_rules(path, cohort)


@ledger_app.command()
def allow(
    path: _Path, cohort: _Cohorts, seeded: _Seeded = False, noiseless: _Noiseless = False
) -> None:
    """Take back what `canal ledger forbid` said; both stay on record."""
    from canal.privacy.ledger import Ledger

    Ledger(path, must_exist=True).allow(cohort, _kinds(seeded, noiseless))
    _say_rules(path, cohort)


def _kinds(seeded: bool, noiseless: bool) -> list[Unprotected]:
    from canal.errors import InvalidValueError

    kinds: list[tuple[Unprotected, bool]] = [("seeded", seeded), ("noiseless", noiseless)]
    chosen = [kind for kind, is_meant in kinds if is_meant]
    if not chosen:
        raise InvalidValueError("say which releases are meant: --seeded, --noiseless, or both")
    return chosen


def _say_rules(path: Path, cohorts: Iterable[str]) -> None:
    from canal.privacy.ledger import Ledger, forbidden

    rows = Ledger(path, must_exist=True).rows()
    for name in cohorts:
        kinds = sorted(forbidden(rows, name))
        said = f"{' and '.join(kinds)} releases are forbidden" if kinds else "nothing is forbidden"
        typer.echo(f"cohort {name}: {said}")


def _said(row: Row) -> str:
    """The note of a row, in words."""
    import json

    if row.action == "bind":
        return "bound to its patients"
    if row.action != "budget":
        return row.note
    terms = json.loads(row.note)
    return f"epsilon {terms['epsilon']:g} at delta {terms['delta']:g}, {terms['conversion']}"


def ledger_to_charge(
    path: Path | None, payers: Iterable[tuple[str, Unit]], delta: float, *, charged: bool
) -> Ledger | None:
    """The ledger of a release; where one is to be charged and is not there, how to start one.

    Args:
        path: as it was given; the usual one if not.
        payers: who must have a budget, in which unit.
        delta: of the release.
        charged: whether anything is charged; a research run only asks whether it is forbidden.
    """
    from canal.errors import LedgerError
    from canal.privacy.ledger import Ledger

    where = Path(LEDGER) if path is None else path
    if where.is_file():
        return Ledger(where, must_exist=True)
    if not charged:
        return None
    cohorts: dict[Unit, list[str]] = {}
    for cohort, unit in payers:
        cohorts.setdefault(unit, []).append(f"--cohort {cohort}")
    lines = [
        f"`canal ledger budget {where} {' '.join(names)} --unit {unit} --epsilon E "
        f"--delta {delta:g}`"
        for unit, names in cohorts.items()
    ]
    raise LedgerError(
        f"there is no ledger at {where} to charge; whoever answers for these patients starts it "
        f"with {' and '.join(lines)}"
    )
