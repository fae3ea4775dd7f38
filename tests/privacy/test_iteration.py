"""Per-iteration release: Q of the paper, and the price of it."""

import pytest

from canal.errors import InvalidValueError
from canal.privacy import (
    Exposure,
    GaussianEvent,
    Guarantee,
    epsilon_from_rho,
    penalty,
    releases_per_image,
)


def test_q_is_the_papers_rounded_up():
    assert releases_per_image(10_000, 8, 1000) == 80
    assert releases_per_image(10_001, 8, 1000) == 81  # some image is seen once more
    assert releases_per_image(1, 1, 1000) == 1


def promise(features=0.02, caps=0.0):
    """A release whose features and caps cost this much rho to an image."""
    events = [GaussianEvent("features", ((2 * features) ** -0.5,), {"image": Exposure(1.0)})]
    if caps:
        events.append(GaussianEvent("caps", ((2 * caps) ** -0.5,), {"image": Exposure(1.0)}))
    return Guarantee(tuple(events))


def test_sample_once_pays_once():
    got = penalty(promise(), 1, 1e-5, "image")
    assert got.epsilon_per_iteration == got.epsilon_once


@pytest.mark.parametrize("conversion", ["exact", "paper"])
def test_the_penalty_composes_what_is_fresh_each_time(conversion):
    got = penalty(promise(0.02, caps=0.01), 100, 1e-5, "image", conversion)
    want = epsilon_from_rho(0.01 + 100 * 0.02, 1e-5, conversion)
    assert got.epsilon_per_iteration == pytest.approx(want, rel=1e-9)
    assert got.epsilon_per_iteration > 8 * got.epsilon_once
    assert got.sigma_factor == 10
    assert got.snr_loss_db == 20


def test_holding_epsilon_takes_the_stated_noise():
    """Noise larger by sigma_factor, released Q times, costs what one release did."""
    factor = penalty(promise(0.7), 37, 1e-5, "image").sigma_factor
    louder = GaussianEvent("features", (factor * 1.4**-0.5,), {"image": Exposure(1.0)})
    assert louder.times(37).rho("image") == pytest.approx(0.7)


@pytest.mark.parametrize("bad", [(0, 8, 10), (10, 0, 10), (10, 8, 0)])
def test_counts_are_positive(bad):
    with pytest.raises(InvalidValueError, match="at least 1"):
        releases_per_image(*bad)
    with pytest.raises(InvalidValueError, match="at least 1"):
        penalty(promise(), 0, 1e-5, "image")


def test_what_is_repeated_must_be_there():
    with pytest.raises(InvalidValueError, match="no event"):
        penalty(promise(), 2, 1e-5, "image", repeated="masks")
