"""What the README tells people to type works as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_commands_and_programs(tmp_path):
    """In the order of the page, in one folder."""
    commands = [line.split() for block in blocks("bash") for line in block.splitlines()]
    programs = [["python", "-c", program] for program in blocks("python")]
    assert commands
    assert programs
    # One thread each: the tests run in two processes already.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CANAL_CACHE": str(tmp_path / "cache")}
    for name, *arguments in commands + programs:
        done = subprocess.run(
            [BIN / name, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{name} {arguments}\n{done.stderr}"


def test_quoted_words_are_what_the_plan_says():
    said = subprocess.run(
        [BIN / "canal", "plan", "--json"], capture_output=True, text=True, check=True
    ).stdout
    quoted = [line.removeprefix("> ") for line in README.splitlines() if line.startswith("> ")]
    for sentence in (line for line in quoted if line.startswith(("At K", "All 1000", "The knobs"))):
        assert sentence in said


def test_table_of_honest_epsilons():
    from canal.privacy import epsilon_from_rho, rho_from_epsilon

    for epsilon in (1, 8):
        rho = 0.85 * rho_from_epsilon(epsilon, 1e-5, "paper")
        costs = [epsilon_from_rho(rho * n, 1e-5) for n in (100, 1000, 2594)]
        row = next(line for line in README.splitlines() if line.startswith(f"| {epsilon} |"))
        shown = [cell.strip() for cell in row.strip("|").split("|")[1:]]
        assert [f"{cost:.3g}" if cost < 1000 else f"{cost:.0f}" for cost in costs] == shown


def test_local_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)", README):
        assert (ROOT / target).exists(), target
