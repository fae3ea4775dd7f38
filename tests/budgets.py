"""Budgets that pay for one release, and for no other."""


def enough_for_patients(ledger, cohorts):
    """What any plan that does not count patients may cost them."""
    ledger.set_budget(cohorts, "patient", epsilon=1e4, delta=1e-5)


def just_enough(ledger, plan, cohorts):
    """Give everybody who pays what this one plan needs; for images it is the queries.

    Where the plan counts in another unit than patients, those get more than enough.
    """
    if plan.unit in ("paper", "image"):
        enough_for_patients(ledger, cohorts)
    names = ["queries"] if plan.unit == "image" else cohorts
    ledger.set_budget(
        names, plan.unit, epsilon=plan.epsilon, delta=plan.delta, conversion=plan.conversion
    )
