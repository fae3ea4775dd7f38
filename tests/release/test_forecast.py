"""The forecast: the numbers of the plan, and words that follow from them."""

import json

import numpy as np
import pytest

from canal.features.forecast import decibels, forecast
from canal.features.plan import Plan
from canal.privacy import Participants, epsilon_from_rho


def make(preset="honest", **choices):
    size = {"channels": 512, "released": 51, "grid": (16, 16)}
    base = {"epsilon": 8.0, "delta": 1e-5, "participants": Participants(3, 1000)}
    return Plan.preset(preset, **(base | size | choices))


def test_the_issue_in_one_sentence():
    words = forecast(make()).words()
    assert words[0].startswith(
        "At K = 3 and N = 1000 a patient-level epsilon of 8 leaves about -60 dB"
    )
    assert "carries no signal" in words[0]


def test_signal_to_noise_by_hand():
    got = forecast(make()).to_json()
    sigma = got["sigma"]["uniform"]
    assert got["snr_db"]["uniform"] == pytest.approx(10 * np.log10(1 / (256 * sigma**2)))
    assert len(got["snr_db"]["water_filling"]) == 51


def test_verdict_follows_the_signal():
    loud = forecast(make(participants=Participants(3000, 100), released=5)).words()[0]
    faint = forecast(make(preset="paper")).words()[0]
    assert "can learn from" in loud
    assert "faint" in faint


def test_knobs_keep_their_word():
    """The gain that is printed for a knob is what turning it really gives."""
    sentence = forecast(make()).words()[2]
    assert "30 teachers (+20.0 dB)" in sentence
    before = decibels(make().calibrate().snr().max())
    after = decibels(make(participants=Participants(30, 1000)).calibrate().snr().max())
    assert after - before == pytest.approx(20.0, abs=0.05)


def test_knobs_know_the_importance_and_say_nothing_of_what_does_not_help():
    scores = np.geomspace(1, 1e-6, 512)
    fewer = make(released=5).calibrate(scores).snr().max()
    gain = decibels(fewer / make().calibrate(scores).snr().max())
    assert f"5 channels (+{gain:.1f} dB)" in forecast(make(), scores).words()[2]
    image = forecast(make(unit="image")).words()
    assert "an image-level epsilon" in image[0]
    assert "teachers" not in image[2]  # an image passes through all of them


def test_another_unit_warns_of_the_patient():
    plan = make(preset="paper", epsilon=1.0)
    patient = plan.calibrate().guarantee.epsilon(1e-5, "patient", "paper")
    assert f"{patient:.4g}" in forecast(plan).words()[1]


def test_per_iteration_counts_what_is_fresh_each_time():
    """Caps and importance are released once in either model; only the features compose."""
    plan = make(preset="paper")
    got = forecast(plan, iterations=2000, batch_size=16).to_json()["per_iteration"]
    events = {event.name: event.rho("paper") for event in plan.calibrate().guarantee.events}
    want = events["caps"] + events["importance"] + 32 * events["features"]
    assert got["releases"] == 32
    assert got["epsilon_per_iteration"] == pytest.approx(epsilon_from_rho(want, 1e-5, "paper"))


def test_json_has_no_infinity():
    scores = np.zeros(512)
    scores[:20] = 1.0
    text = json.dumps(forecast(make(), scores).to_json(), allow_nan=False)
    got = json.loads(text)
    assert got["sigma"]["water_filling"].count(None) == 31
    assert got["snr_db"]["water_filling"].count(None) == 31


def test_tiny_plans_have_words_too():
    plan = make(channels=1, released=1, grid=(1, 1), participants=Participants(1, 1))
    assert all(forecast(plan, iterations=1, batch_size=1).words())
