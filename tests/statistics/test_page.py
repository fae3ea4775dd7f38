"""The numbers on `docs/statistics.md`, measured again."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from canal.data.synthetic import write
from canal.statistics.patients import load
from canal.statistics.plan import COUNT, StatisticsPlan
from canal.statistics.release import create
from typed import call_here

PAGE = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text()


@pytest.mark.data
def test_true_and_released_numbers_of_kvasir(tmp_path):
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("CANAL_DATA") or beside) / "Kvasir-SEG"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; set CANAL_DATA to the folder of the data sets")
    call_here(tmp_path, "data", "split", folder, "--out", tmp_path / "split.json")
    names = [f"site-{number}" for number in (1, 2, 3)]
    sites = [load(name, folder, split=tmp_path / "split.json") for name in names]
    plan = StatisticsPlan(1.0, sites=3)
    lattice, errors = plan.calibrate().lattice, []
    votes = [site.votes(plan, lattice) for site in sites]
    true = {name: sum(each[name] for each in votes) * lattice.step for name in plan.widths}
    for seed in range(20):
        made = create(tmp_path / f"{seed}", sites, plan, seed=seed).estimates
        errors += [made[name].patients - true[name] for name in true]
        if seed == 1:
            rows = zip(made["area"].bins, true["area"], made["area"].patients, strict=True)
            shown = [*rows, ("all patients", true[COUNT][0], made[COUNT].patients[0])]
            off = np.abs(made["area"].shares - true["area"] / true["area"].sum()).sum() / 2
    for name, before, after in shown:
        row = f"| {name} | {before:.0f} | {after:.1f} |"
        assert row.replace("-", "−") in PAGE
    rms = np.sqrt(np.square(np.concatenate(errors)).mean())
    assert f"the root mean square error is {rms:.2f} patients, as stated" in PAGE
    assert f"deviation of {made['area'].error:.2f} patients" in PAGE
    assert f"off by {100 * off:.1f} % in total variation" in PAGE


def test_commands_are_those_that_there_are(tmp_path):
    write(tmp_path / "Kvasir-SEG", 90, size=(32, 32))
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines():
        name, *words = line.split()
        assert name == "canal"
        call_here(tmp_path, *words)
