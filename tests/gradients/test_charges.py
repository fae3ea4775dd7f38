"""Who pays for adapters: every cohort under both relations, and never less than it costs."""

from dataclasses import replace

import pytest

from budgets import just_enough
from canal.errors import BudgetExceededError, LedgerError
from canal.gradients.plan import AdapterPlan
from canal.privacy import Ledger
from canal.release.charges import charges, covers
from canal.release.publish import paid

PLAN = AdapterPlan(epsilon=8.0, patients=100, parameters=50, sites=2, count=0.1)
COHORTS = ("north", "south")


def entries(calibrated):
    return paid("key", charges(calibrated, COHORTS), None)["charges"]


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_every_cohort_pays_under_both_relations(relation):
    made = replace(PLAN, relation=relation, count=0.0).calibrate()
    due = charges(made, COHORTS)
    assert {(each.cohort, each.unit) for each in due} == {
        (cohort, unit) for cohort in COHORTS for unit in ("membership", "patient")
    }
    needed = {"add-remove": "membership", "replace": "patient"}[relation]
    assert {each.unit for each in due if each.needs_budget} == {needed}
    for each in due:
        assert each.rho == made.guarantee.rho(each.unit)
        assert each.draws == 50 * PLAN.rounds
    # Whoever is replaced moves things twice as far.
    rho = {each.unit: each.rho for each in due}
    assert rho["patient"] == pytest.approx(4 * rho["membership"])


def test_every_draw_of_every_share_is_charged():
    plan = replace(PLAN, trust="secure-sum")
    assert {each.draws for each in charges(plan.calibrate(), COHORTS)} == {
        2 * (50 * PLAN.rounds + 1)
    }


def test_charges_too_small_are_found():
    """Negative control of `covers`: a little less rho, one draw less, or somebody missing."""
    made = PLAN.calibrate()
    due = entries(made)
    assert covers(due, made, COHORTS)
    # Another machine has other last bits.
    assert covers([each | {"rho": each["rho"] * (1 - 2.0**-50)} for each in due], made, COHORTS)
    for place, entry in enumerate(due):
        for change in (
            {"rho": entry["rho"] * (1 - 1e-12)},
            {"draws": entry["draws"] - 1},
            {"cohort": "west"},
            {"unit": "image"},
        ):
            assert not covers([*due[:place], entry | change, *due[place + 1 :]], made, COHORTS)
    assert not covers(due[1:], made, COHORTS)
    assert not covers([], made, COHORTS)
    assert not covers(due, made, ("north",))
    assert not covers(due, replace(PLAN, epsilon=8.1).calibrate(), COHORTS)


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
@pytest.mark.parametrize("conversion", ["exact", "paper"])
def test_a_budget_of_exactly_enough_pays_for_one_such_release(relation, conversion, tmp_path):
    """To the last bit, and not for a second one."""
    plan = replace(PLAN, relation=relation, conversion=conversion, count=0.0)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    just_enough(ledger, plan, COHORTS)
    due = charges(plan.calibrate(), COHORTS)
    assert ledger.reserve("first", due) == "new"
    assert ledger.balance("north", plan.unit).epsilon_spent <= plan.epsilon
    with pytest.raises(BudgetExceededError):
        ledger.reserve("second", due)


def test_without_a_budget_nobody_pays(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_budget("west", "patient", epsilon=1.0, delta=1e-5)
    with pytest.raises(LedgerError, match="'north', 'south' have no membership budget"):
        ledger.reserve("first", charges(PLAN.calibrate(), COHORTS))


def test_a_budget_for_those_who_are_replaced_binds_too(tmp_path):
    """It need not be there; where it is, it counts, whichever relation the plan is for."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_budget(COHORTS, "membership", epsilon=8.0, delta=1e-5)
    ledger.set_budget("south", "patient", epsilon=8.0, delta=1e-5)
    with pytest.raises(BudgetExceededError) as caught:
        ledger.reserve("first", charges(PLAN.calibrate(), COHORTS))
    assert (caught.value.cohort, caught.value.unit) == ("south", "patient")
    assert not [row for row in ledger.rows() if row.action == "reserve"]
