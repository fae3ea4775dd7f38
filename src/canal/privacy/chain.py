"""An append-only table whose rows are chained by hashes, in an SQLite file.

Every row carries the SHA-256 of itself and of the row before; a head holds number and hash of the
last. An edited, inserted, deleted or reordered row breaks the chain. Two things do not: rows cut
off at the end together with a head set back, and a chain that a forger computed anew. Against
those, note the head elsewhere and compare.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from canal.clock import now
from canal.errors import LedgerError, LedgerTamperedError

GENESIS = hashlib.sha256(b"canal ledger 1").hexdigest()
_BUSY_SECONDS = 60.0
_TABLES = {
    "chain": """CREATE TABLE IF NOT EXISTS chain (
  seq INTEGER PRIMARY KEY,
  at TEXT NOT NULL,
  action TEXT NOT NULL,
  cohort TEXT NOT NULL,
  unit TEXT NOT NULL,
  rho REAL NOT NULL,
  draws INTEGER NOT NULL,
  key TEXT NOT NULL,
  note TEXT NOT NULL,
  hash TEXT NOT NULL
)""",
    "head": """CREATE TABLE IF NOT EXISTS head (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  seq INTEGER NOT NULL,
  hash TEXT NOT NULL
)""",
}


@dataclass(frozen=True)
class Row:
    """One line of the chain.

    Args:
        seq: its number, from 1.
        at: when it was written, UTC.
        action: `budget`, `reserve`, `commit`, `forbid`, `allow` or `bind`.
        cohort: whose budget.
        unit: of privacy; empty where a row is about none.
        rho: of the budget or the charge.
        draws: noise values behind the charge.
        key: of the release; empty where a row is about none.
        note: for people; the terms of a budget, as JSON; what is forbidden or allowed; the keyed
            digest of a cohort's patients.
        hash: of this row and the one before.
    """

    seq: int
    at: str
    action: str
    cohort: str
    unit: str
    rho: float
    draws: int
    key: str
    note: str
    hash: str = ""

    def digest(self, previous: str) -> str:
        """The hash that this row must carry after the row whose hash is `previous`."""
        fields = [previous, *(value for name, value in asdict(self).items() if name != "hash")]
        # default: whatever an edit left in a field has some text, and that text another hash.
        text = json.dumps(fields, separators=(",", ":"), default=repr)
        return hashlib.sha256(text.encode()).hexdigest()


class Chain:
    """The file.

    Args:
        path: of the SQLite file.
        create: make it where there is none.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        if create:
            # SQLite is asked, not the file: it may have to take back a start that was cut off.
            with self._connection() as connection:
                if not connection.execute("SELECT 1 FROM sqlite_master").fetchall():
                    with _transaction(connection):
                        for statement in _TABLES.values():
                            connection.execute(statement)
        elif not path.is_file():
            raise LedgerError(f"there is no ledger at {path}; `canal ledger budget` starts one")

    def rows(self) -> list[Row]:
        """Every row, once the chain was found to hold."""
        with self._connection() as connection:
            return _read(connection)

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """All rows, and the right to append, for one writer at a time; all appended or none.

        Guarantees:
            The chain holds before and after, read back from the file, or nothing was written.
        """
        with self._connection() as connection, _transaction(connection):
            writer = Writer(connection, _read(connection))
            before = len(writer.rows)
            yield writer
            if len(writer.rows) > before and _read(connection) != writer.rows:
                raise LedgerTamperedError(
                    "what was written to the ledger is not what it holds afterwards"
                )

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            with closing(connection):
                # EXTRA: the journal's folder is synced too, so a charge survives a power cut.
                connection.execute("PRAGMA synchronous = EXTRA")
                yield connection
        except (sqlite3.Error, UnicodeError) as error:  # the latter from a damaged file
            raise LedgerError(
                f"cannot use the ledger {self.path}: {error}; restore it from a copy, or choose a "
                "file that you may write to"
            ) from error


class Writer:
    """What one writer sees while nobody else may write.

    Args:
        connection: inside a transaction.
        rows: of the chain so far.
    """

    def __init__(self, connection: sqlite3.Connection, rows: list[Row]) -> None:
        self._connection = connection
        self.rows = rows

    def append(
        self, action: str, cohort: str, unit: str, rho: float, *, draws: int, key: str, note: str
    ) -> None:
        """Add a row at the end."""
        previous = self.rows[-1].hash if self.rows else GENESIS
        at = now().isoformat(timespec="seconds")
        fields = (len(self.rows) + 1, at, action, cohort, unit, rho, draws, key, note)
        row = Row(*fields, hash=Row(*fields).digest(previous))
        values = list(asdict(row).values())
        marks = ", ".join("?" * len(values))
        self._connection.execute(f"INSERT INTO chain VALUES ({marks})", values)  # noqa: S608
        self._connection.execute(
            "INSERT OR REPLACE INTO head VALUES (1, ?, ?)", (row.seq, row.hash)
        )
        self.rows.append(row)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # where the disk is full, SQLite has rolled back already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _read(connection: sqlite3.Connection) -> list[Row]:
    # Exactly our two tables: a trigger could swallow what is written, a view pretend what is read.
    schema = connection.execute("SELECT type, name FROM sqlite_master").fetchall()
    if len(schema) != len(_TABLES) or set(schema) != {("table", name) for name in _TABLES}:
        raise LedgerTamperedError("this file holds no ledger, or more than a ledger")
    rows = [
        Row(*fields)
        for fields in connection.execute(
            "SELECT seq, at, action, cohort, unit, rho, draws, key, note, hash FROM chain "
            "ORDER BY seq"
        )
    ]
    previous = GENESIS
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
