r"""Per-iteration release: what prior work pays for fresh noise at every student step.

Over T iterations with batches of B out of N images, each image is released $Q = TB/N$ times
(ssec:accounting). Sample-once pays for one. At the same noise the cost is Q times the rho; at
the same epsilon the noise must grow by $\sqrt Q$, which is $10 \log_{10} Q$ dB of signal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from canal.errors import InvalidValueError
from canal.privacy.events import Guarantee
from canal.privacy.gaussian import Conversion
from canal.privacy.units import Unit


@dataclass(frozen=True)
class Penalty:
    """Sample-once against per-iteration, at one number of iterations.

    Args:
        releases: Q, the times that one image is released; whole, rounded up.
        epsilon_once: epsilon when everything is released once.
        epsilon_per_iteration: epsilon at the same noise, released Q times.
        sigma_factor: how much more noise holds the features' share over Q releases.
        snr_loss_db: what that noise costs in signal-to-noise, in dB.
    """

    releases: int
    epsilon_once: float
    epsilon_per_iteration: float
    sigma_factor: float
    snr_loss_db: float


def releases_per_image(iterations: int, batch_size: int, queries: int) -> int:
    """Q = T·B/N, rounded up: an image is seen a whole number of times, and some one that often.

    >>> releases_per_image(iterations=10_000, batch_size=8, queries=1000)
    80
    """
    for name, value in (
        ("iterations", iterations),
        ("batch_size", batch_size),
        ("queries", queries),
    ):
        if value < 1:
            raise InvalidValueError(f"{name} = {value!r} must be at least 1")
    return -(-iterations * batch_size // queries)


def penalty(
    guarantee: Guarantee,
    releases: int,
    delta: float,
    unit: Unit,
    conversion: Conversion = "exact",
    *,
    repeated: str = "features",
) -> Penalty:
    """Sample-once against per-iteration.

    Args:
        guarantee: of everything, released once.
        releases: Q, as from `releases_per_image`.
        delta: of every epsilon here.
        unit: of privacy.
        conversion: between rho and epsilon.
        repeated: the events of this name get fresh noise Q times; all others (caps, importance)
            are published once in either model.
    """
    if releases < 1:
        raise InvalidValueError(f"releases = {releases!r} must be at least 1")
    if not any(event.name == repeated for event in guarantee.events):
        raise InvalidValueError(f"there is no event {repeated!r} to repeat")
    often = Guarantee(
        tuple(e.times(releases) if e.name == repeated else e for e in guarantee.events)
    )
    return Penalty(
        releases=releases,
        epsilon_once=guarantee.epsilon(delta, unit, conversion),
        epsilon_per_iteration=often.epsilon(delta, unit, conversion),
        sigma_factor=math.sqrt(releases),
        snr_loss_db=10 * math.log10(releases),
    )
