"""The command line as a person meets it: real processes, exit codes, pipes and wrong flags."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CANAL = Path(sys.executable).parent / "canal"
PLAN = (
    "plan --epsilon 8 --delta 1e-5 --teachers 3 --queries 1000 --channels 512 --released 51 "
    "--height 16 --width 16 --json"
)


def run(*arguments, **options):
    return subprocess.run([CANAL, *arguments], capture_output=True, text=True, **options)


def test_the_example_of_the_issue():
    done = run(*PLAN.split())
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert {"rho", "split", "sigma", "guarantee", "snr_db", "per_iteration"} <= set(got)
    assert got["guarantee"]["patient"]["epsilon"] == pytest.approx(8, rel=1e-6)
    assert got["guarantee"]["patient"]["epsilon"] <= 8
    assert got["guarantee"]["image"]["epsilon"] is None  # public caps are read from the queries
    assert got["guarantee"]["paper"]["epsilon"] < 8
    assert sum(got["split"].values()) == pytest.approx(1)


@pytest.mark.parametrize("unit", ["patient", "image", "paper"])
@pytest.mark.parametrize("conversion", ["exact", "paper"])
def test_the_epsilon_is_for_the_unit_that_was_named(unit, conversion):
    done = run(*PLAN.split(), "--unit", unit, "--conversion", conversion)
    assert json.loads(done.stdout)["guarantee"][unit]["epsilon"] == pytest.approx(8, rel=1e-6)


def test_plan_for_people(tmp_path):
    (tmp_path / "scores.txt").write_text(" ".join(str(1.02**n) for n in range(512)))
    done = run("plan", "--importance", tmp_path / "scores.txt", "--preset", "paper")
    assert done.returncode == 0, done.stderr
    for word in ("Budget", "water-filling", "Guarantee", "patient", "The knobs that help"):
        assert word in done.stdout
    assert "\x1b[" not in done.stdout  # no colours into a pipe


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("plan --epsilon -1", "epsilon"),
        ("plan --epsilon 1e308", "epsilon"),
        ("plan --delta 1e-31", "delta"),
        ("ledger budget x.sqlite --cohort a --epsilon 1e-200", "epsilon"),
        ("plan --delta 2", "delta"),
        ("plan --teachers 0", "teachers"),
        ("plan --released 9 --channels 3", "released"),
        ("plan --budget-split 0.5 0.5 0.5", "split"),
        ("plan --importance nowhere.json", "nowhere.json"),
        ("plan --unit pixel", "patient"),
        ("plan --unit membership", "patient"),
        ("ledger budget x.sqlite --cohort a --epsilon 1 --unit pixel", "membership"),
        ("plan --epsilom 3", "--epsilon"),
        ("ledger show nowhere.sqlite", "there is no ledger"),
        ("ledger verify nowhere.sqlite", "there is no ledger"),
        ("ledgr", "ledger"),
    ],
)
def test_what_a_person_can_mend_is_one_sentence(arguments, word, tmp_path):
    done = run(*arguments.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_ledger_by_hand(tmp_path):
    ledger = tmp_path / "ledger.sqlite"
    budget = ["--cohort", "north", "--epsilon", "8", "--delta", "1e-5"]
    assert run("ledger", "budget", ledger, *budget).returncode == 0
    added = run("ledger", "budget", ledger, *budget, "--unit", "membership")
    assert "unit membership: epsilon 8" in added.stdout
    shown = run("ledger", "show", ledger)
    assert "north" in shown.stdout
    assert "membership" in shown.stdout
    seen = json.loads(run("ledger", "show", ledger, "--json").stdout)
    assert seen["balances"][0]["epsilon_budget"] == 8
    assert seen["rows"][0]["action"] == "budget"
    checked = run("ledger", "verify", ledger, "--head", seen["head"], "--json")
    assert json.loads(checked.stdout) == {"ok": True, "rows": 2, "head": seen["head"]}
    wrong = run("ledger", "verify", ledger, "--head", "0" * 64)
    assert wrong.returncode == 2
    assert "are gone" in wrong.stderr


def test_names_are_shown_as_they_are(tmp_path):
    ledger = tmp_path / "ledger.sqlite"
    name = "[bold]a[/bold] [/x]"
    assert run("ledger", "budget", ledger, "--cohort", name, "--epsilon", "1").returncode == 0
    shown = run("ledger", "show", ledger, env={"COLUMNS": "200"})
    assert shown.returncode == 0, shown.stderr
    assert name in shown.stdout


def test_a_closed_pipe_is_no_error(tmp_path):
    done = subprocess.run(
        f"{CANAL} plan | true",
        shell=True,  # a pipe is the point
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["plan", "--json"]])
def test_light_commands_stay_light(arguments):
    """Neither torch nor monai nor SciPy is imported to say hello or to plan."""
    program = (
        "import sys\n"
        "from canal.cli import main\n"
        f"sys.argv = ['canal', *{arguments!r}]\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        "heavy = {'torch', 'monai', 'scipy', 'cryptography', 'sqlite3'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_ledger_does_not_wait_for_numpy():
    program = "import sys, canal.privacy.ledger; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_version():
    assert run("--version").stdout.startswith("canal ")
