"""`canal audit` of a release of adapters on the command line: bounds, patients, and what fits."""

import contextlib
import json
import re

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from canal.privacy import lattice
from canal.release import noisy_sum
from typed import call_here

QUICK = ("--no-simulate", "--draws", "2000")
OWN = ("--init", "init", "--data", "data")
SPLIT = ("--split", "split.json")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A rehearsal by two hospitals, with noise from a seed: there is no secret to look for."""
    home = tmp_path_factory.mktemp("audit-adapters")
    for line in (
        "data synthetic data --count 40 --size 32",
        "data split data --partition site --recipient 12 --out split.json",
        "init --data data --split split.json --out init --size 32 --base-channels 8 --steps 4",
        "adapters train --data data --split split.json --init init --cohort ultrasound --patients 9"
        " --cohort endoscopy --rounds 2 --seed 1 --out rehearsal",
    ):
        call_here(home, *line.split())
    return home


def individual(home):
    """A file for the hospital alone."""
    (home / "own.private").mkdir(exist_ok=True)
    return home / "own.private" / "individual_losses.json"


def test_bounds_and_patients(home):
    kept = individual(home)
    asked = (*OWN, *SPLIT, "--part", "ultrasound", "--out", "audit.json", "--private", kept)
    said = call_here(home, "audit", "rehearsal", *QUICK, *asked)
    assert "NOT PRIVATE: the noise is seeded" in said
    found = json.loads((home / "audit.json").read_text())
    assert found["holds"]
    assert [game["unit"] for game in found["games"]] == ["membership", "patient"]
    canary = json.loads(kept.read_text())["canary"]
    assert re.match(r"Of \d+ patients of ultrasound, the one that moved this", canary["words"])
    assert 0 < canary["median"]["mu"] <= canary["mu"] <= canary["allowed"]["mu"]
    assert sorted(each["mu"] for each in canary["each"].values())[-1] == canary["mu"]
    assert len(canary["each"]) == canary["patients"] == canary["among"]
    assert said.splitlines()[:-2] == found["words"]


def test_the_report_shows_it(home):
    call_here(home, "audit", "rehearsal", *QUICK, "--out", "audit.json")
    call_here(home, "report", ".", "--out", "report.html")
    page = (home / "report.html").read_text().replace("\xa0", " ")
    assert "membership, rounds" in page
    assert "One patient added or removed, on all 2 rounds of this folder" in page


def test_a_few_patients_of_a_folder_for_programs(home):
    folder = ("--init", "init", "--data", "data/endoscopy")
    asked = (*QUICK, *folder, "--most", "1", "--unit", "membership", "--json")
    found = json.loads(call_here(home, "audit", "rehearsal", *asked, "--private", individual(home)))
    assert [game["unit"] for game in found["games"]] == ["membership"]
    canary = json.loads(individual(home).read_text())["canary"]
    assert canary["cohort"] == "endoscopy"
    assert canary["patients"] == len(canary["each"]) == 1 < canary["among"]


def test_scans_of_healthy_patients_stay_out_if_asked(home):
    """A folder as BUSI's: they are known to show no lesion, took no part and paid nothing."""
    for kind, count in (("benign", 2), ("malignant", 1), ("normal", 1)):
        (home / "busi" / kind).mkdir(parents=True)
        for number in range(count):
            place = home / "busi" / kind / f"{kind} ({number}).png"
            noise = np.random.default_rng([count, number]).integers(256, size=(32, 32, 3))
            Image.fromarray(noise.astype(np.uint8)).save(place)
            mask = Image.new("L", (32, 32), 0 if kind == "normal" else 255)
            mask.save(place.with_name(f"{place.stem}_mask.png"))
    one = ("--init", "init", "--data", "busi")
    few = ("--part", "norms", "--part", "head", "--patients", "3", "--rounds", "1", "--seed", "1")
    paid = {}
    for flag in ("--keep-healthy", "--no-keep-healthy"):
        asked = (*one, "--queries", "data/endoscopy", *few, flag, "--out", f"busi{flag}")
        call_here(home, "adapters", "train", *asked)
        kept = individual(home)
        asked = (f"busi{flag}", *QUICK, *one, flag, "--unit", "membership", "--private", kept)
        call_here(home, "audit", *asked)
        paid[flag] = json.loads(kept.read_text())["canary"]["among"]
    assert paid == {"--keep-healthy": 4, "--no-keep-healthy": 3}
    sums = [load_file(next((home / f"busi{flag}").glob("*.safetensors"))) for flag in paid]
    assert any((sums[0][name] != sums[1][name]).any() for name in sums[0])


def test_every_bar_ends_where_it_says(home, monkeypatch):
    bars = {}

    @contextlib.contextmanager
    def counting(title, total):
        counted = []
        yield counted.append
        bars[title] = total, sum(counted)

    monkeypatch.setattr("canal.cli.progress.counting", counting)
    call_here(home, "audit", "rehearsal", *QUICK, *OWN, *SPLIT, "--part", "endoscopy")
    del bars["decoding"]
    assert set(bars) == {"auditing", "what patients paid"}
    assert all(total == counted > 0 for total, counted in bars.values()), bars


def test_a_fault_is_exit_code_2(home, monkeypatch):
    real = lattice.rounded_gaussian

    def too_narrow(std, shape, stream):
        return real(np.asarray(std) / 3, shape, stream)

    for module in (lattice, noisy_sum):
        monkeypatch.setattr(module, "rounded_gaussian", too_narrow)
    call_here(home, "audit", "rehearsal", *QUICK, "--out", "fault.json", code=2)
    found = json.loads((home / "fault.json").read_text())
    assert not found["holds"]
    assert all(game["refuted"] for game in found["games"])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--unit", "image"), "of adapters; choose one of membership, patient"),
        (("--teacher", "init", "--queries", "data"), "--teacher, --queries: this is a release of"),
        (("--without", "init"), "is seen with --init and --data"),
        (("--init", "init"), "give both or none"),
        (("--data", "data"), "give both or none"),
        (("--most", "3"), "give both or none"),
        (("--chunk", "3"), "give both or none"),
        ((*OWN, *SPLIT), "name the hospital's cohort, one of ultrasound, endoscopy"),
        ((*OWN, *SPLIT, "--part", "recipient"), "--part recipient: name the hospital's cohort"),
        ((*OWN, "--part", "ultrasound"), "give --split"),
        ((*OWN, "--most", "0"), "most = 0 must be at least 1"),
        ((*OWN, "--chunk", "0"), "chunk = 0 must be a whole number, at least 1"),
        (("--private", "losses.json"), "--private losses.json would be empty"),
        ((*OWN, "--private", "losses.json"), "which holds what others may read"),
        ((*OWN, "--private", "rehearsal/losses.json"), "which holds what others may read"),
        ((*OWN, "--private", "nowhere/losses.json"), "must be a file in a folder that exists"),
    ],
)
def test_what_a_person_can_mend(home, arguments, word):
    said = call_here(home, "audit", "rehearsal", *QUICK, *arguments, code=2)
    assert word in said
    assert len(said.strip().splitlines()) == 1
