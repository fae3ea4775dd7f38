"""A release of adapters: paid for first, made as it was asked for, and charged once."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from budgets import just_enough
from canal.errors import BudgetExceededError, LedgerError, ReleaseError
from canal.gradients.patients import Patients
from canal.gradients.release import mechanism_of
from canal.gradients.store import AdapterRelease
from canal.gradients.update import UpdateSettings
from canal.privacy import Ledger
from canal.release.mechanism import LocalFederation
from canal.release.publish import publish
from canal.release.verification import account, verify
from gradients.place import COHORTS, PAIRS, Killed, assert_charged_once


@pytest.mark.parametrize(
    ("allocation", "choices"),
    [
        ("flat", {"count": 0.05}),
        ("ellipsoid", {"conversion": "paper"}),
        ("channels", {"relation": "replace", "epsilon": 20.0}),
    ],
)
def test_a_release_that_anyone_can_check(allocation, choices, places, make_release, make_plan):
    place, plan = places(), make_plan(allocation, **choices)
    ledger = Ledger(place.out.with_name("own.sqlite"))
    just_enough(ledger, plan, COHORTS)
    told = []
    release = make_release(
        place.out, allocation, plan=choices, ledger=ledger.path, report=told.append
    )
    checks = verify(place.out, ledger)
    assert [check.what for check in checks if check.passed is not True] == []
    assert {"statement", "noise", "ledger"} <= {check.what for check in checks}
    assert release.private
    assert release.statement["stamp"] == ""

    price = account(release)
    made = plan.calibrate(release.manifest.statistics["weights"])
    for unit in ("membership", "patient"):
        epsilon = made.guarantee.epsilon(plan.delta, unit, plan.conversion)
        assert price["units"][unit]["epsilon"] == pytest.approx(epsilon)
        assert release.statement["guarantee"][unit]["epsilon"] == pytest.approx(epsilon)
        assert price["units"][unit]["rho"] == pytest.approx(made.guarantee.rho(unit))
    mine = price["units"][plan.unit]["epsilon"]
    assert (1 - 1e-9) * plan.epsilon <= mine <= plan.epsilon

    rows = [row for row in ledger.rows() if row.action == "reserve"]
    assert {(row.cohort, row.unit) for row in rows} == PAIRS
    for row in rows:
        assert row.rho == made.guarantee.rho(row.unit)
        assert row.draws == made.guarantee.draws(row.unit)
    # Told after every round: what it cost so far, up to all of it.
    assert [each.number for each in told] == [1, 2, 3]
    assert [each.epsilon for each in told] == sorted(each.epsilon for each in told)
    assert told[-1].epsilon == pytest.approx(mine)


def test_made_again_it_is_the_same_and_free(places, make_release):
    place = places()
    first = make_release(place.out, ledger=place.ledger)
    files, rows = place.files(), place.ledger.rows()
    again = make_release(place.out, ledger=place.ledger)
    assert (place.files(), place.ledger.rows()) == (files, rows)
    assert again.manifest == first.manifest
    assert_charged_once(place)


def test_nothing_private_is_published_or_left(places, make_release, sites):
    """The secret is for its owner while it is needed, and gone afterwards."""
    place, seen = places(), set()

    def look(told):
        seen.add((place.secret.read_bytes(), place.secret.stat().st_mode & 0o777))

    make_release(place.out, plan={"count": 0.05}, ledger=place.ledger, report=look)
    ((secret, mode),) = seen
    assert (len(secret), mode) == (32, 0o600)
    assert place.private.stat().st_mode & 0o777 == 0o700
    digests = [bytes.fromhex(site.digest) for site in sites]
    claim = (place.private / "claim.json").read_bytes()
    assert all(each.hex().encode() in claim for each in digests)  # so this search finds them
    assert sorted(path.name for path in place.private.iterdir()) == [
        *("claim.json", "finished", "lock", "mechanism.json", "plan.json", "public"),
        "record.json",
    ]
    for path in [*place.out.iterdir(), *place.private.rglob("*.*")]:
        assert secret not in path.read_bytes()
        assert secret.hex().encode() not in path.read_bytes()
    for content in place.files().values():
        for each in digests:
            assert each not in content
            assert each.hex().encode() not in content
    patients = AdapterRelease.open(place.out).patients
    assert patients != sum(len(site) for site in sites), "counted with noise"


def test_other_arguments_are_refused_where_a_release_was_begun(places, make_release, shared, sites):
    place = places()
    start = shared().start

    def stop(told):
        raise Killed

    with pytest.raises(Killed):
        make_release(place.out, ledger=place.ledger, report=stop)
    fewer = replace(sites[1].arrays, digest="one image less")
    others = [sites[0], Patients("ultrasound", fewer, chunk=4)]
    for change, what in (
        ({"plan": {"epsilon": 4.0}}, "plan"),
        ({"plan": {"patients": 13}}, "plan"),
        ({"plan": {"rounds": 4}}, "plan"),
        ({"seed": 3}, "noise"),
        ({"start": replace(start, update=UpdateSettings(step=0.1))}, "update"),
        ({"start": replace(start, initialisation="0" * 64)}, "initialisation"),
        ({"sites": others}, "patients"),
        ({"sites": sites[::-1]}, "cohorts, patien"),
    ):
        rows = place.ledger.rows()
        with pytest.raises(ReleaseError, match=f"an unfinished release with another {what}"):
            make_release(place.out, **{"ledger": place.ledger} | change)
        assert place.ledger.rows() == rows
    make_release(place.out, ledger=place.ledger)
    assert_charged_once(place)
    with pytest.raises(ReleaseError, match="holds a release with another plan"):
        make_release(place.out, ledger=place.ledger, plan={"epsilon": 4.0})


def test_what_a_ledger_refused_may_be_asked_for_otherwise(places, make_release):
    """No patient is asked for a release that cannot be paid, and nothing is charged."""
    place = places()
    asked = {"progress": lambda count: pytest.fail("a patient was asked")}
    with pytest.raises(BudgetExceededError) as caught:
        make_release(place.out, ledger=place.ledger, plan={"epsilon": 8.1}, **asked)
    assert caught.value.unit == "membership"
    assert not place.charges()
    assert not place.out.exists()
    make_release(place.out, ledger=place.ledger, plan={"epsilon": 5.0})
    assert {(cohort, unit) for _, cohort, unit, *_ in place.charges()} == PAIRS


def test_a_second_release_is_paid_for_too(places, make_release):
    place = places()
    make_release(place.out, ledger=place.ledger, plan={"epsilon": 7.0})
    second = place.out.with_name("second")
    with pytest.raises(BudgetExceededError):
        make_release(second, ledger=place.ledger, plan={"epsilon": 5.0})
    make_release(second, ledger=place.ledger, plan={"epsilon": 3.0})
    assert set(place.charges().values()) == {1}
    assert len({key for key, *_ in place.charges()}) == 2
    one, other = (AdapterRelease.open(path) for path in (place.out, second))
    assert not np.array_equal(one.sums(0), other.sums(0))


def test_a_private_release_needs_a_ledger_that_is_there(places, make_release):
    place = places()
    asked = {"progress": lambda count: pytest.fail("a patient was asked")}
    with pytest.raises(ReleaseError, match="charged to a ledger"):
        make_release(place.out, **asked)
    with pytest.raises(LedgerError):
        make_release(place.out, ledger=place.out.with_name("none.sqlite"), **asked)
    empty = Ledger(place.out.with_name("empty.sqlite"))
    with pytest.raises(LedgerError, match="have no membership budget"):
        make_release(place.out, ledger=empty, **asked)
    assert not place.out.exists()


def test_sites_under_other_names_are_the_same_patients(places, make_release, sites):
    place, renamed = places(), []
    make_release(place.out, ledger=place.ledger)
    charged = place.charges()
    place.ledger.set_budget(("x", "y"), "membership", epsilon=8.0, delta=1e-5)
    for site, name in zip(sites, ("x", "y"), strict=True):
        renamed.append(copy.copy(site))
        renamed[-1].cohort = name
    with pytest.raises(LedgerError, match=r"(\d) of the \1 patients of cohort 'x' are bound to"):
        make_release(
            place.out.with_name("again"),
            sites=renamed,
            ledger=place.ledger,
            progress=lambda count: pytest.fail("a patient was asked"),
        )
    assert place.charges() == charged


def test_a_research_run_says_so_and_is_not_charged(places, make_release):
    place = places()
    rows = place.ledger.rows()
    release = make_release(place.out, seed=3, ledger=place.ledger, plan={"count": 0.05})
    assert place.ledger.rows() == rows
    assert not release.private
    assert release.statement["stamp"].startswith("NOT PRIVATE")
    assert release.manifest.ledger is None
    assert release.statement["guarantee"]["membership"]["epsilon"] is None
    assert b"NOT PRIVATE" in (place.out / "card.html").read_bytes()
    assert all(
        b"NOT PRIVATE" in content
        for name, content in place.files().items()
        if name.endswith(".safetensors")
    )
    assert [check.what for check in verify(place.out) if check.passed is False] == []
    assert account(release)["units"]["membership"]["epsilon"] is None
    other = places()
    make_release(other.out, seed=3, plan={"count": 0.05})
    assert other.files() == place.files(), "the same seed, the same bytes"


def test_a_stated_number_of_patients_is_taken_as_it_is(places, make_release):
    place = places()
    release = make_release(place.out, seed=1, plan={"patients": 500})
    assert release.patients == 500
    assert any("500" in sentence for sentence in release.statement["mechanism"])


def test_a_plan_for_other_sites_is_refused(places, make_release):
    place = places()
    with pytest.raises(ReleaseError, match="for 3 sites of different cohorts, but there are 2"):
        make_release(place.out, ledger=place.ledger, plan={"sites": 3})
    assert not place.charges()


def test_sites_of_this_process_are_charged_to_some_ledger(places, sites, shared, make_plan):
    out, federation = places().out, LocalFederation(sites)
    mechanism = mechanism_of(out, shared(), make_plan(), federation.cohorts)
    with pytest.raises(ReleaseError, match="no ledger of their own"):
        publish(out, mechanism, federation, overlap={})
