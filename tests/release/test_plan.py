"""The plan: what it promises holds by an independent computation, for every unit and choice."""

import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canal.errors import InvalidValueError
from canal.features.plan import PRESETS, Plan
from canal.privacy import UNITS, BudgetSplit, Participants, rho_from_epsilon

SIZE = {"channels": 512, "released": 51, "grid": (16, 16)}


def make(epsilon=8.0, delta=1e-5, teachers=3, queries=1000, preset="honest", **choices):
    people = Participants(teachers, queries)
    return Plan.preset(
        preset, epsilon=epsilon, delta=delta, participants=people, **(SIZE | choices)
    )


@pytest.mark.parametrize(
    ("unit", "conversion", "source", "nonnegative"),
    list(product(UNITS, ("exact", "paper"), ("private", "public"), (True, False))),
)
def test_the_promise_is_kept_and_used_up(unit, conversion, source, nonnegative):
    plan = make(
        unit=unit,
        conversion=conversion,
        caps_source=source,
        importance_source=source,
        nonnegative=nonnegative,
    )
    scores = np.random.default_rng(0).lognormal(0, 2, 512)
    for allocation in ("canal", "uniform", "reverse"):
        made = replace(plan, allocation=allocation).calibrate(scores)
        got = made.guarantee.epsilon(1e-5, unit, conversion)
        assert got <= 8.0
        assert got == pytest.approx(8.0, rel=1e-6)


@given(
    st.floats(0.01, 100),
    st.integers(1, 20),
    st.integers(1, 5000),
    st.sampled_from(UNITS),
    st.sampled_from(["private", "public"]),
)
def test_the_promise_is_kept_at_any_size(epsilon, teachers, queries, unit, source):
    plan = make(epsilon, 1e-6, teachers, queries, unit=unit, caps_source=source)
    assert plan.calibrate().guarantee.epsilon(1e-6, unit) <= epsilon


def test_sigma_by_hand():
    """The paper's configuration, from its own formulas: Delta = 2/K, 85 % of Eq. eps-to-rho."""
    plan = make(epsilon=1.0, preset="paper")
    log = math.log(1e5)
    rho = 0.85 * (math.sqrt(log + 1) - math.sqrt(log)) ** 2
    want = math.sqrt(51 * (2 / 3) ** 2 / (2 * rho))
    even = replace(plan, allocation="uniform").calibrate()
    np.testing.assert_allclose(even.sigma("features"), want, 1e-6)
    scores = np.geomspace(1e-3, 1e3, 512)
    top = scores[::-1][:51]
    kappa = math.sqrt((2 / 3 * np.sqrt(top)).sum() / (2 * rho))
    np.testing.assert_allclose(
        plan.calibrate(scores).sigma("features"), kappa * math.sqrt(2 / 3) * top**-0.25, 1e-6
    )


def test_design_cost_to_a_patient_over_the_release_alone():
    """Design, section 3: the paper's epsilon of 1 is a patient's 42.32 at N = 1000."""
    made = make(epsilon=1.0, preset="paper").calibrate()
    features = type(made.guarantee)(made.guarantee.events[-1:])
    assert round(features.epsilon(1e-5, "patient"), 2) == 42.32


def test_public_statistics_are_not_charged():
    public, private = make(), make(caps_source="private", importance_source="private")
    assert public.rho()["release"] == pytest.approx(private.rho()["release"] / 0.85)
    for made, parts in ((public.calibrate(), 1), (private.calibrate(), 3)):
        costs = [event.rho("patient") for event in made.guarantee.events]
        assert sum(cost > 0 for cost in costs) == parts


def test_statistics_read_from_the_queries_leave_the_queries_unprotected():
    """Public weights, but the query image itself moves them, and there is no noise."""
    public = make().calibrate().guarantee
    assert public.epsilon(1e-5, "image") == math.inf
    assert make(preset="paper").calibrate().guarantee.epsilon(1e-5, "image") < math.inf
    # A plan for the image must take them from elsewhere.
    assert not make(unit="image").reads_queries
    assert make(unit="image").calibrate().guarantee.epsilon(1e-5, "image") <= 8


def test_no_noise_is_no_guarantee():
    made = make(preset="paper", allocation="none").calibrate(np.arange(512.0))
    assert set(made.guarantee.epsilons(1e-5).values()) == {math.inf}
    assert made.published == tuple(range(511, 460, -1))


def test_reverse_drops_channels_that_would_drown():
    scores = np.geomspace(1, 1e-9, 512)
    made = make(allocation="reverse").calibrate(scores)
    assert 0 < len(made.published) < 51
    assert made.published == tuple(range(len(made.published)))
    assert np.isfinite(made.published_sigma).all()


def test_a_plan_survives_json():
    plan = make(preset="paper", split=BudgetSplit(0.2, 0.2, 0.6), grid=(4, 5, 6))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    with pytest.raises(InvalidValueError, match="entries"):
        Plan.from_json({"epsilon": 1})


def test_statistics_noise_by_hand():
    plan = make(caps_source="private", importance_source="private", caps_bound=30.0)
    made, total = plan.calibrate(), rho_from_epsilon(8.0, 1e-5)
    caps = math.sqrt(2) * 30 / 3 / math.sqrt(2 * 0.10 * total)
    scores = math.sqrt(2) / 3 / math.sqrt(2 * 0.05 * total)
    assert made.sigma("caps")[0] == pytest.approx(caps, rel=1e-6)
    assert made.sigma("importance")[0] == pytest.approx(scores, rel=1e-6)


def test_total_signal_to_noise_is_what_theory_allows():
    """No allocation beats (K·mu/D)² over a whole patient-level release."""
    plan = make(nonnegative=False)
    made = plan.calibrate()
    mu = made.guarantee.mu("patient")
    assert made.total_snr() == pytest.approx((3 * mu / 2) ** 2, rel=1e-9)
    assert made.total_snr() == pytest.approx(6.2, abs=0.1)


def test_top_channels_are_taken_best_first():
    scores = np.random.default_rng(1).permutation(512).astype(float)
    made = make().calibrate(scores)
    assert made.scores == tuple(range(511, 460, -1))
    assert [scores[channel] for channel in made.ranking] == list(made.scores)
    assert make().calibrate().scores == (1.0,) * 51
    assert make().calibrate(np.arange(51.0)).ranking[0] == 50


def test_finite_precision_is_set_aside():
    assert make().draws == 1000 * 51 * 16 * 16
    private = make(caps_source="private")
    assert private.calibrate().guarantee.draws("patient") == private.draws
    with pytest.raises(InvalidValueError, match="precision alone"):
        make(epsilon=1e-7, delta=0.1).calibrate()


def test_single_choices_win_over_a_preset():
    assert set(PRESETS) == {"paper", "honest"}
    plan = make(preset="paper", unit="patient", split=BudgetSplit(0.2, 0.2, 0.6))
    assert (plan.unit, plan.conversion, plan.split.release) == ("patient", "paper", 0.6)


@pytest.mark.parametrize(
    ("choices", "word"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"released": 513}, "released"),
        ({"released": 0}, "released"),
        ({"grid": (0, 4)}, "grid"),
        ({"caps_bound": 0.0}, "caps_bound"),
        ({"conversion": "renyi"}, "conversion"),
        ({"preset": "brave"}, "preset"),
    ],
)
def test_errors_name_the_value(choices, word):
    with pytest.raises(InvalidValueError, match=word):
        make(**choices)


def test_calibration_errors():
    with pytest.raises(InvalidValueError, match="512 channels"):
        make().calibrate(np.ones(7))
    with pytest.raises(InvalidValueError, match="allocation"):
        make(allocation="greedy")
    with pytest.raises(InvalidValueError, match="weight"):
        make(weight="heavy")
    with pytest.raises(InvalidValueError, match="delta"):
        make(delta=0.0).calibrate()


class TestSecureSum:
    """Noise in shares: as much as is accounted for when t of them are known, and paid for."""

    def test_shares_that_nobody_tells_are_enough(self, make_plan):
        for told in (0, 1, 2):
            plan = make_plan(trust="secure-sum", colluding=told)
            assert plan.excess == pytest.approx(math.sqrt(3 / (3 - told)))
            assert plan.draws == 3 * make_plan().draws
            promise = plan.calibrate().guarantee
            assert promise.epsilon(plan.delta, "patient") <= plan.epsilon
            assert promise.draws("patient") == 3 * make_plan().calibrate().guarantee.draws(
                "patient"
            )

    def test_it_costs_a_little_more_precision_and_no_more(self, make_plan):
        trusted = make_plan().calibrate().sigma("features")
        shared = make_plan(trust="secure-sum", colluding=1).calibrate().sigma("features")
        assert (shared > trusted).all()
        np.testing.assert_allclose(shared, trusted, rtol=1e-6)

    def test_a_plan_comes_back_from_json(self, make_plan):
        plan = make_plan(trust="secure-sum", colluding=2)
        assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan

    @pytest.mark.parametrize(
        ("choices", "match"),
        [
            ({"trust": "blind"}, "choose one of trusted, secure-sum"),
            ({"colluding": 1}, "take the secure sum"),
            ({"trust": "secure-sum", "colluding": 3}, "no share is left"),
            ({"trust": "secure-sum", "colluding": -1}, "no share is left"),
            ({"trust": "secure-sum", "colluding": True}, "whole number"),
            ({"trust": "secure-sum", "allocation": "none"}, "hides nobody"),
            (
                {"trust": "secure-sum", "participants": Participants(teachers=1, queries=40)},
                "needs two",
            ),
        ],
    )
    def test_what_is_refused(self, make_plan, choices, match):
        with pytest.raises(InvalidValueError, match=match):
            make_plan(**choices)
