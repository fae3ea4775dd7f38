"""`canal statistics release`, and every command on what it makes."""

import json

import pytest

from canal.data.synthetic import write
from canal.privacy import Ledger
from typed import call_here

SITES = ("north", "south")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("statistics")
    for number, site in enumerate(SITES):
        write(root / site, 12, size=(32, 32), seed=number)
    Ledger(root / "ledger.sqlite").set_budget(SITES, "membership", epsilon=3.0, delta=1e-5)
    return root


def release(home, *more, code=0):
    folders = [word for site in SITES for word in ("--data", home / site)]
    return call_here(home, "statistics", "release", *folders, *more, code=code)


def test_from_folders_to_a_card(home):
    out = ("--out", home / "paid", "--ledger", home / "ledger.sqlite")
    said = release(home, *out, "--purpose", "before we train")
    assert "patients of 2 sites" in said
    checked = json.loads(
        call_here(
            *(home, "release", "verify", home / "paid"),
            *("--ledger", home / "ledger.sqlite", "--json"),
        )
    )
    assert checked["holds"]
    assert checked["kind"] == "statistics"
    whose = {check["what"]: check["detail"] for check in checked["checks"]}
    assert whose["public inputs"] == "none: all that is published beside the plan has noise"
    shown = json.loads(call_here(home, "release", "show", home / "paid", "--json"))
    assert [len(shown[name]["patients"]) for name in ("count", "area", "size")] == [1, 9, 8]
    priced = json.loads(call_here(home, "account", home / "paid", "--json"))
    assert priced["units"]["membership"]["epsilon"] <= 1
    assert "before we train" in (home / "paid/card.html").read_text()
    assert "patients of 2 sites" in release(home, *out, "--purpose", "before we train")


def test_for_research_and_for_programs(home):
    made = json.loads(release(home, "--out", home / "seeded", "--seed", 1, "--json"))
    assert not made["private"]
    assert made["guarantee"] == {"membership": None, "patient": None}
    some = ("--budget-split", 0.7, 0.1, 0.1, 0.1, "--relation", "replace", "--epsilon", 2)
    other = json.loads(release(home, "--out", home / "other", "--seed", 1, *some, "--json"))
    assert other["count"]["error"] < made["count"]["error"]


def test_a_report_names_it(home):
    release(home, "--out", home / "run/statistics", "--seed", 1)
    call_here(home, "report", home / "run", "--out", home / "report.html")
    page = (home / "report.html").read_text().replace("\xa0", " ")
    assert "release was made: Statistics, ε = 1." in page


def test_what_goes_wrong_is_said_in_a_sentence(home):
    missing = ("--out", home / "a", "--ledger", home / "missing.sqlite")
    assert "there is no ledger" in release(home, *missing, code=2)
    assert "add up to 1" in release(
        *(home, "--out", home / "a", "--seed", 1, "--budget-split", 1, 1, 1, 1), code=2
    )
    none = ("--out", home / "a", "--allocation", "none")
    assert "say --not-private" in release(home, *none, code=2)
    release(home, *none, "--not-private")
    out = ("--out", home / "b", "--ledger", home / "ledger.sqlite")
    assert "epsilon" in release(home, *out, "--epsilon", 5, code=2)
    assert not (home / "b").exists()
