"""What the tests of the ledger share."""

import pytest

from canal.privacy import Ledger


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger.sqlite")
    made.set_budget("north", "patient", epsilon=8.0, delta=1e-5)
    made.set_budget("queries", "image", epsilon=1.0, delta=1e-5)
    return made
