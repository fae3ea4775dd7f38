"""What the README tells people to type works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

from canal.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent


def test_commands_and_programs(tmp_path, monkeypatch):
    """In the order of the page, in one folder; commands in this process, programs in their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CANAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the tests run in two processes already
    found = re.findall(r"```(bash|python)\n(.*?)```", README, re.DOTALL)
    assert {language for language, _ in found} == {"bash", "python"}
    for language, text in found:
        if language == "python":
            done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
            assert done.returncode == 0, f"{text}\n{done.stderr}"
            continue
        for line in text.splitlines():
            name, *arguments = line.split()
            assert name == "canal"
            assert not app(arguments, standalone_mode=False), line


def test_the_api_takes_six_lines():
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in program.splitlines() if line]) == 6


def test_quoted_words_are_what_the_plan_says():
    said = subprocess.run(
        [BIN / "canal", "plan", "--json"], capture_output=True, text=True, check=True
    ).stdout
    quoted = [line.removeprefix("> ") for line in README.splitlines() if line.startswith("> ")]
    for sentence in (line for line in quoted if line.startswith(("At K", "All 1000", "The knobs"))):
        assert sentence in said


def test_table_of_honest_epsilons():
    from canal.privacy import epsilon_from_rho, rho_from_epsilon
    from canal.release.digits import upwards

    for epsilon in (1, 8):
        rho = 0.85 * rho_from_epsilon(epsilon, 1e-5, "paper")
        costs = [epsilon_from_rho(rho * n, 1e-5) for n in (100, 1000, 2594)]
        row = next(line for line in README.splitlines() if line.startswith(f"| {epsilon} |"))
        shown = [cell.strip() for cell in row.strip("|").split("|")[1:]]
        # Rounded up, as every epsilon that is shown.
        digits = [3 if cost < 1000 else 4 for cost in costs]
        rounded = [upwards(cost, count) for cost, count in zip(costs, digits, strict=True)]
        assert [f"{cost:g}" for cost in rounded] == shown


def test_local_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)", README):
        assert (ROOT / target).exists(), target
