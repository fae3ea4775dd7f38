"""Who pays for a release, and that it is never less than the release costs."""

import math
import shutil
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets import enough_for_patients, just_enough
from canal.data import overlap
from canal.errors import BudgetExceededError, ForbiddenError, LedgerError
from canal.features.plan import Plan
from canal.features.release import Options, create
from canal.privacy import UNITS, Charge, Ledger, Participants
from canal.release.charges import charges, covers, payers
from canal.release.digits import number, upwards
from canal.release.manifest import Manifest
from canal.release.verification import verify

COHORTS = ("north", "south", "west")
# Replaced, or added and removed: of arbitrary teachers, they cost the same.
PATIENT = ("patient", "membership")
C, M = 12, 5
public_or_private = st.sampled_from(["public", "private"])


@st.composite
def plans(draw):
    """Any plan that can be released, from absurdly strict to absurdly loose."""
    queries = draw(st.sampled_from([1, 2, 7, 40, 1000, 30_000]))
    unit = draw(st.sampled_from(UNITS))
    source = public_or_private if unit != "image" else st.just("private")
    return Plan(
        epsilon=10 ** draw(st.floats(-2, 4)),
        delta=10 ** draw(st.floats(-12, -1)),
        participants=Participants(
            draw(st.integers(1, 60)), queries, draw(st.integers(1, min(queries, 5)))
        ),
        channels=C,
        released=M,
        grid=draw(st.sampled_from([(1, 1), (3, 2), (2, 2, 2)])),
        unit=unit,
        conversion=draw(st.sampled_from(["exact", "paper"])),
        nonnegative=draw(st.booleans()),
        caps_source=draw(source),
        importance_source=draw(source),
        allocation=draw(st.sampled_from(["canal", "uniform", "reverse"])),
        caps_bound=draw(st.sampled_from([None, 1e-3, 1e3])),
    )


def entries(due):
    return [{"cohort": c.cohort, "unit": c.unit, "rho": c.rho, "draws": c.draws} for c in due]


def exact_cost(calibrated, unit):
    """rho in rational numbers, from the sigmas as they are drawn and the design's table."""
    plan, people = calibrated.plan, calibrated.plan.participants
    cost = Fraction(0)
    for name, source in plan.sources.items():
        if source == "public":
            continue
        bound = Fraction(plan.bound if name == "caps" else 1.0)
        share = Fraction(people.images_per_person, people.queries)
        reach = 2 * (bound * (Fraction(1, people.teachers) if unit in PATIENT else share)) ** 2
        cost += reach / Fraction(float(calibrated.sigma(name)[0])) ** 2 / 2
    weight = 1 if unit == "image" else Fraction(1, people.teachers)
    count = people.queries if unit in PATIENT else people.images_per_person
    for sigma in calibrated.published_sigma.tolist():
        cost += count * (2 if plan.nonnegative else 4) * weight**2 / Fraction(sigma) ** 2 / 2
    return cost


weights = st.integers(0, 2**32).map(lambda s: np.random.default_rng(s).lognormal(0, 3, C))


@settings(max_examples=150)
@given(plans(), weights)
def test_a_charge_covers_what_the_release_costs(plan, scores):
    """Charged before the weights are known; exact to the last bit, in every unit."""
    everyone = [(cohort, unit) for cohort in COHORTS for unit in (*PATIENT, "paper")]
    if "public" not in plan.sources.values():
        everyone.append(("queries", "image"))
    due = charges(plan.calibrate(), COHORTS)
    assert sorted((charge.cohort, charge.unit) for charge in due) == sorted(everyone)
    made = plan.calibrate(scores)
    for charge in due:
        assert Fraction(charge.rho) >= exact_cost(made, charge.unit)
        assert charge.draws >= made.guarantee.draws(charge.unit)
        # Not much more either: what is charged is what is used.
        assert charge.rho == pytest.approx(made.guarantee.rho(charge.unit), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.00051, 0.00234, 0.00302])
def test_a_tiny_epsilon_is_covered_in_other_units_too(epsilon):
    """Down here rounding takes some of the share, and how much depends on the weights."""
    private = {"caps_source": "private", "importance_source": "private"}
    plan = Plan(epsilon, 1e-9, Participants(3, 40), C, M, (2, 2), unit="paper", **private)
    due = charges(plan.calibrate(), ["north"])
    made = plan.calibrate(np.arange(1.0, C + 1))
    assert {charge.unit for charge in due} == {"paper", *PATIENT, "image"}
    assert {charge.unit for charge in due if charge.needs_budget} == {"paper", "patient"}
    for charge in due:
        assert Fraction(charge.rho) >= exact_cost(made, charge.unit)
    assert covers(entries(due), made, ["north"])


@settings(max_examples=60)
@given(plans(), weights)
def test_what_a_release_costs_is_within_what_was_asked_for(plan, scores):
    """In fifty digits, with nothing rounded in our favour."""
    rho = exact_cost(plan.calibrate(scores), plan.unit)
    with mpmath.workdps(50):
        rho, delta = mpmath.mpf(rho.numerator) / rho.denominator, mpmath.mpf(plan.delta)
        if plan.conversion == "paper":
            assert rho + 2 * mpmath.sqrt(rho * mpmath.log(1 / delta)) <= plan.epsilon
            return
        mu, epsilon = mpmath.sqrt(2 * rho), mpmath.mpf(plan.epsilon)
        tails = [mpmath.ncdf(-epsilon / mu + sign * mu / 2) for sign in (1, -1)]
        assert tails[0] - mpmath.exp(epsilon) * tails[1] <= delta


def test_charges_too_small_are_found():
    """Negative control of `covers`: a little less rho, or one draw less, does not pay."""
    plan = Plan(8.0, 1e-5, Participants(3, 40), C, M, (2, 2))
    made = plan.calibrate(np.arange(1.0, C + 1))
    due = entries(charges(made, ["north"]))
    assert covers(due, made, ["north"])
    # Another machine has other last bits.
    assert covers([each | {"rho": each["rho"] * (1 - 2.0**-50)} for each in due], made, ["north"])
    for place, entry in enumerate(due):
        for change in (
            {"rho": entry["rho"] * (1 - 1e-9)},
            {"draws": entry["draws"] - 1},
            {"cohort": "south"},
            {"unit": "image"},
        ):
            assert not covers([*due[:place], entry | change, *due[place + 1 :]], made, ["north"])
    assert not covers(due[1:], made, ["north"])
    assert not covers([], made, ["north"])
    assert not covers(due, made, ["north", "south"])


def test_the_plan_says_who_pays():
    plan = Plan(8.0, 1e-5, Participants(3, 40), C, M, (2, 2))
    patients = [(name, "patient") for name in COHORTS]
    assert payers(plan, COHORTS) == patients
    paper = [(name, "paper") for name in COHORTS]
    assert payers(replace(plan, unit="paper"), COHORTS) == paper + patients
    assert payers(replace(plan, unit="image"), COHORTS) == [("queries", "image"), *patients]


def rows_of(ledger, action="reserve"):
    return {(row.cohort, row.unit): row.rho for row in ledger.rows() if row.action == action}


def test_a_patient_budget_binds_even_when_the_plan_counts_as_the_paper_does(
    tmp_path, ensemble, queries, make_plan, make_ledger
):
    """The paper's epsilon of 8 costs a patient far more than 20, and that is refused."""
    ledger, plan = make_ledger("patient", epsilon=20.0), make_plan("paper")
    start = Options(progress=lambda count: pytest.fail("a network was asked"))
    ledger.set_budget(COHORTS, "paper", epsilon=8.0, delta=1e-5, conversion="paper")
    with pytest.raises(BudgetExceededError) as caught:
        create(tmp_path / "r", ensemble, queries, plan, ledger=ledger, options=start)
    assert caught.value.unit == "patient"
    assert not rows_of(ledger)
    assert not (tmp_path / "r").exists()

    ledger.set_budget(COHORTS, "patient", epsilon=1e4, delta=1e-5)
    release = create(tmp_path / "r", ensemble, queries, plan, ledger=ledger)
    charged = rows_of(ledger)
    everyone = {(name, unit) for name in COHORTS for unit in (*PATIENT, "paper")}
    assert set(charged) == everyone | {("queries", "image")}
    for (_, unit), rho in charged.items():
        stated = release.statement["guarantee"]["patient" if unit in PATIENT else unit]["rho"]
        assert stated <= rho < stated * (1 + 1e-9)
    assert rows_of(ledger, "commit") == charged


@pytest.mark.parametrize(
    ("choices", "payer"), [({}, "north"), ({"unit": "image"}, "queries")], ids=["paper", "image"]
)
def test_whatever_a_plan_counts_in_its_patients_need_a_budget(
    tmp_path, ensemble, queries, make_plan, choices, payer
):
    """Such plans were released at a patient's epsilon of 118 and 81 with no budget for patients."""
    plan, ledger = make_plan("paper", **choices), Ledger(tmp_path / "ledger")
    start = Options(progress=lambda count: pytest.fail("a network was asked"))
    cohorts = COHORTS if payer == "north" else [payer]
    ledger.set_budget(cohorts, plan.unit, epsilon=1e4, delta=1e-5)
    ledger.set_budget("west", "patient", epsilon=1e4, delta=1e-5)
    lacking = (
        r"'north', 'south' have no patient budget.*"
        r"ledger budget LEDGER --cohort north --cohort south --unit patient"
    )
    with pytest.raises(LedgerError, match=lacking):
        create(tmp_path / "r", ensemble, queries, plan, ledger=ledger, options=start)
    patient = plan.calibrate().guarantee.epsilon(1e-5, "patient")
    ledger.set_budget(COHORTS, "patient", epsilon=0.99 * patient, delta=1e-5)
    with pytest.raises(BudgetExceededError, match="the patient budget of cohort 'north'"):
        create(tmp_path / "r", ensemble, queries, plan, ledger=ledger, options=start)
    assert not rows_of(ledger)
    assert not (tmp_path / "r").exists()
    ledger.set_budget(COHORTS, "patient", epsilon=1.01 * patient, delta=1e-5)
    create(tmp_path / "r", ensemble, queries, plan, ledger=ledger)
    with pytest.raises(BudgetExceededError):
        create(tmp_path / "s", ensemble, queries, plan, ledger=ledger)


def test_a_budget_that_is_lowered_later_finds_what_was_spent(
    tmp_path, ensemble, queries, make_plan, make_ledger
):
    """Whatever the unit of a plan, its cost to a patient is on record."""
    ledger = make_ledger("paper", epsilon=20.0)
    release = create(tmp_path / "r", ensemble, queries, make_plan("paper"), ledger=ledger)
    patient = release.statement["guarantee"]["patient"]
    ledger.set_budget(COHORTS, "patient", epsilon=8.0, delta=1e-5)
    balance = ledger.balance("north", "patient")
    assert balance.remaining == 0
    assert balance.epsilon_spent == pytest.approx(patient["epsilon_exact"], rel=1e-6)
    with pytest.raises(BudgetExceededError):
        create(tmp_path / "s", ensemble, queries, make_plan(), ledger=ledger)


def test_an_image_level_plan_is_paid_by_the_queries(tmp_path, ensemble, queries, make_plan):
    plan = make_plan("paper", unit="image")
    ledger = Ledger(tmp_path / "ledger")
    enough_for_patients(ledger, COHORTS)
    with pytest.raises(LedgerError, match=r"'queries' has no image budget.*canal ledger budget"):
        create(tmp_path / "r", ensemble, queries, plan, ledger=ledger)
    just_enough(ledger, plan, ensemble.cohorts)
    create(tmp_path / "r", ensemble, queries, plan, ledger=ledger)
    assert {("queries", "image"), ("north", "patient"), ("west", "paper")} < set(rows_of(ledger))


def test_images_with_a_budget_are_not_read_in_the_clear(
    tmp_path, ensemble, queries, make_plan, ledger
):
    ledger.set_budget("queries", "image", epsilon=100.0, delta=1e-5)
    with pytest.raises(LedgerError, match="in the clear; take private caps"):
        create(tmp_path / "r", ensemble, queries, make_plan(), ledger=ledger)
    assert not rows_of(ledger)


@pytest.mark.parametrize(
    "choices",
    [
        {"preset": "honest"},
        {"preset": "paper"},
        {"preset": "paper", "unit": "image", "epsilon": 0.3, "conversion": "exact"},
        {"preset": "honest", "caps_source": "private", "epsilon": 100.0, "delta": 1e-9},
    ],
)
def test_a_budget_of_exactly_enough(tmp_path, ensemble, queries, make_plan, choices):
    """One release fits; a second does not; a third, smaller one neither."""
    plan, ledger = make_plan(**choices), Ledger(tmp_path / "ledger")
    just_enough(ledger, plan, ensemble.cohorts)
    create(tmp_path / "first", ensemble, queries, plan, ledger=ledger)
    assert all(check.passed for check in verify(tmp_path / "first", ledger))
    rows = ledger.rows()
    with pytest.raises(BudgetExceededError):
        create(tmp_path / "second", ensemble, queries, plan, ledger=ledger)
    smaller = replace(plan, epsilon=plan.epsilon / 20)
    with pytest.raises(BudgetExceededError):
        create(tmp_path / "third", ensemble, queries, smaller, ledger=ledger)
    # The first again is the first: it is there, and pays nothing.
    create(tmp_path / "first", ensemble, queries, plan, ledger=ledger)
    assert ledger.rows() == rows
    balance = ledger.balance(*payers(plan, ensemble.cohorts)[0])
    # Rounded up when it is read back, so the last bit may be above.
    assert balance.epsilon_spent == pytest.approx(plan.epsilon, rel=1e-9)
    assert 0 <= balance.remaining < 1e-9 * balance.budget
    assert math.isclose(balance.budget, balance.spent, rel_tol=1e-6)


@pytest.mark.parametrize("kind", ["seeded", "noiseless"])
def test_what_a_ledger_forbids_is_not_computed(tmp_path, ensemble, queries, make_plan, kind):
    """Nothing is charged for it, so nobody would have asked the ledger."""
    ledger = Ledger(tmp_path / "ledger")
    how = {"seed": 1} if kind == "seeded" else {"not_private": True}
    plan = make_plan(allocation="canal" if kind == "seeded" else "none")
    ledger.forbid("south", [kind])
    start = Options(progress=lambda count: pytest.fail("a network was asked"))
    with pytest.raises(ForbiddenError, match=f"forbids {kind} releases of 'south'"):
        create(tmp_path / "r", ensemble, queries, plan, ledger=ledger, options=start, **how)
    assert not list(tmp_path.glob("r*"))
    ledger.allow("south", [kind])
    assert not create(tmp_path / "r", ensemble, queries, plan, ledger=ledger, **how).private
    assert not rows_of(ledger)


def test_a_cohort_is_its_patients_not_its_name(tmp_path, ensemble, queries, make_plan, ledger):
    """Released again under another name, with the same patients: there is no second budget."""

    def crowd(number):
        return tuple(frozenset({f"{100 * number + each:064x}"}) for each in range(9))

    teachers = [replace(t, patients=crowd(n)) for n, t in enumerate(ensemble.teachers)]
    create(
        *(tmp_path / "r", replace(ensemble, teachers=tuple(teachers)), queries, make_plan()),
        ledger=ledger,
    )
    assert [row.cohort for row in ledger.rows() if row.action == "bind"] == list(COHORTS)
    charged = rows_of(ledger)
    ledger.set_budget("renamed", "patient", epsilon=20.0, delta=1e-5)
    renamed = [replace(teachers[0], cohort="renamed"), *teachers[1:]]
    start = Options(progress=lambda count: pytest.fail("a network was asked"))
    with pytest.raises(LedgerError, match="9 of the 9 patients of cohort 'renamed' are bound to "):
        create(
            *(tmp_path / "s", replace(ensemble, teachers=tuple(renamed)), queries, make_plan()),
            ledger=ledger,
            options=start,
        )
    # A patient of another cohort of the ledger, whose image the recipient sees.
    public = [frozenset(overlap.digests(queries.arrays)[:1])]
    before = [Charge("before", "patient", 0.1, needs_budget=False)]
    ledger.reserve("earlier", before, people={"before": public})
    with pytest.raises(LedgerError, match="1 of cohort 'before'; leave them out of the queries"):
        create(
            *(tmp_path / "s", replace(ensemble, teachers=tuple(teachers)), queries, make_plan()),
            ledger=ledger,
            options=start,
        )
    assert rows_of(ledger) == charged | {("before", "patient"): 0.1}
    assert not (tmp_path / "s").exists()


def test_a_card_has_the_head_and_the_running_total(tmp_path, ensemble, queries, make_plan, ledger):
    """And a copy of a ledger that was charged is found by them."""
    first = create(*(tmp_path / "first", ensemble, queries, make_plan(epsilon=2.0)), ledger=ledger)
    for suffix in ("", ".patients"):
        shutil.copy(f"{ledger.path}{suffix}", tmp_path / f"copy.sqlite{suffix}")
    copy = Ledger(tmp_path / "copy.sqlite")
    create(tmp_path / "second", ensemble, queries, make_plan(epsilon=3.0), ledger=copy)
    made = Manifest.read(tmp_path / "second")
    totals = {(each["cohort"], each["unit"]): each for each in made.ledger["totals"]}
    assert set(totals) == {(name, "patient") for name in COHORTS}
    spent = copy.balance("north", "patient").epsilon_spent
    assert totals["north", "patient"]["epsilon_spent"] == spent
    assert first.manifest.ledger["totals"][0]["epsilon_spent"] <= 2.0 < 3.0 < spent < 5.0
    card = (tmp_path / "second" / "card.html").read_text()
    for said in (*made.ledger["head"].values(), f">{number(upwards(spent))}<"):
        assert said in card
    assert all(check.passed for check in verify(tmp_path / "second", copy))
    assert all(check.passed for check in verify(tmp_path / "first", ledger))
    assert all(check.passed for check in verify(tmp_path / "first", copy))
    (alarm,) = (each for each in verify(tmp_path / "second", ledger) if each.passed is False)
    assert alarm.what == "ledger"
    assert "another copy of this ledger was charged" in alarm.detail
    other = Ledger(tmp_path / "other.sqlite")
    (alarm,) = (each for each in verify(tmp_path / "second", other) if each.passed is False)
    assert "this is another ledger" in alarm.detail
