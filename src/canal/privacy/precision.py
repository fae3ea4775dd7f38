r"""What it costs that a computer draws the noise: a little epsilon, a little delta, both charged.

A lattice point x (in units of sigma) has, under our sampler, a probability within a factor
$1 \pm \eta$, $\eta = 2^{-44}$, of the rounded Gaussian's, for every $|x| \le 16$ and whatever the
lattice step (`docs/privacy.md`, "Noise that can be trusted", adds it up). Let n values be drawn and
let one unit move none of them by more than 4 sigma. Where no noise is beyond 12 sigma (all but
$n \cdot 3.6 \cdot 10^{-33}$), likelihoods under both neighbours are right to a factor
$(1 \pm \eta)^n$, so an ideal $(\varepsilon', \delta')$ becomes
$$\varepsilon = \varepsilon' + 2 n \eta, \qquad
\delta = e^{n\eta} (\delta' + n \cdot 3.6 \cdot 10^{-33}).$$

A unit that moves some value by more than 4 sigma has an epsilon far above 8 anyway; that number is
then the ideal Gaussian's.
"""

from __future__ import annotations

import math

from canal.errors import InvalidValueError
from canal.privacy.gaussian import (
    Conversion,
    epsilon_from_rho,
    rho_from_epsilon,
    shrink_until,
)

ETA = 2.0**-44
BEYOND = 4e-33  # probability of noise beyond 12 sigma, 3.6e-33, rounded up


def epsilon_added(draws: int) -> float:
    """What n drawn values add to epsilon, at most."""
    return 2 * ETA * draws


def ideal_delta(delta: float, draws: int) -> float:
    """The delta that is left for the ideal Gaussian, rounded down.

    Raises:
        InvalidValueError: there is none left.
    """
    if draws == 0:
        return delta
    left = (delta * math.exp(-ETA * draws) - BEYOND * draws) * (1 - 2.0**-50)
    if not left > 0:
        raise InvalidValueError(
            f"delta = {delta!r} is below what the sampler's own tail takes for {draws} values, "
            f"{BEYOND * draws:.2g}; take a larger delta"
        )
    return left


def epsilon_of_release(
    rho: float, delta: float, draws: int, conversion: Conversion = "exact"
) -> float:
    """The epsilon of a release of cost rho whose noise took n draws, rounded up."""
    ideal = epsilon_from_rho(rho, ideal_delta(delta, draws), conversion)
    return math.nextafter(ideal + epsilon_added(draws), math.inf) if draws else ideal


def rho_for_release(
    epsilon: float, delta: float, draws: int, conversion: Conversion = "exact"
) -> float:
    """The largest rho that (epsilon, delta) can pay for when its noise takes n draws.

    0 where the draws alone cost more than epsilon.
    """
    left = math.nextafter(epsilon - epsilon_added(draws), -math.inf) if draws else epsilon
    if left <= 0:
        return 0.0
    rho = rho_from_epsilon(left, ideal_delta(delta, draws), conversion)
    return shrink_until(
        rho, lambda rho: epsilon_of_release(rho, delta, draws, conversion) <= epsilon
    )
