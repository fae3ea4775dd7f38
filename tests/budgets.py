"""Budgets that pay for one release, and for no other."""


def just_enough(ledger, plan, cohorts):
    """Give everybody who pays what this one plan needs; for images it is the queries."""
    names = ["queries"] if plan.unit == "image" else cohorts
    ledger.set_budget(
        names, plan.unit, epsilon=plan.epsilon, delta=plan.delta, conversion=plan.conversion
    )
