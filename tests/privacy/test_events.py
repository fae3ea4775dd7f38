"""Events and guarantees: composition, oracles, and the refusal to guess."""

import copy
import math
import pickle
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canal.errors import InvalidValueError, UnknownUnitError
from canal.privacy import (
    UNITS,
    Exposure,
    GaussianEvent,
    Guarantee,
    Participants,
    cost,
    epsilon_from_rho,
)
from canal.privacy.precision import ETA

positive = st.floats(1e-3, 1e3)


@st.composite
def guarantees(draw):
    events = []
    for _ in range(draw(st.integers(0, 3))):
        people = Participants(draw(st.integers(1, 20)), draw(st.integers(1, 5000)))
        sigma = draw(st.lists(positive, min_size=1, max_size=5))
        events.append(GaussianEvent("features", tuple(sigma), people.features(2.0)))
    return Guarantee(tuple(events))


@given(guarantees(), guarantees(), guarantees(), st.sampled_from(UNITS))
def test_composition_is_associative_and_adds_rho(a, b, c, unit):
    assert ((a + b) + c).rho(unit) == (a + (b + c)).rho(unit)
    assert ((a + b) + c).events == (a + (b + c)).events
    assert (a + b).rho(unit) == pytest.approx(a.rho(unit) + b.rho(unit), rel=1e-14)
    assert (a + Guarantee()).rho(unit) == a.rho(unit)


@given(st.lists(positive, min_size=1, max_size=9), positive)
def test_one_event_costs_what_the_allocation_says(sigma, sensitivity):
    event = GaussianEvent("features", tuple(sigma), {"image": Exposure(sensitivity, 3)})
    assert event.rho("image") == pytest.approx(3 * cost(sensitivity, sigma), rel=1e-14)
    assert Guarantee((event,)).rho("image") >= 3 * cost(sensitivity, sigma)


def test_epsilon_of_every_unit():
    people = Participants(teachers=3, queries=1000, images_per_person=2)
    event = GaussianEvent("features", (20.0,) * 51, people.features(2.0))
    got = Guarantee((event,)).epsilons(1e-5)
    for unit, (weight, count) in {
        "patient": (2 / 3, 1000),
        "image": (2, 2),
        "paper": (2 / 3, 2),
    }.items():
        rho = count * 51 * weight**2 / (2 * 20.0**2)
        assert got[unit] == pytest.approx(epsilon_from_rho(rho, 1e-5), rel=1e-12)


def test_group_privacy_composes_images_of_one_person():
    one, ten = (
        Guarantee((GaussianEvent("f", (9.0,) * 4, Participants(3, 100, m).features(2.0)),))
        for m in (1, 10)
    )
    assert ten.rho("image") == pytest.approx(10 * one.rho("image"))
    assert ten.rho("patient") == one.rho("patient")


def test_statistic_of_a_group_moves_m_times_as_far():
    one, ten = (
        Guarantee((GaussianEvent("caps", (1.0,), Participants(3, 100, m).statistic(1.0)),))
        for m in (1, 10)
    )
    assert ten.rho("image") == pytest.approx(100 * one.rho("image"))


def test_finite_precision_is_charged():
    ideal = GaussianEvent("f", (5.0,), {"patient": Exposure(1.0, 100)})
    real = GaussianEvent("f", (5.0,), {"patient": Exposure(1.0, 100)}, draws=10**6)
    slack = 2 * ETA * 100 * 10**6
    difference = Guarantee((real,)).epsilon(1e-5, "patient") - Guarantee((ideal,)).epsilon(
        1e-5, "patient"
    )
    assert difference == pytest.approx(slack, rel=0.5)  # and a little more for delta
    assert difference >= slack


def test_a_channel_that_is_not_released_costs_nothing():
    with_it = GaussianEvent("f", (2.0, math.inf), {"image": Exposure(1.0)})
    without = GaussianEvent("f", (2.0,), {"image": Exposure(1.0)})
    assert with_it.rho("image") == without.rho("image")


def test_unknown_is_never_zero():
    event = GaussianEvent("caps", (1.0,), {"image": Exposure(1.0)})
    with pytest.raises(UnknownUnitError, match="unknown, not zero"):
        Guarantee((event,)).epsilon(1e-5, "patient")
    with pytest.raises(UnknownUnitError):
        Guarantee((event,)).rho("pixel")
    with pytest.raises(UnknownUnitError):
        Guarantee().rho("pixel")  # not even where nothing was released
    with pytest.raises(UnknownUnitError):
        GaussianEvent("caps", (1.0,), {"pixel": Exposure(1.0)})


def test_what_is_published_in_the_clear_has_no_price_for_those_who_cannot_move_it():
    """And an infinite one for whoever can, however little; in every conversion."""
    exposures = {"patient": Exposure(0.0), "image": Exposure(1e-300)}
    clear = Guarantee((GaussianEvent("caps", (0.0,), exposures),))
    assert clear.rho("patient") == clear.epsilon(1e-5, "patient") == 0
    assert clear.rho("image") == clear.mu("image") == math.inf
    assert clear.epsilon(1e-5, "image") == clear.epsilon(0.5, "image", "paper") == math.inf


def test_one_block_in_the_clear_spoils_the_whole_release():
    people = Participants(3, 40)
    noisy = GaussianEvent("features", (5.0, 7.0), people.features(2.0))
    clear = GaussianEvent("caps", (0.0,), people.read_in_the_clear(1.0))
    both = Guarantee((clear, noisy))
    assert both.epsilon(1e-5, "image") == math.inf
    assert Guarantee((noisy,)).epsilon(1e-5, "image") < math.inf
    for unit in ("patient", "paper"):
        assert both.rho(unit) == Guarantee((noisy,)).rho(unit)
    some = GaussianEvent("f", (1.0, 0.0), {"image": Exposure((1.0, 1.0))})
    assert some.rho("image") == math.inf
    assert GaussianEvent("f", (1.0, 0.0), {"image": Exposure((1.0, 0.0))}).rho("image") == 0.5


@pytest.mark.parametrize("sigma", [(), (-1.0,), (math.nan,), (1.0, -0.5)])
def test_sigma_is_never_negative(sigma):
    with pytest.raises(InvalidValueError, match="sigma"):
        GaussianEvent("f", sigma, {"image": Exposure(1.0)})


@pytest.mark.parametrize("draws", [-1, 1.5, math.nan, True])
def test_draws_are_counted_in_whole_numbers(draws):
    with pytest.raises(InvalidValueError, match="draws"):
        GaussianEvent("f", (1.0,), {"image": Exposure(1.0)}, draws=draws)


def test_sensitivities_match_the_blocks():
    with pytest.raises(InvalidValueError, match="2 sensitivities for 3 sigmas"):
        GaussianEvent("f", (1.0, 1.0, 1.0), {"image": Exposure((1.0, 2.0))})
    event = GaussianEvent("f", (1.0, 2.0), {"image": Exposure((1.0, 4.0))})
    assert event.rho("image") == pytest.approx((1 + 4) / 2)


def test_events_are_frozen():
    exposures = {"image": Exposure(1.0)}
    event = GaussianEvent("f", (1.0,), exposures)
    exposures["image"] = Exposure(0.0)  # changing the caller's dict changes nothing here
    assert event.rho("image") == 0.5
    with pytest.raises(TypeError):
        event.exposures["image"] = Exposure(0.0)


def test_events_travel():
    event = GaussianEvent("f", (1.0, 2.0), Participants(3, 10).features(2.0), draws=7)
    assert pickle.loads(pickle.dumps(event)) == event  # noqa: S301  # our own bytes
    assert hash(copy.deepcopy(event)) == hash(event)
    assert GaussianEvent(**{**asdict(event), "exposures": event.exposures}) == event


def test_an_unknown_event_is_an_error():
    with pytest.raises(InvalidValueError, match="no event that we know the price of"):
        Guarantee(("laplace",))


def test_repeating_an_event_repeats_its_price():
    event = GaussianEvent("f", (3.0,), Participants(3, 10, 2).features(2.0), draws=5)
    for unit in UNITS:
        assert event.times(6).rho(unit) == pytest.approx(6 * event.rho(unit))
        assert Guarantee((event.times(6),)).draws(unit) == 6 * Guarantee((event,)).draws(unit)


@pytest.mark.parametrize("unit", UNITS)
def test_dp_accounting_agrees_by_its_own_composition(unit):
    """Their PLD accountant, fed with our export, to 1e-6; its discretisation is pessimistic."""
    dp_accounting = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    people = Participants(teachers=3, queries=4, images_per_person=2)
    promise = Guarantee(
        (
            GaussianEvent("caps", (2.0,), people.statistic(1.0)),
            GaussianEvent("features", (6.0, 7.0, 9.0), people.features(2.0)),
        )
    )
    accountant = pld.PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=1e-4
    )
    accountant.compose(promise.to_dp_event(unit))
    theirs = accountant.get_epsilon(1e-5)
    assert promise.epsilon(1e-5, unit) == pytest.approx(theirs, abs=1e-6)


def test_dp_accounting_agrees_on_the_whole_release_as_one_gaussian():
    dp_accounting = pytest.importorskip("dp_accounting")
    people = Participants(teachers=3, queries=1000)
    promise = Guarantee((GaussianEvent("features", (64.0,) * 51, people.features(2.0)),))
    event = promise.to_dp_event("patient")
    mu_squared = sum(e.count / e.event.noise_multiplier**2 for e in event.events)
    theirs = dp_accounting.get_epsilon_gaussian(mu_squared**-0.5, 1e-5)
    assert promise.epsilon(1e-5, "patient") == pytest.approx(theirs, abs=1e-6)
