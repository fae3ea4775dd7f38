"""Per-iteration release: Q of the paper, and the price of it."""

import pytest

from canal.errors import InvalidValueError
from canal.privacy import epsilon_from_rho, penalty, releases_per_image, rho_from_epsilon


def test_q_is_the_papers_rounded_up():
    assert releases_per_image(10_000, 8, 1000) == 80
    assert releases_per_image(10_001, 8, 1000) == 81  # some image is seen once more
    assert releases_per_image(1, 1, 1000) == 1


def test_sample_once_pays_once():
    rho = rho_from_epsilon(8, 1e-5)
    assert penalty(rho, 1, 1e-5).epsilon_per_iteration == penalty(rho, 1, 1e-5).epsilon_once


@pytest.mark.parametrize("conversion", ["exact", "paper"])
def test_the_penalty_composes(conversion):
    rho = rho_from_epsilon(1, 1e-5, conversion)
    got = penalty(rho, 100, 1e-5, conversion, once=0.01)
    assert got.epsilon_per_iteration == epsilon_from_rho(0.01 + 100 * rho, 1e-5, conversion)
    assert got.epsilon_per_iteration > 9 * got.epsilon_once
    assert got.sigma_factor == 10
    assert got.snr_loss_db == 20


def test_holding_epsilon_takes_the_stated_noise():
    """Noise larger by sigma_factor, released Q times, costs what one release did."""
    rho, releases = 0.7, 37
    factor = penalty(rho, releases, 1e-5).sigma_factor
    assert releases * rho / factor**2 == pytest.approx(rho)


@pytest.mark.parametrize("bad", [(0, 8, 10), (10, 0, 10), (10, 8, 0)])
def test_counts_are_positive(bad):
    with pytest.raises(InvalidValueError, match="at least 1"):
        releases_per_image(*bad)
    with pytest.raises(InvalidValueError, match="at least 1"):
        penalty(1.0, 0, 1e-5)
