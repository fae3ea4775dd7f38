"""A ledger and releases of an earlier version: nothing is charged twice, and nothing is forgotten.

`ledger-v3` was made by the code of commit 2ff47ea (`ledger-v3/make.sh`) and is never written again:
budgets of three sites in three units, of queries, and of a cohort that is frozen; rules; releases
of features, of images, by the paper's accounting, of gradients; one that was refused, and one that
was killed between charge and publication, with its private folder. Where units get other names,
`golden.compare.RENAMED` says which; every number stays.
"""

import json
import shutil
from pathlib import Path

import pytest

from canal.errors import BudgetExceededError, ForbiddenError, LedgerError, LedgerTamperedError
from canal.privacy import Charge, Ledger
from canal.privacy.ledger import balances, head_of
from canal.privacy.randomness import Secret
from canal.release.mechanism import digest
from canal.release.workspace import charge_key
from golden.compare import differences, renamed
from typed import here

OLD = Path(__file__).parent / "ledger-v3"
EXPECTED = renamed(json.loads((OLD / "expected.json").read_text()))
SITES = ("north", "south", "west")


@pytest.fixture
def home(tmp_path):
    """A copy, with the permissions that a repository does not keep."""
    copy = shutil.copytree(OLD, tmp_path / "old")
    for name in ("ledger.sqlite.patients", "stopped.private/secret"):
        (copy / name).chmod(0o600)
    return copy


@pytest.fixture
def ledger(home):
    return Ledger(home / "ledger.sqlite", must_exist=True)


def test_every_unit_has_spent_what_it_had_spent(ledger):
    found = [vars(each) for each in balances(ledger.rows())]
    assert not differences(EXPECTED["balances"], json.loads(json.dumps(found)))


def test_the_chain_holds_and_every_head_is_known(ledger, home):
    rows = ledger.verify(head=EXPECTED["head"])
    assert (head_of(rows), len(rows)) == (EXPECTED["head"], EXPECTED["rows"])
    ledger.check(())
    for name in ("features", "gradients"):
        receipt = json.loads((home / name / "manifest.json").read_text())["ledger"]
        ledger.verify(head=list(receipt["head"].values()))
    with pytest.raises(LedgerTamperedError):
        ledger.verify(head="0" * 64)


def charges_of(key):
    rows = (row for row in EXPECTED["charges"] if row[-1] == key)
    return [Charge(cohort, unit, rho, draws) for cohort, unit, rho, draws, _ in rows]


def test_what_was_charged_is_not_charged_again(ledger, home):
    keys = list(dict.fromkeys(row[-1] for row in EXPECTED["charges"]))
    said = [ledger.reserve(key, charges_of(key)) for key in keys]
    assert said == ["committed"] * (len(keys) - 1) + ["reserved"]
    assert len(ledger.rows()) == EXPECTED["rows"]
    # The one that was killed finds its charge from what is on its disk.
    private = home / "stopped.private"
    claim = digest(json.loads((private / "claim.json").read_text()))
    assert charge_key(Secret.load(private / "secret"), claim) == keys[-1]
    ledger.commit(keys[-1], note="finished by a later version")
    assert not any(each.uncommitted for each in balances(ledger.rows()))


@pytest.mark.parametrize("of", EXPECTED["balances"], ids=lambda of: f"{of['cohort']} {of['unit']}")
def test_what_is_left_may_be_spent_and_no_more(ledger, of):
    cohort, unit, left = of["cohort"], of["unit"], of["remaining"]
    with pytest.raises(BudgetExceededError):
        ledger.reserve("a", [Charge(cohort, unit, left * (1 + 1e-9) + 1e-300)])
    if left:
        assert ledger.reserve("a", [Charge(cohort, unit, left * (1 - 1e-9))]) == "new"
        with pytest.raises(BudgetExceededError):
            ledger.reserve("b", [Charge(cohort, unit, 1e-6 * left)])


def test_who_has_no_budget_pays_for_nothing(ledger):
    with pytest.raises(LedgerError, match=r"has no .* budget in this ledger"):
        ledger.reserve("a", [Charge("east", EXPECTED["balances"][0]["unit"], 0.1)])


def test_rules_are_in_force(ledger):
    for site in SITES:
        with pytest.raises(ForbiddenError):
            ledger.check_allowed([site], seeded=False, noiseless=True)
    for site in ("north", "west"):
        with pytest.raises(ForbiddenError):
            ledger.check_allowed([site], seeded=True, noiseless=False)
    ledger.check_allowed(["south"], seeded=True, noiseless=False)


def test_patients_stay_bound_to_the_name_that_pays_for_them(ledger, home):
    people = [frozenset(each) for each in json.loads((home / "people.json").read_text())]
    unit = EXPECTED["balances"][-1]["unit"]
    ledger.set_budget("second name", unit, epsilon=8.0, delta=1e-5)
    with pytest.raises(LedgerError, match="west"):
        ledger.reserve("a", [Charge("second name", unit, 0.1)], people={"second name": people})
    assert ledger.reserve("a", [Charge("west", unit, 0.1)], people={"west": people}) == "new"
    (home / "ledger.sqlite.patients").unlink()
    with pytest.raises(LedgerError):
        ledger.check(())


@pytest.mark.parametrize("name", ["features", "gradients"])
def test_releases_are_still_read_and_hold(home, name):
    words = ("release", "verify", home / name, "--ledger", home / "ledger.sqlite", "--json")
    ended, said, complained = here(home, home / "cache", *words)
    assert ended == 0, complained
    checks = {check["what"]: check["passed"] for check in json.loads(said)["checks"]}
    assert checks["ledger"]
    assert False not in checks.values(), checks
