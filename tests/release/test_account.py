"""What a release costs, priced again from its folder: at any delta, by other people's formulas."""

import math
from dataclasses import asdict

import numpy as np
import pytest

from budgets import just_enough
from canal.errors import InvalidValueError
from canal.features.release import create
from canal.features.store import Release
from canal.privacy import UNITS, Ledger
from canal.privacy.ledger import receipt
from canal.release.verification import account, verify

dp_accounting = pytest.importorskip("dp_accounting")


@pytest.fixture
def make(tmp_path, ensemble, queries, make_plan):
    """A private release, opened from its folder."""

    def make(preset, **choices):
        plan, ledger = make_plan(preset, **choices), Ledger(tmp_path / "ledger")
        just_enough(ledger, plan, ensemble.cohorts)
        create(tmp_path / "release", ensemble, queries, plan, ledger=ledger)
        return Release.open(tmp_path / "release"), ledger

    return make


def parts_by_hand(release, unit):
    """rho of caps, importance and features from the sigmas in the manifest; K = 3, N = 40."""
    plan, parts = release.plan, {}
    for name, statistic in release.manifest.statistics.items():
        if statistic["source"] == "public":
            parts[name] = math.inf if unit == "image" else 0.0
            continue
        bound = math.sqrt(128 * 4) if name == "caps" else 1.0
        reach = math.sqrt(2) * bound / (3 if unit == "patient" else 40)
        parts[name] = (reach / statistic["sigma"]) ** 2 / 2
    sigma = np.array(release.manifest.mechanism["sigma"])
    reach = (math.sqrt(2) if plan.nonnegative else 2.0) / (1 if unit == "image" else 3)
    parts["features"] = (40 if unit == "patient" else 1) * (np.square(reach / sigma) / 2).sum()
    return parts


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize(
    ("preset", "choices"),
    [
        ("honest", {}),
        ("paper", {}),
        ("honest", {"caps_source": "private", "allocation": "reverse"}),
    ],
)
def test_at_any_delta_it_is_what_others_compute(make, preset, choices, delta):
    """dp-accounting converts the same mu; Prop. 1.3 is written out."""
    release, _ = make(preset, **choices)
    found = account(release, delta)
    assert (found["delta"], found["conversion"]) == (delta, release.plan.conversion)
    for unit in UNITS:
        parts = parts_by_hand(release, unit)
        rho, said = sum(parts.values()), found["units"][unit]
        if math.isinf(rho):
            assert said["rho"] is said["epsilon"] is said["epsilon_exact"] is None
            assert set(said["shares"].values()) == {None}
            continue
        exact = dp_accounting.get_epsilon_gaussian(1 / math.sqrt(2 * rho), delta)
        paper = rho + 2 * math.sqrt(rho * math.log(1 / delta))
        assert said["rho"] == pytest.approx(rho, rel=1e-9)
        assert said["epsilon_exact"] == pytest.approx(exact, rel=1e-6)
        want = paper if preset == "paper" else exact
        assert said["epsilon"] == pytest.approx(want, rel=1e-6)
        assert sum(said["shares"].values()) == pytest.approx(1)
        for name, part in parts.items():
            assert said["shares"][name] == pytest.approx(part / rho)


@pytest.mark.parametrize("unit", UNITS)
def test_anyones_accountant_agrees_on_the_exported_events(make, unit):
    """Composed by dp-accounting's own privacy-loss distributions, not by our sum."""
    release, _ = make("paper", epsilon=1.0, conversion="exact", released=3, unit="patient")
    pld = pytest.importorskip("dp_accounting.pld")
    promise = release.plan.calibrate(
        # From what was published, as any reader can.
        weights_of(release)
    ).guarantee
    accountant = pld.PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=1e-4
    )
    accountant.compose(promise.to_dp_event(unit))
    said = account(release)["units"][unit]["epsilon_exact"]
    assert said == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def weights_of(release):
    from canal.features.statistics import Statistics

    return Statistics.from_json(release.manifest.statistics).weights(release.plan)


@pytest.mark.parametrize("preset", ["honest", "paper"])
def test_at_its_own_delta_it_is_the_statement_and_the_ledger(make, preset):
    release, ledger = make(preset)
    found = account(release)
    assert found["delta"] == 1e-5
    for unit, said in found["units"].items():
        stated = release.statement["guarantee"][unit]
        for what in ("epsilon", "epsilon_exact", "rho"):
            assert said[what] == stated[what]
        assert said["shares"] == {name: part["share"] for name, part in stated["parts"].items()}
    charged = ledger.balance("north", release.plan.unit)
    assert charged.epsilon_spent == pytest.approx(found["units"][release.plan.unit]["epsilon"])
    checks = {check.what: check.passed for check in verify(release.path, ledger)}
    assert {"statement", "noise", "ledger"} <= checks.keys()
    assert set(checks.values()) == {True}


def test_a_smaller_delta_costs_more(make):
    release, _ = make("honest")
    costs = [account(release, delta)["units"]["patient"]["epsilon"] for delta in (1e-2, 1e-5, 1e-8)]
    assert costs == sorted(costs)
    assert len(set(costs)) == 3


@pytest.mark.parametrize("delta", [0.0, 1.5, -1e-5, math.nan])
def test_a_delta_that_is_none_is_refused(make, delta):
    release, _ = make("honest")
    with pytest.raises(InvalidValueError, match="delta"):
        account(release, delta)


def test_a_research_run_promises_nothing(tmp_path, ensemble, queries, make_plan):
    found = account(create(tmp_path / "r", ensemble, queries, make_plan("paper"), seed=1))
    assert found["stamp"].startswith("NOT PRIVATE")
    for said in found["units"].values():
        assert said == {"epsilon": None, "epsilon_exact": None, "rho": None, "shares": {}}


def test_the_ledgers_charge_is_the_manifests(make):
    release, ledger = make("paper")
    rows = [row for row in ledger.rows() if row.action == "reserve"]
    charged = [
        {"cohort": row.cohort, "unit": row.unit, "rho": row.rho, "draws": row.draws} for row in rows
    ]
    paid = {"key": rows[0].key, "charges": charged}
    assert release.manifest.ledger == paid | receipt(ledger.rows(), rows[0].key)
    assert asdict(release.plan.participants) == release.manifest.plan["participants"]
