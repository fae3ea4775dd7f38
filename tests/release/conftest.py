"""What the tests of a release share, beside tiny networks and queries."""

import json
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from budgets import enough_for_patients
from canal.privacy import Ledger
from tiny import SITES


@pytest.fixture
def make_ledger(tmp_path):
    """A ledger in which every site may spend epsilon under one unit (the exact conversion)."""

    def make(unit="patient", epsilon=20.0, name="ledger.sqlite"):
        made = Ledger(tmp_path / name)
        if unit != "patient":
            enough_for_patients(made, SITES)
        made.set_budget(SITES, unit, epsilon=epsilon, delta=1e-5)
        return made

    return make


@pytest.fixture
def ledger(make_ledger):
    """Budgets at patient level, enough for two releases of epsilon 8."""
    return make_ledger()


@pytest.fixture(scope="session")
def work(tmp_path_factory, checkpoints, arrays):
    """Have a release made in a process of its own, which may die of it; see `release_worker.py`."""
    queries = tmp_path_factory.mktemp("queries") / "queries.npz"
    np.savez(queries, ids=np.array(arrays.ids), images=arrays.images, masks=arrays.masks)
    worker = subprocess.Popen(
        [
            *(sys.executable, Path(__file__).parent / "release_worker.py"),
            *(queries, checkpoints.init, *checkpoints.teachers),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(out, ledger, plan, **task):
        task |= {"out": str(out), "ledger": str(ledger), "plan": plan.to_json()}
        worker.stdin.write(json.dumps(task) + "\n")
        worker.stdin.flush()
        assert select.select([worker.stdout], [], [], 120)[0], f"hangs: {task}"
        return json.loads(worker.stdout.readline())

    yield ask
    worker.stdin.close()
    worker.wait(timeout=60)
    worker.stdout.close()
