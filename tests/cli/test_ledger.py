"""`canal ledger` as a person types it: heads that are kept elsewhere, and what it says of rows."""

import json
import shutil

from canal.privacy import Charge, Ledger
from typed import call_here

DIGEST = "ab" * 32


def test_a_head_that_is_kept_elsewhere(tmp_path):
    """Printed alone, to be noted; with it a copy that was left behind is told from the ledger."""
    asked = ("ledger", "budget", "book.sqlite", "--cohort", "north", "--epsilon", "8")
    call_here(tmp_path, *asked)
    (first,) = call_here(tmp_path, "ledger", "head", "book.sqlite").split()
    shutil.copy(tmp_path / "book.sqlite", tmp_path / "copy.sqlite")
    due = [Charge("north", "patient", 0.1)]
    Ledger(tmp_path / "book.sqlite").reserve("a", due, people={"north": [frozenset({DIGEST})]})
    found = json.loads(call_here(tmp_path, "ledger", "head", "book.sqlite", "--json"))
    assert found["rows"] == 3
    heads = ("--head", first, "--head", found["head"])
    assert found["head"] in call_here(tmp_path, "ledger", "verify", "book.sqlite", *heads)
    said = call_here(tmp_path, "ledger", "verify", "copy.sqlite", *heads, code=2)
    assert f"head {found['head'][:12]} is not in copy.sqlite" in said
    assert "another copy of this ledger was charged" in said
    shown = call_here(tmp_path, "ledger", "show", "book.sqlite")
    assert "bound to its patients" in shown
    (tmp_path / "book.sqlite.patients").unlink()
    said = call_here(tmp_path, "ledger", "verify", "book.sqlite", code=2)
    assert "book.sqlite.patients is gone" in said
    assert said.count("\n") == 1
