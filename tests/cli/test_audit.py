"""`canal audit` on the command line: a lower bound, a canary, and what cannot be audited."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canal.cli import app
from canal.errors import CanalError

CANAL = Path(sys.executable).parent / "canal"
SITES = ("north", "south")
TEACHERS = [word for site in SITES for word in ("--teacher", site)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two sites' teachers, one of them trained again without a patient, and two releases."""
    from canal.data.load import load
    from canal.data.synthetic import write
    from canal.features.ensemble import load_ensemble
    from canal.features.queries import Queries
    from canal.features.release import create
    from canal.learning.networks import UNetArchitecture
    from canal.learning.settings import TrainingSettings
    from canal.learning.teacher import initialise, train

    home = tmp_path_factory.mktemp("audit")
    before = os.environ.get("CANAL_CACHE")
    os.environ["CANAL_CACHE"] = str(home / "cache")
    write(home / "queries", 8, size=(32, 32))
    write(home / "cohorts", 16, size=(32, 32), seed=1)
    asked = load(home / "queries", size=32)
    cohorts = load(home / "cohorts", size=32)
    settings = TrainingSettings(steps=4, batch_size=4, save_every=4)
    architecture = UNetArchitecture(in_channels=asked.images.shape[1], base_channels=8)
    initialise(home / "init", architecture, seed=0, size=(32, 32))
    for folder, site, part in (
        ("north", "north", slice(0, 8)),
        ("south", "south", slice(8, 16)),
        ("without", "north", slice(1, 8)),
    ):
        chosen = cohorts.rows(cohorts.ids[part])
        train(home / folder, home / "init", chosen, settings, name=site)
    ensemble = load_ensemble([home / site for site in SITES], home / "init")
    queries = Queries.of(asked)
    plan = ensemble.plan(queries, epsilon=8.0)
    create(home / "release", ensemble, queries, plan, seed=1)
    paper = ensemble.plan(queries, preset="paper", epsilon=8.0)
    create(home / "noisy-statistics", ensemble, queries, paper, seed=1)
    yield home
    if before is None:
        del os.environ["CANAL_CACHE"]
    else:
        os.environ["CANAL_CACHE"] = before


@pytest.fixture
def call(home, monkeypatch):
    """Run a command in this process."""
    monkeypatch.chdir(home)

    def run(*arguments):
        return CliRunner().invoke(app, ["audit", "--no-simulate", *arguments])

    return run


def test_a_bound_and_a_canary(home, call):
    canary = (*TEACHERS, "--queries", "queries", "--without", "without")
    done = call("release", "--draws", "2000", "--out", "audit.json", *canary)
    assert done.exit_code == 0, done.output
    assert "NOT PRIVATE: the noise is seeded" in done.output
    assert "nothing is promised" in done.output
    assert "the accounting covers it" in done.output
    found = json.loads((home / "audit.json").read_text())
    assert found["format"] == "canal-audit/2"
    assert found["holds"]
    assert found["canary"].keys() == {"allowed", "holds", "words"}
    assert done.stdout.splitlines()[:-2] == found["words"]
    assert "--private FILE keeps them for the hospital" in done.stdout.splitlines()[-2]


def test_the_noise_in_the_folder_is_seen_with_its_teachers(home, call):
    done = call("release", "--draws", "2000", "--json", *TEACHERS, "--queries", "queries")
    found = json.loads(done.stdout)
    looked = {check["what"]: check for check in found["checks"] if check["folder"]}
    assert looked["width of the noise in the folder"]["passed"]
    assert looked["noise of two queries in the folder"]["passed"]
    assert any(said.startswith("Width of the noise in the folder: ") for said in found["words"])
    assert found["canary"] is None


@pytest.mark.parametrize("release", ["release", "noisy-statistics"])
def test_every_bar_ends_where_it_says(call, monkeypatch, release):
    bars = {}

    @contextlib.contextmanager
    def counting(title, total):
        counted = []
        yield counted.append
        bars[title] = total, sum(counted)

    monkeypatch.setattr("canal.cli.progress.counting", counting)
    canary = (*TEACHERS, "--queries", "queries", "--without", "without")
    assert call(release, "--draws", "2000", *canary).exit_code == 0
    del bars["decoding"]
    assert set(bars) == {"auditing", "the folder's own noise", "canary"}
    assert all(total == counted > 0 for total, counted in bars.values()), bars


def test_one_unit_for_programs(call):
    done = call("release", "--draws", "2000", "--unit", "image", "--json")
    found = json.loads(done.stdout)
    assert found["games"][0]["unit"] == "image"
    assert found["canary"] is None


def test_a_fault_is_exit_code_2(call, monkeypatch):
    from canal.privacy import Lattice

    real = Lattice.perturb
    monkeypatch.setattr(
        Lattice,
        "perturb",
        lambda self, total, sigma, stream, **more: real(self, total, sigma / 3, stream, **more),
    )
    done = call("release", "--draws", "2000")
    assert done.exit_code == 2
    assert "it is refuted" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("queries",), "holds no release"),
        (("release", "--draws", "5"), "at least 1000"),
        (("release", "--unit", "membership"), "of features; choose one of patient, image"),
        (("release", "--data", "queries"), "--data: this is a release of features"),
        (("release", "--without", "without"), "give all three"),
        (("release", *TEACHERS), "give both or none"),
        (("release", "--queries", "queries"), "give both or none"),
        (("release", "--teacher", "south", "--queries", "queries"), "north, south, in this order"),
    ],
)
def test_what_a_person_can_mend(call, arguments, said):
    done = call(*arguments)
    assert isinstance(done.exception, CanalError)
    assert said in str(done.exception)


def test_releases_of_invented_sites_are_a_part_of_it(call):
    done = call("release", "--simulate", "--draws", "1000", "--unit", "patient", "--json")
    assert done.exit_code == 0, done.output
    checks = {each["what"]: each for each in json.loads(done.stdout)["checks"]}
    simulated = {what: each["passed"] for what, each in checks.items() if "simulation" in what}
    assert simulated == dict.fromkeys(
        [
            *("simulation, as stated", "simulation, a second release", "simulation, again"),
            *("simulation, loud", "simulation, noise of two releases"),
            *("simulation across sites", "simulation across sites, a second release"),
        ],
        True,
    )


@pytest.mark.slow
def test_as_a_person_calls_it(home):
    """With nothing on the screen but the findings."""
    done = subprocess.run(
        [CANAL, "audit", "release", "--draws", "10000"],
        cwd=home,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "there is no secret to find" in done.stdout
    assert "Nothing that was stated is refuted" in done.stdout
