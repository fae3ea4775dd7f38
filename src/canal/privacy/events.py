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
from typing import Any

from canal.errors import InvalidValueError, UnknownUnitError
from canal.privacy.gaussian import Conversion, mu_from_rho
from canal.privacy.precision import epsilon_of_release
from canal.privacy.units import UNITS, Exposure, Unit, check_unit


@dataclass(frozen=True)
class GaussianEvent:
    r"""One thing that was published with Gaussian noise.

    Args:
        name: what it is ("features", "caps", "importance").
        sigma: noise standard deviation of each block; infinite for a block that is not published,
            0 for one that is published in the clear, at an infinite price to whoever can move it.
        exposures: for each unit, how far it can move this event and how often; a mapping, kept
            as pairs. A unit that is missing here is an error when it is asked for, never a cost
            of zero.
        draws: how many noise values one publication takes. They come from a sampler of finite
            precision, which is paid for; 0 stands for the ideal, continuous Gaussian.
    """

    name: str
    sigma: tuple[float, ...]
    exposures: Mapping[Unit, Exposure] | tuple[tuple[Unit, Exposure], ...]
    draws: int = 0

    def __post_init__(self) -> None:
        sigma = tuple(float(value) for value in self.sigma)
        if not sigma or not all(value >= 0 for value in sigma):
            raise InvalidValueError(
                f"event {self.name!r}: give at least one sigma, each at least 0"
            )
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 0:
            raise InvalidValueError(
                f"event {self.name!r}: draws = {self.draws!r} must be a whole number, at least 0"
            )
        exposures = tuple(dict(self.exposures).items())
        for unit, exposure in exposures:
            check_unit(unit)
            size = len(exposure.sensitivity) if isinstance(exposure.sensitivity, tuple) else 1
            if size not in (1, len(sigma)):
                raise InvalidValueError(
                    f"event {self.name!r}, unit {unit}: {size} sensitivities for "
                    f"{len(sigma)} sigmas; give one, or as many as there are sigmas"
                )
        object.__setattr__(self, "sigma", sigma)
        object.__setattr__(self, "exposures", exposures)

    def exposure(self, unit: Unit) -> Exposure:
        """How far one unit can move this event, and how often."""
        check_unit(unit)
        stated = dict(self.exposures)
        if unit not in stated:
            raise UnknownUnitError(
                f"event {self.name!r} states no sensitivity for unit {unit!r} "
                f"(only for {', '.join(stated) or 'none'}); its cost is unknown, not zero"
            )
        return stated[unit]

    def ratios(self, unit: Unit) -> tuple[float, ...]:
        r"""$\Delta_c/\sigma_c$ of each block for one publication."""
        stated = self.exposure(unit).sensitivity
        sensitivity = stated if isinstance(stated, tuple) else (stated,)
        if len(sensitivity) == 1:
            sensitivity *= len(self.sigma)
        return tuple(_ratio(*pair) for pair in zip(sensitivity, self.sigma, strict=True))

    def times(self, count: int) -> GaussianEvent:
        """The same, published this many times as often, with fresh noise each time."""
        more = {
            unit: Exposure(exposure.sensitivity, exposure.count * count)
            for unit, exposure in dict(self.exposures).items()
        }
        return GaussianEvent(self.name, self.sigma, more, self.draws)

    def farther(self, times: int) -> GaussianEvent:
        """The same for one who can move it this many times as far; rounded up."""

        def scaled(sensitivity: float) -> float:
            return math.nextafter(times * sensitivity, math.inf) if sensitivity else 0.0

        exposures = {}
        for unit, exposure in dict(self.exposures).items():
            stated = exposure.sensitivity
            more = tuple(map(scaled, stated)) if isinstance(stated, tuple) else scaled(stated)
            exposures[unit] = Exposure(more, exposure.count)
        return GaussianEvent(self.name, self.sigma, exposures, self.draws)

    def rho(self, unit: Unit) -> float:
        r"""The zCDP cost $\tfrac n2 \sum_c (\Delta_c/\sigma_c)^2$ of this event for one unit."""
        once = math.fsum(ratio * ratio for ratio in self.ratios(unit)) / 2
        return once * self.exposure(unit).count


@dataclass(frozen=True)
class Guarantee:
    """What a list of events promises, to every unit.

    Guarantees:
        `a + b` composes, associatively; rho adds up, and epsilon is taken once, at the end.
        Epsilon is rounded up and includes the finite precision of the sampler.
    """

    events: tuple[GaussianEvent, ...] = field(default=())

    def __post_init__(self) -> None:
        for event in self.events:
            if not isinstance(event, GaussianEvent):
                raise InvalidValueError(
                    f"{event!r} is no event that we know the price of; describe it as a "
                    "GaussianEvent"
                )

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

    def farther(self, times: int) -> Guarantee:
        """What is promised to one who is in the data several times, say in several cohorts.

        Mu is as many times as large, and rho that number squared times.

        Args:
            times: how often.
        """
        return Guarantee(tuple(event.farther(times) for event in self.events))

    def draws(self, unit: Unit) -> int:
        """How many noise values one unit takes part in."""
        return sum(event.draws * event.exposure(unit).count for event in self.events)

    def epsilon(self, delta: float, unit: Unit, conversion: Conversion = "exact") -> float:
        """The epsilon of all events together at this delta, rounded up."""
        rho = self.rho(unit)
        if rho == math.inf:
            return math.inf
        return epsilon_of_release(rho, delta, self.draws(unit), conversion)

    def epsilons(self, delta: float, conversion: Conversion = "exact") -> dict[Unit, float]:
        """Epsilon for every unit, side by side."""
        return {unit: self.epsilon(delta, unit, conversion) for unit in UNITS}

    def to_dp_event(self, unit: Unit) -> Any:
        """The same release as a `dp_accounting.DpEvent`, for anyone's accountant to check.

        The event is the ideal one, without what the sampler's finite precision adds.
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


def _ratio(sensitivity: float, sigma: float) -> float:
    """What nobody can move is free, even in the clear; else no noise is no protection."""
    if sensitivity == 0:
        return 0.0
    return sensitivity / sigma if sigma else math.inf
