"""The chain: an edited, deleted, moved or added row is found out, and what is not is said."""

import random
import sqlite3

import pytest

from canal.errors import (
    LedgerError,
    LedgerTamperedError,
)
from canal.privacy import Charge, Ledger, head_of


def edit(ledger, statement, *values):
    with sqlite3.connect(ledger.path) as connection:
        assert connection.execute(statement, values).rowcount > 0


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE chain SET rho = rho / 2 WHERE seq = 3",
        "UPDATE chain SET cohort = 'south' WHERE seq = 1",
        "UPDATE chain SET note = x'00ff' WHERE seq = 2",
        "UPDATE chain SET at = '2020-01-01T00:00:00+00:00' WHERE seq = 2",
        "UPDATE chain SET hash = 'f' WHERE seq = 4",
        "UPDATE chain SET action = 'commit' WHERE seq = 3",
        "DELETE FROM chain WHERE seq = 1",
        "DELETE FROM chain WHERE seq = 2",
        "DELETE FROM chain WHERE seq = 4",
        "DELETE FROM chain",
        "DELETE FROM head",
        "UPDATE head SET seq = 3",
        "INSERT INTO chain SELECT 5, at, action, cohort, unit, rho, draws, key, note, hash "
        "FROM chain WHERE seq = 4",
    ],
)
def test_an_edited_ledger_is_found_out_and_charges_nothing(ledger, statement):
    ledger.reserve("a", [Charge("north", "patient", 0.5)])
    ledger.reserve("b", [Charge("north", "patient", 0.6)])
    ledger.verify()
    edit(ledger, statement)
    with pytest.raises(LedgerTamperedError):
        ledger.verify()
    with pytest.raises(LedgerTamperedError):
        ledger.reserve("c", [Charge("north", "patient", 0.1)])
    with pytest.raises(LedgerTamperedError):
        ledger.set_budget("north", "patient", epsilon=99.0, delta=1e-5)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t BEFORE INSERT ON chain BEGIN SELECT RAISE(IGNORE); END",
        "CREATE VIEW v AS SELECT * FROM chain",
        "DROP TABLE head",
        "DROP TABLE chain",
    ],
)
def test_more_or_less_than_a_ledger_is_found_out(ledger, statement):
    """A trigger could swallow charges while every reservation seems to succeed."""
    with sqlite3.connect(ledger.path) as connection:
        connection.execute(statement)
    for again in (ledger, Ledger(ledger.path)):  # opening it mends nothing
        with pytest.raises(LedgerTamperedError, match="ledger"):
            again.reserve("a", [Charge("north", "patient", 0.1)])


def test_what_is_cut_off_with_its_head_needs_a_noted_head(ledger):
    """The stated limit of the chain: only a head noted elsewhere shows it."""
    before = head_of(ledger.verify())
    ledger.reserve("a", [Charge("north", "patient", 0.5)])
    after = head_of(ledger.verify())
    edit(ledger, "DELETE FROM chain WHERE seq = 3")
    edit(ledger, "UPDATE head SET seq = 2, hash = ?", before)
    ledger.verify(head=before)
    with pytest.raises(LedgerTamperedError, match="are gone"):
        ledger.verify(head=after)


def test_reordered_rows_are_found_out(ledger):
    ledger.reserve("a", [Charge("north", "patient", 0.5)])
    ledger.reserve("b", [Charge("north", "patient", 0.6)])
    edit(ledger, "UPDATE chain SET seq = -1 WHERE seq = 3")
    edit(ledger, "UPDATE chain SET seq = 3 WHERE seq = 4")
    edit(ledger, "UPDATE chain SET seq = 4 WHERE seq = -1")
    with pytest.raises(LedgerTamperedError, match="row 3"):
        ledger.verify()


def test_a_file_put_back_is_found_out_by_a_noted_head(ledger):
    before = ledger.path.read_bytes()
    ledger.reserve("a", [Charge("north", "patient", 0.5)])
    noted = head_of(ledger.verify())
    ledger.reserve("b", [Charge("north", "patient", 0.1)])
    ledger.verify(head=noted)  # later rows are no offence
    ledger.path.write_bytes(before)
    ledger.verify()  # a valid chain, as far as anyone can see from inside
    with pytest.raises(LedgerTamperedError, match="are gone"):
        ledger.verify(head=noted)


def test_every_flipped_byte_is_found_or_changes_nothing(ledger):
    ledger.reserve("a", [Charge("north", "patient", 0.5)])
    ledger.commit("a")
    rows, good = ledger.rows(), ledger.path.read_bytes()
    rng, found = random.Random(4), 0
    for _ in range(300):
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        ledger.path.write_bytes(bad)
        try:
            assert ledger.rows() == rows
        except LedgerError:
            found += 1
    assert found > 20  # most of the file is empty pages; a hit on content is always found


@pytest.mark.parametrize("cut", [0, 1, 100, 4096, 5000])
def test_a_cut_file_is_an_error_of_ours(ledger, cut):
    ledger.path.write_bytes(ledger.path.read_bytes()[:cut])
    with pytest.raises(LedgerError):
        ledger.verify()


def test_not_a_ledger(tmp_path):
    (tmp_path / "text").write_text("not a database, but long enough to be looked at " * 9)
    with pytest.raises(LedgerError, match="cannot use the ledger"):
        Ledger(tmp_path / "text").verify()
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger(tmp_path / "absent", must_exist=True)
    assert not (tmp_path / "absent").exists()
    with pytest.raises(LedgerError, match="may write to"):
        Ledger(tmp_path / "no" / "such" / "folder")
