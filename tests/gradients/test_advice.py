"""Directions and steps that suit the noise: by hand, and in a release."""

import math
from dataclasses import replace

import numpy as np
import pytest

from canal.errors import InvalidValueError
from canal.gradients.mechanism import PatientSum
from canal.gradients.plan import AdapterPlan
from canal.gradients.release import train
from canal.gradients.update import Advice, UpdateSettings, voice
from gradients.place import FEW

PLAN = AdapterPlan(8.0, patients=600, parameters=488_385, rounds=20)


def test_voice_is_what_unanimous_patients_say_over_the_noise_on_their_mean():
    sigma = PLAN.calibrate().sigma[0]
    assert voice(PLAN) == pytest.approx(600 * math.sqrt(20) / sigma, rel=1e-9)


def test_the_page_tells_the_voice_of_590_patients():
    """As docs/adapters-method.md says."""
    found = {each: voice(replace(PLAN, patients=590, epsilon=each)) for each in (8.0, 1.0)}
    assert {each: round(value, -1) for each, value in found.items()} == {8.0: 980, 1.0: 160}


def test_voice_is_the_same_however_many_rounds_share_the_budget():
    assert voice(replace(PLAN, rounds=80)) == pytest.approx(voice(PLAN), rel=1e-3)


def test_voice_grows_with_patients_and_epsilon_and_shrinks_with_doubt():
    assert voice(replace(PLAN, patients=1200)) == pytest.approx(2 * voice(PLAN))
    assert voice(replace(PLAN, epsilon=1.0)) < voice(PLAN) / 3
    assert voice(replace(PLAN, relation="replace")) == pytest.approx(voice(PLAN) / 2)
    shares = replace(PLAN, sites=4, trust="secure-sum", colluding=3)
    assert voice(shares) == pytest.approx(voice(PLAN) / 2, rel=1e-3)
    assert voice(replace(PLAN, allocation="none")) == math.inf


def test_directions_follow_the_voice_up_to_all_parameters():
    advice = Advice(heard=300)
    assert advice.directions(PLAN) == int(300 * math.sqrt(voice(PLAN)))
    assert advice.directions(replace(PLAN, epsilon=1.0)) < advice.directions(PLAN) / 2
    assert advice.directions(replace(PLAN, parameters=1481)) == 0
    assert advice.directions(replace(PLAN, allocation="none")) == 0
    assert Advice(heard=1e-9).directions(PLAN) == 1


def settled(make_plan, shared, advice, update=None, **choices):
    public = shared().start.public
    mechanism = PatientSum.of(make_plan(**choices).calibrate(), public)
    return advice.settle(update or UpdateSettings(), mechanism), mechanism


def test_noise_length_is_the_length_of_the_noise_on_the_mean_of_all_rounds(make_plan, shared):
    _, mechanism = settled(make_plan, shared, Advice())
    plan, sigma = mechanism.calibrated.plan, mechanism.calibrated.sigma[0]
    assert mechanism.noise_length == pytest.approx(
        sigma * math.sqrt(plan.parameters) / (plan.patients * math.sqrt(plan.rounds))
    )
    rng = np.random.default_rng(0)
    steps = sigma / mechanism.calibrated.lattice.step
    rounds = [
        mechanism.direction(rng.normal(0, steps, plan.parameters), plan.patients)
        for _ in range(plan.rounds)
    ]
    found = float((sum(rounds) / plan.rounds).norm())
    # One length of about 1,500 numbers: five standard errors are below a tenth (1 in 10^6).
    assert found == pytest.approx(mechanism.noise_length, rel=0.1)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("averaged", [0.0, 0.5])
def test_unanimous_patients_lead_as_far_as_the_advice_says(make_plan, shared, momentum, averaged):
    update = UpdateSettings(momentum=momentum, averaged=averaged)
    found, mechanism = settled(make_plan, shared, Advice(way=2.0, furthest=1e9), update)
    far = found.step * found.reach(mechanism.calibrated.plan.rounds)
    assert far == pytest.approx(2.0 / mechanism.noise_length**2, rel=0.005)
    assert float(f"{found.step:.2e}") == found.step


def test_without_noise_it_goes_the_furthest(make_plan, shared):
    found, mechanism = settled(make_plan, shared, Advice(furthest=7.0), allocation="none")
    far = found.step * found.reach(mechanism.calibrated.plan.rounds)
    assert far == pytest.approx(7.0, rel=0.005)
    assert mechanism.noise_length == 0


def test_a_step_that_is_given_stays(make_plan, shared):
    update = UpdateSettings(step=0.123)
    assert settled(make_plan, shared, Advice(), update)[0] is update


def test_rounds_are_taken_with_the_advised_step_and_publish_it(sites, make_plan, shared, tmp_path):
    made = train(tmp_path / "a", sites, shared(), make_plan(), seed=1)
    advised, _ = settled(make_plan, shared, Advice())
    assert made.settings == advised
    assert shared().start.update.step is None


def test_no_step_is_taken_without_a_number():
    with pytest.raises(InvalidValueError, match="not settled"):
        UpdateSettings().rate(0, 3)
    with pytest.raises(InvalidValueError, match="not settled"):
        UpdateSettings.from_json(UpdateSettings().to_json())


def test_products_beside_weights_that_are_all_taught_are_refused():
    with pytest.raises(InvalidValueError, match="norms and head"):
        replace(FEW, parts=("*",), rank=2)
