"""The plan of an adapter release: what it costs by hand and by another accountant, never less."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canal.errors import CanalError, InvalidValueError
from canal.gradients.plan import AdapterPlan
from canal.gradients.target_modules import Adapter
from canal.privacy.allocation import distortion, uniform
from canal.privacy.precision import BEYOND, ETA

PLAIN = AdapterPlan(epsilon=8.0, patients=100, parameters=1000)
SPREAD = replace(PLAIN, allocation="channels", blocks=5)
FAR = {"add-remove": 1, "replace": 2}


@st.composite
def plans(draw):
    """Any plan that can be released, from strict to absurdly loose."""
    allocation = draw(st.sampled_from(["flat", "ellipsoid", "channels"]))
    relation = draw(st.sampled_from(["add-remove", "replace"]))
    trust = draw(st.sampled_from(["trusted", "secure-sum"]))
    sites = draw(st.integers(2, 9))
    return AdapterPlan(
        epsilon=10 ** draw(st.floats(-2, 3)),
        delta=10 ** draw(st.floats(-9, -2)),
        patients=draw(st.integers(1, 10_000)),
        parameters=draw(st.sampled_from([1, 7, 1000, 10**6])),
        blocks=draw(st.integers(1, 6)) if allocation == "channels" else 1,
        sites=sites,
        rounds=draw(st.sampled_from([1, 2, 3, 40, 1000])),
        relation=relation,
        conversion=draw(st.sampled_from(["exact", "paper"])),
        allocation=allocation,
        count=draw(st.sampled_from([0.0, 0.01, 0.5])) if relation == "add-remove" else 0.0,
        trust=trust,
        colluding=draw(st.integers(0, sites - 1)) if trust == "secure-sum" else 0,
    )


weights = st.lists(st.floats(1e-6, 1e6), min_size=6, max_size=6).map(np.array)


def mu_squared(made, relation):
    """In rational numbers, from the sigmas as they are drawn: T sum (D/sigma)^2, and the count."""
    blocks = sum((FAR[relation] / Fraction(sigma)) ** 2 for sigma in made.sigma.tolist())
    cost = made.plan.rounds * blocks
    if made.plan.count:
        cost += 1 / Fraction(made.count_sigma) ** 2
    return cost


@settings(max_examples=150)
@given(plans(), weights)
def test_what_a_plan_costs_by_hand(plan, scores):
    """rho is half of mu squared, under both relations, never rounded down."""
    made = plan.calibrate(scores[: plan.blocks])
    assert len(made.sigma) == plan.blocks
    for relation, unit in (("add-remove", "membership"), ("replace", "patient")):
        rho = made.guarantee.rho(unit)
        assert Fraction(rho) >= mu_squared(made, relation) / 2
        assert rho == pytest.approx(float(mu_squared(made, relation) / 2), rel=1e-12)


@settings(max_examples=100)
@given(plans(), weights)
def test_the_epsilon_that_was_asked_for_is_met_from_below(plan, scores):
    """With fifty digits and every draw of the sampler paid for; and it is used up."""
    made = plan.calibrate(scores[: plan.blocks])
    stated = made.guarantee.epsilon(plan.delta, plan.unit, plan.conversion)
    assert (1 - 1e-9) * plan.epsilon <= stated <= plan.epsilon
    with mpmath.workdps(50):
        exact = mu_squared(made, plan.relation)
        mu = mpmath.sqrt(mpmath.mpf(exact.numerator) / exact.denominator)
        draws = plan.shares * (plan.parameters * plan.rounds + bool(plan.count))
        epsilon = mpmath.mpf(plan.epsilon) - 2 * mpmath.mpf(ETA) * draws
        delta = mpmath.mpf(plan.delta) * mpmath.exp(-mpmath.mpf(ETA) * draws) - BEYOND * draws
        if plan.conversion == "paper":
            rho = mu**2 / 2
            assert rho + 2 * mpmath.sqrt(rho * mpmath.log(1 / delta)) <= epsilon
            return
        tails = [mpmath.ncdf(-epsilon / mu + sign * mu / 2) for sign in (1, -1)]
        assert tails[0] - mpmath.exp(epsilon) * tails[1] <= delta


def test_another_accountant_says_the_same():
    """Google's, for as many Gaussians as there are rounds and blocks, and the count."""
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    plan = replace(SPREAD, epsilon=3.0, rounds=7, count=0.05)
    made = plan.calibrate([1.0, 5.0, 30.0, 0.2, 2.0])
    for relation, unit in (("add-remove", "membership"), ("replace", "patient")):
        accountant = PLDAccountant()
        for sigma in made.sigma.tolist():
            event = dp_accounting.GaussianDpEvent(sigma / FAR[relation])
            accountant.compose(dp_accounting.SelfComposedDpEvent(event, plan.rounds))
        accountant.compose(dp_accounting.GaussianDpEvent(made.count_sigma))
        theirs = accountant.get_epsilon(plan.delta)
        assert made.guarantee.epsilon(plan.delta, unit) == pytest.approx(theirs, rel=1e-3)


def test_by_hand_with_round_numbers():
    """Four rounds of sigma 4: mu squared is 4/16, and 4 (2/4)^2 for somebody who is replaced."""
    promise = replace(PLAIN, rounds=4)._promise(np.array([4.0]), 0.0)
    assert promise.rho("membership") == pytest.approx(1 / 8)
    assert promise.rho("patient") == pytest.approx(1 / 2)
    assert promise.draws("membership") == 4000


def test_replacing_takes_twice_the_noise():
    one, two = (replace(PLAIN, relation=relation).calibrate() for relation in FAR)
    assert two.sigma == pytest.approx(2 * one.sigma, rel=1e-9)
    assert (one.plan.unit, two.plan.unit) == ("membership", "patient")


@pytest.mark.parametrize("share", [0.01, 0.3])
def test_counting_is_paid_for(share):
    """Its share of rho; what is left for the rounds is that much less."""
    made, none = replace(PLAIN, count=share).calibrate(), PLAIN.calibrate()
    rounds, count = made.guarantee.events
    assert count.rho("membership") / made.guarantee.rho("membership") == pytest.approx(share)
    assert made.count_sigma == pytest.approx(1 / math.sqrt(2 * count.rho("membership")))
    assert rounds.rho("membership") / none.guarantee.rho("membership") == pytest.approx(1 - share)
    assert none.count_sigma == 0
    assert [event.name for event in none.guarantee.events] == ["rounds"]


@given(plans())
def test_rounds_cost_more_and_more_and_in_the_end_all(plan):
    made = plan.calibrate()
    stops = sorted({1, (plan.rounds + 1) // 2, plan.rounds})
    costs = [made.after(stop).epsilon(plan.delta, plan.unit, plan.conversion) for stop in stops]
    assert costs == sorted(set(costs))
    assert costs[-1] == made.guarantee.epsilon(plan.delta, plan.unit, plan.conversion)
    for stop in stops:
        after = made.after(stop)
        assert after.events[0].rho("patient") == pytest.approx(
            made.guarantee.events[0].rho("patient") * stop / plan.rounds
        )
        assert after.events[1:] == made.guarantee.events[1:]  # the count comes first


@pytest.mark.parametrize("colluding", [0, 2])
def test_shares_of_noise_are_drawn_by_everyone(colluding):
    """K sites draw K times as many values, and some more noise where t of them may talk."""
    plan = replace(PLAIN, sites=5, trust="secure-sum", colluding=colluding, count=0.1)
    alone = replace(PLAIN, sites=5, count=0.1)
    assert plan.draws == 5 * alone.draws == 5 * (1000 * PLAIN.rounds + 1)
    assert plan.calibrate().guarantee.draws("membership") == plan.draws
    assert plan.excess == pytest.approx(math.sqrt(5 / (5 - colluding)))
    assert alone.excess == 1
    # What is accounted for is the same, but for the sampler's precision.
    assert plan.calibrate().sigma == pytest.approx(alone.calibrate().sigma, rel=1e-6)


@settings(max_examples=60)
@given(plans(), weights)
def test_a_plan_written_down_is_the_same_plan(plan, scores):
    again = AdapterPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    scores = scores[: plan.blocks]
    assert again.calibrate(scores).guarantee == plan.calibrate(scores).guarantee


def test_an_adapter_is_written_down_with_it():
    adapter = Adapter(parts=("upcat_1.*",), rank=3, beside=("down_*", "upcat_*"), seed=4)
    plan = replace(PLAIN, adapter=adapter)
    assert AdapterPlan.from_json(json.loads(json.dumps(plan.to_json()))).adapter == adapter


def test_a_plan_with_other_entries_is_refused():
    values = PLAIN.to_json()
    with pytest.raises(InvalidValueError, match="other entries"):
        AdapterPlan.from_json(values | {"sensitivity": 0.5})
    del values["relation"]
    with pytest.raises(InvalidValueError, match="other entries"):
        AdapterPlan.from_json(values)


@settings(max_examples=100)
@given(st.integers(1, 8), st.data())
def test_water_filling_costs_the_same_and_harms_no_more(blocks, data):
    """Against even noise in every block: the same rho, and no more weighted noise."""
    some = st.lists(st.floats(1e-6, 1e6), min_size=blocks, max_size=blocks)
    scores = np.array(data.draw(some))
    plan = replace(PLAIN, allocation="channels", blocks=blocks)
    made = plan.calibrate(scores)
    once = made.guarantee.rho("membership") / plan.rounds
    even = uniform(np.ones(blocks), once)
    assert sum(1 / (2 * made.sigma**2)) == pytest.approx(once, rel=1e-12)
    assert distortion(scores, made.sigma) <= distortion(scores, even) * (1 + 1e-9)


def test_where_all_blocks_matter_alike_nothing_is_gained():
    """The equality case; and a control, that elsewhere something is."""
    even = SPREAD.calibrate(np.full(5, 7.0))
    assert even.sigma == pytest.approx(np.full(5, even.sigma[0]))
    scores = np.array([1.0, 1.0, 1.0, 1.0, 100.0])
    spread = SPREAD.calibrate(scores)
    assert distortion(scores, spread.sigma) < 0.6 * distortion(scores, even.sigma)


def test_without_noise_there_is_no_guarantee():
    made = replace(PLAIN, allocation="none").calibrate()
    assert made.sigma.tolist() == [0.0]
    assert made.guarantee.epsilon(1e-5, "membership") == math.inf


@given(plans())
def test_the_lattice_holds_all_sums_and_their_noise(plan):
    made = plan.calibrate()
    made.lattice.check(float(plan.patients), made.sigma * plan.excess, "int32")
    assert made.lattice.step <= 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epsilon": 0.0}, "epsilon = 0.0 must be above 0"),
        ({"epsilon": -1.0}, "epsilon = -1.0"),
        ({"epsilon": math.nan}, "epsilon = nan"),
        ({"epsilon": math.inf}, "epsilon = inf"),
        ({"delta": 0.0}, "delta = 0.0 must lie between 0 and 1"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"delta": math.nan}, "delta = nan"),
        ({"patients": 0}, "patients = 0 must be a whole number"),
        ({"patients": 10.0}, "patients = 10.0"),
        ({"patients": True}, "patients = True"),
        ({"parameters": 0}, "parameters = 0"),
        ({"blocks": 0}, "blocks = 0"),
        ({"sites": -2}, "sites = -2"),
        ({"rounds": 0}, "rounds = 0"),
        ({"rounds": 2.5}, "rounds = 2.5"),
        ({"relation": "substitute"}, "relation = 'substitute' is unknown"),
        ({"conversion": "moments"}, "moments"),
        ({"allocation": "reverse"}, "allocation = 'reverse' is unknown"),
        ({"trust": "local"}, "trust = 'local' is unknown"),
        ({"count": 1.0}, "count = 1.0 must be at least 0 and below 1"),
        ({"count": -0.1}, "count = -0.1"),
        ({"count": math.nan}, "count = nan"),
        ({"count": 0.1, "relation": "replace"}, "does not change how many"),
        ({"blocks": 2}, "by the allocation channels alone"),
        ({"blocks": 2, "allocation": "none"}, "by the allocation channels alone"),
        ({"colluding": 1}, "where noise comes in shares"),
        ({"trust": "secure-sum"}, "needs two sites"),
        ({"trust": "secure-sum", "sites": 3, "colluding": 3}, "below their number, 3"),
        ({"trust": "secure-sum", "sites": 3, "colluding": -1}, "colluding = -1"),
        ({"trust": "secure-sum", "sites": 3, "colluding": 0.5}, "colluding = 0.5"),
        ({"trust": "secure-sum", "sites": 3, "allocation": "none"}, "hides nobody"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(change, says):
    with pytest.raises(CanalError, match=says):
        replace(PLAIN, **change)


@pytest.mark.parametrize("bad", [[1.0], [1.0] * 6, [[1.0] * 5]])
def test_a_weight_for_every_block(bad):
    with pytest.raises(InvalidValueError, match="each of the 5 blocks"):
        SPREAD.calibrate(bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_weight_is_above_zero(bad):
    """At zero the noise would be infinite, and a sum with it cannot be stored."""
    with pytest.raises(InvalidValueError, match="weights must be above 0"):
        SPREAD.calibrate([1.0, bad, 1.0, 1.0, 1.0])


def test_an_epsilon_that_the_sampler_alone_uses_up_is_refused():
    with pytest.raises(InvalidValueError, match="publish fewer numbers"):
        replace(PLAIN, epsilon=1e-6, parameters=10**6, rounds=1000).calibrate()


def test_noise_that_no_sum_can_hold_is_refused_before_anything_is_paid():
    """So much that a whole patient would be less than one step of the lattice."""
    with pytest.raises(InvalidValueError, match="lattice"):
        replace(PLAIN, epsilon=2e-8, delta=1e-13).calibrate()
