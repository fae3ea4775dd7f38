"""The ledger: arithmetic of budgets and charges, and what it refuses."""

import math
import re

import numpy as np
import pytest

from canal.errors import (
    BudgetExceededError,
    CommittedError,
    ForbiddenError,
    InvalidValueError,
    LedgerError,
    UnknownUnitError,
)
from canal.privacy import Charge, Secret, epsilon_from_rho, rho_from_epsilon
from canal.privacy.precision import ETA


def test_reserve_then_commit(ledger):
    charges = [Charge("north", "patient", 0.5), Charge("queries", "image", 0.01)]
    assert ledger.reserve("a", charges, note="first release") == "new"
    left = ledger.balance("north", "patient")
    assert (left.spent, left.uncommitted) == (0.5, 0.5)
    assert left.remaining == pytest.approx(rho_from_epsilon(8, 1e-5) - 0.5)
    assert left.epsilon_spent == epsilon_from_rho(0.5, 1e-5)
    ledger.commit("a")
    left = ledger.balance("north", "patient")
    assert (left.spent, left.uncommitted) == (0.5, 0.0)
    assert ledger.balance("queries", "image").spent == 0.01


def test_the_same_release_is_paid_once(ledger):
    charge = [Charge("north", "patient", 0.5)]
    assert [ledger.reserve("a", charge) for _ in range(3)] == ["new", "reserved", "reserved"]
    ledger.commit("a")
    ledger.commit("a")
    assert ledger.reserve("a", charge) == "committed"
    assert ledger.balance("north", "patient").spent == 0.5
    assert [row.action for row in ledger.rows()].count("commit") == 1


def test_the_same_key_with_other_charges_is_refused(ledger):
    ledger.reserve("a", [Charge("north", "patient", 0.5)])
    with pytest.raises(LedgerError, match="different key"):
        ledger.reserve("a", [Charge("north", "patient", 0.4)])


def test_past_the_budget_is_refused_with_numbers(ledger):
    total = rho_from_epsilon(8, 1e-5)
    ledger.reserve("a", [Charge("north", "patient", 1.0)])
    asked = [Charge("north", "patient", 1.0)]
    with pytest.raises(BudgetExceededError, match=r"requested, .* remaining") as caught:
        ledger.reserve("b", asked)
    with pytest.raises(BudgetExceededError, match=str(caught.value).split("(")[0]):
        ledger.check(asked)
    as_epsilons = [epsilon_from_rho(rho, 1e-5) for rho in (1.0, total - 1.0)]
    said = re.findall(r"epsilon ([\d.]+) of this unit requested, ([\d.]+) rem", str(caught.value))
    assert [float(value) for value in said[0]] == pytest.approx(as_epsilons, rel=1e-3)
    assert caught.value.requested == 1.0
    assert caught.value.remaining == pytest.approx(total - 1.0)
    assert ledger.balance("north", "patient").spent == 1.0


def test_what_fits_is_not_refused_and_not_charged(ledger):
    ledger.check([Charge("north", "patient", 1.0)])
    assert ledger.balance("north", "patient").spent == 0
    with pytest.raises(LedgerError, match="'west' has no patient budget"):
        ledger.check([Charge("west", "patient", 1.0)])


def test_all_cohorts_or_none(ledger):
    with pytest.raises(BudgetExceededError):
        ledger.reserve("a", [Charge("north", "patient", 0.1), Charge("queries", "image", 99.0)])
    assert ledger.balance("north", "patient").spent == 0


def test_a_budget_is_spent_to_the_last_bit_and_not_one_more(ledger):
    total = rho_from_epsilon(8, 1e-5)
    ledger.reserve("most", [Charge("north", "patient", total / 3)])
    rest = ledger.balance("north", "patient").remaining
    with pytest.raises(BudgetExceededError):
        ledger.reserve("more", [Charge("north", "patient", math.nextafter(rest, math.inf))])
    ledger.reserve("rest", [Charge("north", "patient", rest)])
    assert ledger.balance("north", "patient").remaining <= math.ulp(total)


def test_a_fresh_budget_covers_exactly_what_its_epsilon_affords(ledger):
    ledger.reserve("all", [Charge("north", "patient", rho_from_epsilon(8, 1e-5))])
    assert ledger.balance("north", "patient").epsilon_spent <= 8.0


def test_no_budget_no_charge(ledger):
    for charge in (Charge("south", "patient", 0.1), Charge("north", "image", 0.1)):
        with pytest.raises(LedgerError, match="canal ledger budget"):
            ledger.reserve("a", [charge])


def test_a_new_budget_replaces_the_old_and_forgets_nothing(ledger):
    ledger.reserve("a", [Charge("north", "patient", 1.0)])
    ledger.set_budget("north", "patient", epsilon=1.0, delta=1e-5)
    assert ledger.balance("north", "patient").remaining == 0
    assert [row.action for row in ledger.rows()] == ["budget", "budget", "reserve", "budget"]


@pytest.mark.parametrize("rho", [1, np.float32(0.5), np.float64(0.25)])
def test_any_kind_of_number_can_be_charged(ledger, rho):
    ledger.reserve("a", [Charge("north", "patient", rho, draws=np.int64(7))])
    assert ledger.balance("north", "patient").spent == float(rho)
    ledger.commit("a")
    ledger.verify()


def test_finite_precision_is_charged_across_releases(ledger):
    """Half the budget twice: what the sampler's precision adds must be covered as well."""
    draws = 10**9
    for key in "ab":
        half = ledger.balance("north", "patient").remaining / (2 if key == "a" else 1)
        with pytest.raises(BudgetExceededError):
            ledger.reserve(key + "!", [Charge("north", "patient", 2 * half, draws)])
        half *= 1 - 1e-3
        ledger.reserve(key, [Charge("north", "patient", half, draws)])
    balance = ledger.balance("north", "patient")
    assert balance.draws == 2 * draws
    ideal = epsilon_from_rho(balance.spent, 1e-5)
    assert balance.epsilon_spent >= ideal + 2 * ETA * balance.draws
    assert balance.epsilon_spent <= 8.0


def test_another_secret_is_another_release(ledger):
    """With a fresh secret the noise is fresh: the same plan must be paid for again."""
    keys = [Secret.seeded(seed).key(b"ledger", b"plan").hex() for seed in (1, 1, 2)]
    told = [ledger.reserve(key, [Charge("north", "patient", 0.1)]) for key in keys]
    assert told == ["new", "reserved", "new"]
    assert ledger.balance("north", "patient").spent == 0.2


def test_a_cost_without_a_budget_counts_against_one_that_is_set_later(ledger):
    unasked = Charge("north", "paper", 0.5, needs_budget=False)
    ledger.reserve("a", [Charge("north", "patient", 0.1), unasked])
    ledger.set_budget("north", "paper", epsilon=8.0, delta=1e-5)
    assert ledger.balance("north", "paper").spent == 0.5
    with pytest.raises(BudgetExceededError):  # and a budget binds, needed or not
        ledger.reserve("b", [Charge("north", "paper", 5.0, needs_budget=False)])
    with pytest.raises(LedgerError, match="has no paper budget"):
        ledger.reserve("c", [Charge("south", "paper", 0.1)])


def test_several_cohorts_get_a_budget_together_or_not_at_all(ledger):
    before = len(ledger.rows())
    ledger.set_budget(["east", "west"], "paper", epsilon=2.0, delta=1e-6, conversion="paper")
    assert len(ledger.rows()) == before + 2
    for name in ("east", "west"):
        balance = ledger.balance(name, "paper")
        assert balance.remaining == rho_from_epsilon(2.0, 1e-6, "paper")
        assert (balance.epsilon_budget, balance.delta) == (2.0, 1e-6)
        assert balance.conversion == "paper"
    with pytest.raises(InvalidValueError, match="readable"):
        ledger.set_budget(["north", ""], "patient", epsilon=99.0, delta=1e-5)
    assert len(ledger.rows()) == before + 2
    assert ledger.balance("north", "patient").epsilon_budget == 8.0


def test_a_commit_keeps_the_digest_of_what_was_published(ledger):
    """One charge pays for one content: whoever commits another to it is refused."""
    charges = [Charge("north", "patient", 0.5), Charge("queries", "image", 0.01)]
    ledger.reserve("a", charges, note="release 1")
    ledger.commit("a", note="digest of a manifest")
    ledger.commit("a", note="digest of a manifest")
    with pytest.raises(CommittedError, match="other content"):
        ledger.commit("a", note="digest of a forgery")
    notes = [(row.action, row.note) for row in ledger.rows() if row.key == "a"]
    assert notes == [("reserve", "release 1")] * 2 + [("commit", "digest of a manifest")] * 2
    ledger.verify()


def test_a_budget_of_zero_freezes_a_cohort(ledger):
    ledger.set_budget("north", "patient", epsilon=0.0, delta=1e-5)
    with pytest.raises(BudgetExceededError, match="0 remaining"):
        ledger.reserve("a", [Charge("north", "patient", 1e-9)])


def test_bad_requests(ledger):
    with pytest.raises(InvalidValueError, match="epsilon"):
        ledger.set_budget("north", "patient", epsilon=math.inf, delta=1e-5)
    with pytest.raises(InvalidValueError, match="readable"):
        ledger.set_budget("\udcff", "patient", epsilon=1.0, delta=1e-5)
    with pytest.raises(UnknownUnitError):
        Charge("north", "pixel", 0.1)
    for rho in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidValueError, match="rho"):
            Charge("north", "patient", rho)
    with pytest.raises(InvalidValueError, match="cohort"):
        Charge("", "patient", 0.1)
    with pytest.raises(InvalidValueError, match="key"):
        ledger.reserve("", [Charge("north", "patient", 0.1)])
    with pytest.raises(InvalidValueError, match="same cohort"):
        ledger.reserve("a", [Charge("north", "patient", 0.1)] * 2)
    with pytest.raises(LedgerError, match="never reserved"):
        ledger.commit("a")


def test_a_cohort_forbids_releases_that_protect_nobody(ledger):
    """Each kind by itself, until it is allowed again; rows that stay, and cost nothing."""
    left = ledger.balance("north", "patient")
    ledger.forbid(["north", "south"], ["seeded", "noiseless"])
    ledger.allow("south", ["seeded"])
    ledger.check_allowed(["north", "south"], seeded=False, noiseless=False)
    ledger.check_allowed(["south", "west"], seeded=True, noiseless=False)
    for kinds in ({"seeded": True, "noiseless": False}, {"seeded": False, "noiseless": True}):
        (kind,) = (kind for kind, is_asked in kinds.items() if is_asked)
        with pytest.raises(ForbiddenError, match=f"ledger allow .* --cohort north --{kind}"):
            ledger.check_allowed(["west", "north"], **kinds)
    with pytest.raises(ForbiddenError, match="noiseless releases of 'north', 'south'"):
        ledger.check_allowed(["north", "south"], seeded=False, noiseless=True)
    assert ledger.balance("north", "patient") == left
    said = [(row.action, row.cohort, row.note) for row in ledger.verify()][2:]
    assert said == [
        *(
            ("forbid", name, kind)
            for name in ("north", "south")
            for kind in ("seeded", "noiseless")
        ),
        ("allow", "south", "seeded"),
    ]
    for cohort, kinds in (("north", []), ("north", ["public"]), (["north", ""], ["seeded"])):
        with pytest.raises(InvalidValueError):
            ledger.forbid(cohort, kinds)
    assert len(ledger.rows()) == 7
