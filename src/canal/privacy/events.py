r"""Describe, then account: frozen events say what was published, a guarantee says what it costs.

For an event with blocks c (channels, say), noise $\sigma_c$ on every coordinate of block c,
sensitivity $\Delta_c$ and count n for the unit in question (the paper's Eq. rho-rel, composed),
$$\mu^2 = n \sum_c (\Delta_c/\sigma_c)^2, \qquad \rho = \mu^2/2,$$
and the $\mu^2$ of different events add up, exactly: jointly they are one Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from canal.errors import InvalidValueError, UnknownUnitError
from canal.privacy.gaussian import Conversion, epsilon_from_rho, mu_from_rho
from canal.privacy.units import UNITS, Exposure, Unit, check_unit

# What our sampler's finite precision can add to epsilon, per draw (see canal.privacy.lattice).
PRECISION_PER_DRAW = 2.0**-44


@dataclass(frozen=True)
class GaussianEvent:
    r"""One thing that was published with Gaussian noise.

    Args:
        name: what it is ("features", "caps", "importance").
        sigma: noise standard deviation of each block; infinite for a block that is not published.
        exposures: for each unit, how far it can move this event and how often. A unit that is
            missing here is an error when it is asked for, never a cost of zero.
        draws: how many noise values one publication takes. They come from a sampler of finite
            precision, which is paid for; 0 stands for the ideal, continuous Gaussian.
    """

    name: str
    sigma: tuple[float, ...]
    exposures: Mapping[Unit, Exposure]
    draws: int = 0

    def __post_init__(self) -> None:
        sigma = tuple(float(value) for value in self.sigma)
        if not sigma or not all(value > 0 for value in sigma):
            raise InvalidValueError(
                f"event {self.name!r}: every sigma must be above 0, and there must be at least one"
            )
        if self.draws < 0:
            raise InvalidValueError(f"event {self.name!r}: draws = {self.draws} is below 0")
        for unit, exposure in self.exposures.items():
            check_unit(unit)
            size = len(exposure.sensitivity) if isinstance(exposure.sensitivity, tuple) else 1
            if size not in (1, len(sigma)):
                raise InvalidValueError(
                    f"event {self.name!r}, unit {unit}: {size} sensitivities for "
                    f"{len(sigma)} sigmas; give one, or as many as there are sigmas"
                )
        object.__setattr__(self, "sigma", sigma)
        object.__setattr__(self, "exposures", MappingProxyType(dict(self.exposures)))

    def exposure(self, unit: Unit) -> Exposure:
        """How far one unit can move this event, and how often."""
        check_unit(unit)
        if unit not in self.exposures:
            raise UnknownUnitError(
                f"event {self.name!r} states no sensitivity for unit {unit!r} "
                f"(only for {', '.join(self.exposures) or 'none'}); its cost is unknown, not zero"
            )
        return self.exposures[unit]

    def ratios(self, unit: Unit) -> tuple[float, ...]:
        r"""$\Delta_c/\sigma_c$ of each block for one publication."""
        sensitivity = self.exposure(unit).sensitivity
        if not isinstance(sensitivity, tuple):
            return tuple(sensitivity / sigma for sigma in self.sigma)
        if len(sensitivity) == 1:
            sensitivity *= len(self.sigma)
        return tuple(delta / sigma for delta, sigma in zip(sensitivity, self.sigma, strict=True))

    def rho(self, unit: Unit) -> float:
        r"""The zCDP cost $\tfrac n2 \sum_c (\Delta_c/\sigma_c)^2$ of this event for one unit."""
        once = math.fsum(ratio * ratio for ratio in self.ratios(unit)) / 2
        return once * self.exposure(unit).count

    def precision(self, unit: Unit) -> float:
        """What finite precision adds to epsilon, at most."""
        return PRECISION_PER_DRAW * self.draws * self.exposure(unit).count


@dataclass(frozen=True)
class Guarantee:
    """What a list of events promises, to every unit.

    Guarantees:
        `a + b` composes, associatively; rho adds up, and epsilon is taken once, at the end.
        Epsilon is rounded up and includes the finite precision of the sampler.
    """

    events: tuple[GaussianEvent, ...] = field(default=())

    def __add__(self, other: Guarantee) -> Guarantee:
        return Guarantee(self.events + other.events)

    def rho(self, unit: Unit) -> float:
        """The zCDP cost of all events together, rounded up."""
        check_unit(unit)
        parts = [event.rho(unit) for event in self.events]
        # Each part is a few roundings (one ulp each) from its exact value, fsum one more.
        return math.fsum(parts) * (1 + 2.0**-50)

    def mu(self, unit: Unit) -> float:
        """The parameter of Gaussian DP of all events together, rounded up."""
        return mu_from_rho(self.rho(unit))

    def precision(self, unit: Unit) -> float:
        """What finite precision adds to epsilon, at most."""
        return math.fsum(event.precision(unit) for event in self.events)

    def epsilon(self, delta: float, unit: Unit, conversion: Conversion = "exact") -> float:
        """The epsilon of all events together at this delta, rounded up."""
        curve = epsilon_from_rho(self.rho(unit), delta, conversion)
        slack = self.precision(unit)
        return math.nextafter(curve + slack, math.inf) if slack else curve

    def epsilons(self, delta: float, conversion: Conversion = "exact") -> dict[Unit, float]:
        """Epsilon for every unit, side by side."""
        return {unit: self.epsilon(delta, unit, conversion) for unit in UNITS}

    def to_dp_event(self, unit: Unit) -> Any:
        """The same release as a `dp_accounting.DpEvent`, for anyone's accountant to check.

        The event is the ideal one: what finite precision adds is `precision(unit)`.
        """
        try:
            import dp_accounting
        except ImportError as error:
            raise InvalidValueError(
                "the export to DpEvent needs dp-accounting; run `pip install dp-accounting`"
            ) from error
        return dp_accounting.ComposedDpEvent(
            [
                dp_accounting.SelfComposedDpEvent(
                    dp_accounting.GaussianDpEvent(1 / ratio), event.exposure(unit).count
                )
                for event in self.events
                for ratio in event.ratios(unit)
                if ratio > 0
            ]
        )
