r"""The ledger: what each cohort may spend, what it spent, and proof that nobody edited it.

An SQLite file with one row per charge. Every row carries the SHA-256 of itself and of the row
before, and a separate head holds the last one: an edited, deleted, inserted or reordered row breaks
the chain. A whole file put back to an earlier state is a valid chain again; against that, note the
head (`canal ledger show`) somewhere else and give it to `canal ledger verify --head`.

Reserve, then commit. The charge is written and on disk *before* anything is published, under the
digest of all that determines the release. A run that dies after it has paid: the same release asked
for again finds its reservation and pays nothing more. A reservation counts as spent for ever, since
nobody can prove that its noise was never seen.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from canal.errors import (
    BudgetExceededError,
    InvalidValueError,
    LedgerError,
    LedgerTamperedError,
)
from canal.privacy.gaussian import Conversion, epsilon_from_rho, rho_from_epsilon
from canal.privacy.units import Unit, check_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Status = Literal["new", "reserved", "committed"]

_GENESIS = hashlib.sha256(b"canal ledger 1").hexdigest()
_BUSY_SECONDS = 60.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS chain (
  seq INTEGER PRIMARY KEY,
  at TEXT NOT NULL,
  action TEXT NOT NULL CHECK (action IN ('budget', 'reserve', 'commit')),
  cohort TEXT NOT NULL,
  unit TEXT NOT NULL,
  rho REAL NOT NULL,
  key TEXT NOT NULL,
  note TEXT NOT NULL,
  hash TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS head (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  seq INTEGER NOT NULL,
  hash TEXT NOT NULL
);
"""


@dataclass(frozen=True)
class Charge:
    """What one release costs one cohort.

    Args:
        cohort: whose data it is: a site's training cohort, or the query images.
        unit: the unit of privacy that the rho is for.
        rho: zCDP cost, above 0.
    """

    cohort: str
    unit: Unit
    rho: float

    def __post_init__(self) -> None:
        check_unit(self.unit)
        if not self.cohort:
            raise InvalidValueError("a charge needs the name of its cohort")
        if not 0 < self.rho < math.inf:
            raise InvalidValueError(f"a charge of rho = {self.rho!r} must be above 0 and finite")


@dataclass(frozen=True)
class Row:
    """One line of the ledger, as it is on disk."""

    seq: int
    at: str
    action: str
    cohort: str
    unit: str
    rho: float
    key: str
    note: str
    hash: str

    def digest(self, previous: str) -> str:
        """The hash that this row must carry after the row whose hash is `previous`."""
        fields = [previous, *(value for name, value in asdict(self).items() if name != "hash")]
        # default: whatever an edit left in a field has some text, and that text another hash.
        text = json.dumps(fields, separators=(",", ":"), default=repr)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Balance:
    """What one cohort may spend under one unit, and what is left.

    Args:
        cohort: whose budget it is.
        unit: the unit of privacy.
        budget: rho that may be spent in all.
        spent: rho of everything reserved or committed.
        remaining: rho that is left, rounded down.
        uncommitted: the part of `spent` whose release was not finished.
        epsilon_budget: the epsilon that the budget was set as.
        epsilon_spent: what was spent, as an epsilon at the same delta.
        delta: of both.
        conversion: between rho and epsilon.
    """

    cohort: str
    unit: Unit
    budget: float
    spent: float
    remaining: float
    uncommitted: float
    epsilon_budget: float
    epsilon_spent: float
    delta: float
    conversion: Conversion


class Ledger:
    """Budgets and charges of the cohorts of one site, or of one aggregator.

    Guarantees:
        What is reserved never exceeds a budget, whatever processes race and wherever they are
        killed; a charge is either there for all its cohorts or for none.

    Args:
        path: the SQLite file; made when it is not there.
        must_exist: refuse to make one.
    """

    def __init__(self, path: Path | str, *, must_exist: bool = False) -> None:
        self.path = Path(path)
        if must_exist and not self.path.is_file():
            raise LedgerError(
                f"there is no ledger at {self.path}; `canal ledger budget` starts one"
            )
        if not must_exist:
            with self._writing():
                pass

    def set_budget(
        self,
        cohort: str,
        unit: Unit,
        *,
        epsilon: float,
        delta: float,
        conversion: Conversion = "exact",
    ) -> None:
        """Say what a cohort may spend under one unit; a later word replaces an earlier one."""
        rho = rho_from_epsilon(epsilon, delta, conversion)
        terms = {"epsilon": epsilon, "delta": delta, "conversion": conversion}
        charge = Charge(cohort, unit, rho)
        with self._writing() as connection:
            _append(connection, "budget", charge, key="", note=json.dumps(terms))

    def reserve(self, key: str, charges: Sequence[Charge], *, note: str = "") -> Status:
        """Charge a release before it is made, all cohorts or none.

        Args:
            key: digest of all that determines the release. The same key is the same release: it
                is charged once, however often it is asked for.
            charges: what it costs each cohort.
            note: a word for people.

        Returns:
            `new` if it was charged now, else how far it had come.

        Raises:
            BudgetExceededError: with requested and remaining; nothing is charged.
            LedgerError: a cohort without a budget, or the same key with other charges.
        """
        if not key or not charges:
            raise InvalidValueError("a reservation needs a key and at least one charge")
        if len({(charge.cohort, charge.unit) for charge in charges}) < len(charges):
            raise InvalidValueError("two charges of one reservation name the same cohort and unit")
        with self._writing() as connection:
            rows = _read_chain(connection)
            earlier = [row for row in rows if row.action == "reserve" and row.key == key]
            if earlier:
                if {(r.cohort, r.unit, r.rho) for r in earlier} != {
                    (c.cohort, c.unit, c.rho) for c in charges
                }:
                    raise LedgerError(
                        f"release {key[:12]} was charged before with other amounts; a different "
                        "release needs a different key"
                    )
                return "committed" if _is_committed(rows, key) else "reserved"
            for charge in charges:
                remaining = _balance(rows, charge.cohort, charge.unit).remaining
                if charge.rho > remaining:
                    raise BudgetExceededError(charge.cohort, charge.unit, charge.rho, remaining)
            for charge in charges:
                _append(connection, "reserve", charge, key=key, note=note)
        return "new"

    def commit(self, key: str) -> None:
        """Note that a reserved release is finished; saying it twice is saying it once."""
        with self._writing() as connection:
            rows = _read_chain(connection)
            reserved = [row for row in rows if row.action == "reserve" and row.key == key]
            if not reserved:
                raise LedgerError(f"release {key[:12]} was never reserved; reserve it first")
            if not _is_committed(rows, key):
                for row in reserved:
                    charge = Charge(row.cohort, check_unit(row.unit), row.rho)
                    _append(connection, "commit", charge, key=key, note="")

    def balance(self, cohort: str, unit: Unit) -> Balance:
        """What a cohort may spend under one unit, and what it spent."""
        return _balance(self.rows(), cohort, check_unit(unit))

    def balances(self) -> list[Balance]:
        """Every cohort and unit that has a budget, in order of name."""
        rows = self.rows()
        budgets = sorted({(row.cohort, row.unit) for row in rows if row.action == "budget"})
        return [_balance(rows, cohort, check_unit(unit)) for cohort, unit in budgets]

    def rows(self) -> list[Row]:
        """Every row, once the chain was found to hold."""
        with self._connection() as connection:
            return _read_chain(connection)

    def verify(self, *, head: str | None = None) -> str:
        """Check every row against the chain; give the head.

        Args:
            head: a head noted elsewhere, earlier; it must still be part of the chain.

        Raises:
            LedgerTamperedError: and says at which row.
        """
        rows = self.rows()
        if head is not None and head not in {_GENESIS, *(row.hash for row in rows)}:
            raise LedgerTamperedError(
                f"head {head[:12]} is not in {self.path}: rows that were there are gone, "
                "or this is another ledger"
            )
        return rows[-1].hash if rows else _GENESIS

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            with closing(connection):
                # EXTRA: the journal's folder is synced too, so a charge survives a power cut.
                connection.execute("PRAGMA synchronous = EXTRA")
                yield connection
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter from a damaged file
            raise LedgerError(
                f"cannot use the ledger {self.path}: {error}; restore it from a copy, or choose a "
                "file that you may write to"
            ) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")


def _read_chain(connection: sqlite3.Connection) -> list[Row]:
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    if not {("chain",), ("head",)} <= set(tables):
        raise LedgerTamperedError("this file holds no ledger, or a table of it was removed")
    rows = [
        Row(*fields)
        for fields in connection.execute(
            "SELECT seq, at, action, cohort, unit, rho, key, note, hash FROM chain ORDER BY seq"
        )
    ]
    previous = _GENESIS
    for number, row in enumerate(rows, start=1):
        if row.seq != number:
            raise LedgerTamperedError(f"row {number} of the ledger is missing")
        if row.hash != row.digest(previous):
            raise LedgerTamperedError(f"row {number} of the ledger was edited or moved")
        previous = row.hash
    expected = (len(rows), previous) if rows else None
    if connection.execute("SELECT seq, hash FROM head").fetchone() != expected:
        raise LedgerTamperedError(
            f"the ledger ends at row {len(rows)}, its head says otherwise: "
            "rows at the end were removed or added"
        )
    return rows


def _append(
    connection: sqlite3.Connection, action: str, charge: Charge, *, key: str, note: str
) -> None:
    last = connection.execute("SELECT seq, hash FROM head").fetchone() or (0, _GENESIS)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    row = Row(last[0] + 1, at, action, charge.cohort, charge.unit, charge.rho, key, note, "")
    values = [*list(asdict(row).values())[:-1], row.digest(last[1])]
    connection.execute("INSERT INTO chain VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    connection.execute("INSERT OR REPLACE INTO head VALUES (1, ?, ?)", (row.seq, values[-1]))


def _is_committed(rows: Sequence[Row], key: str) -> bool:
    return any(row.action == "commit" and row.key == key for row in rows)


def _balance(rows: Sequence[Row], cohort: str, unit: Unit) -> Balance:
    mine = [row for row in rows if row.cohort == cohort and row.unit == unit]
    budgets = [row for row in mine if row.action == "budget"]
    if not budgets:
        raise LedgerError(
            f"cohort {cohort!r} has no {unit} budget in this ledger; set one with "
            f"`canal ledger budget LEDGER --cohort {cohort} --unit {unit} --epsilon E --delta D`"
        )
    terms = json.loads(budgets[-1].note)
    committed = {row.key for row in mine if row.action == "commit"}
    reserved = [row for row in mine if row.action == "reserve"]
    spent = math.fsum(row.rho for row in reserved)
    # Exactly, so that a budget can be spent to the last bit and not one bit more.
    left = Fraction(budgets[-1].rho) - sum(Fraction(row.rho) for row in reserved)
    remaining = float(left)
    if Fraction(remaining) > left:
        remaining = math.nextafter(remaining, -math.inf)
    return Balance(
        cohort=cohort,
        unit=unit,
        budget=budgets[-1].rho,
        spent=spent,
        remaining=max(0.0, remaining),
        uncommitted=math.fsum(row.rho for row in reserved if row.key not in committed),
        epsilon_budget=terms["epsilon"],
        epsilon_spent=epsilon_from_rho(spent, terms["delta"], terms["conversion"]),
        delta=terms["delta"],
        conversion=terms["conversion"],
    )
