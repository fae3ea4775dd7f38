r"""A plan with every number fixed: which channels, how much noise on each, what all of it costs.

Reads only the plan and what was already released (or is public), so whoever has a manifest can do
it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError
from canal.features.plan import Plan
from canal.privacy.allocation import reverse_water_filling, uniform, water_filling
from canal.privacy.events import GaussianEvent, Guarantee
from canal.privacy.units import UNITS, Exposure, Unit
from canal.release.digits import finite_or_none
from canal.release.plan import Calibrated

if TYPE_CHECKING:
    from canal.privacy.lattice import Lattice

EventName = Literal["caps", "importance", "features"]
# A channel with this many times the noise of an even spread carries less than a thousandth of its
# signal; the lattice, which is fixed before anything is known of weights, need not hold it.
MOST_NOISE = 32.0
# What is spent of a share; the rest takes up the rounding of everything behind it.
_LESS = 1 - 2.0**-44


@dataclass(frozen=True)
class CalibratedPlan(Calibrated):
    """A plan whose every sigma is fixed.

    Guarantees:
        `guarantee.epsilon(plan.delta, plan.unit, plan.conversion) <= plan.epsilon`, unless the
        allocation is `none`, whose epsilon is infinite.

    Args:
        plan: what was asked for.
        ranking: the M channels of the largest weight, that first.
        scores: their weights.
        guarantee: of caps, importance and features together.
    """

    plan: Plan
    ranking: tuple[int, ...]
    scores: tuple[float, ...]
    guarantee: Guarantee

    def sigma(self, event: EventName) -> NDArray[np.float64]:
        """Noise standard deviations of one event: infinite if not released, 0 if in the clear."""
        if event not in get_args(EventName):
            raise InvalidValueError(f"a plan has no event {event!r}")
        for candidate in self.guarantee.events:
            if candidate.name == event:
                return np.array(candidate.sigma)
        return np.zeros(1)

    @property
    def published(self) -> tuple[int, ...]:
        """The channels that are really there: those whose noise is finite and not absurd."""
        kept = self._published()
        return tuple(channel for channel, stays in zip(self.ranking, kept, strict=True) if stays)

    @property
    def published_sigma(self) -> NDArray[np.float64]:
        """Noise standard deviations of the published channels, on the mean over teachers."""
        return self.sigma("features")[self._published()]

    def _published(self) -> NDArray[np.bool_]:
        return np.asarray(self.sigma("features") <= MOST_NOISE * even_sigma(self.plan))

    @property
    def lattice(self) -> Lattice:
        """Of the sum of features over teachers."""
        return feature_lattice(self.plan)

    def charge(self, unit: Unit) -> float:
        """The rho to charge, from flat weights; what a release costs depends on them in last bits.

        Rounded up, so that it is never below what the release costs with its real weights.
        """
        plan = self.plan
        if unit == plan.unit:
            return math.fsum(plan.rho().values())
        # Flat weights may leave a little of the features' share unspent; the real ones need not.
        unspent = plan.rho()["release"] / self.guarantee.events[-1].rho(plan.unit)
        return self.guarantee.rho(unit) * unspent * (1 + 2.0**-40)

    def to_json(self) -> dict[str, Any]:
        """The plan and what it fixes whatever the weights turn out to be."""
        plan = self.plan
        return {
            "plan": plan.to_json(),
            "rho": {} if plan.allocation == "none" else plan.rho(),
            "sigma": {name: float(self.sigma(name)[0]) for name in plan.sources},
            "sigma_if_even": even_sigma(plan),
            "lattice": {
                "features": {"step": feature_lattice(plan).step, "bound": 1.0},
                **{
                    name: {
                        "step": statistic_lattice(self, name).step,
                        "bound": plan.bound if name == "caps" else 1.0,
                    }
                    for name in plan.sources
                },
            },
            "epsilon": {
                unit: finite_or_none(self.guarantee.epsilon(plan.delta, unit, plan.conversion))
                for unit in UNITS
            },
        }

    def snr(self) -> NDArray[np.float64]:
        r"""The most signal-to-noise that a released channel can have, $1/(HW\sigma_c^2)$.

        Its signal has norm at most one, spread over H·W positions.
        """
        with np.errstate(divide="ignore"):
            return np.asarray(1 / (self.plan.positions * np.square(self.sigma("features"))))

    def total_snr(self) -> float:
        r"""Signal over noise, summed over everything released; $(K\mu/D)^2$ at patient level."""
        return float(self.snr().sum() * self.plan.positions * self.plan.participants.queries)


def even_sigma(plan: Plan) -> float:
    """The noise of every channel where it is spread evenly; 0 for none."""
    if plan.allocation == "none":
        return 0.0
    mine = plan.participants.features(plan.diameter)[plan.unit]
    rho = plan.rho()["release"] / (mine.count * plan.releases)
    return float(uniform(np.full(plan.released, mine.sensitivity), rho)[0])


def feature_lattice(plan: Plan) -> Lattice:
    """Of the sum over teachers; holds every channel that may be published."""
    from canal.privacy.lattice import Lattice  # not for a forecast, which is there at once

    teachers = plan.participants.teachers
    return Lattice.finest(teachers, teachers * MOST_NOISE * even_sigma(plan) * plan.excess)


def statistic_lattice(calibrated: CalibratedPlan, name: Literal["caps", "importance"]) -> Lattice:
    """Of the sum of a statistic's vectors over teachers and queries, in units of its bound."""
    from canal.privacy.lattice import Lattice

    plan = calibrated.plan
    terms = plan.participants.queries
    if plan.sources[name] == "private":
        terms *= plan.participants.teachers
    sigma = float(calibrated.sigma(name)[0]) / (plan.bound if name == "caps" else 1.0)
    return Lattice.finest(terms, terms * sigma * plan.excess)


def calibrate(plan: Plan, weights: ArrayLike | None = None) -> CalibratedPlan:
    """Fix every sigma of a plan; see `Plan.calibrate`."""
    ranking, scores = rank(plan, weights)

    rho = {} if plan.allocation == "none" else plan.rho()
    # Fixed before any weight is known: caps and importance are drawn first.
    statistics = _statistics(plan, {name: _LESS * share for name, share in rho.items()})
    if plan.trained_initialisation:
        # Weights of the queries, in the clear: no patient moves them, a query image does.
        exposures: dict[Unit, Exposure] = {
            "patient": Exposure(0.0),
            "image": Exposure(1.0),
            "paper": Exposure(0.0),
            "membership": Exposure(0.0),
        }
        statistics.append(GaussianEvent("initialisation", (0.0,), exposures))
    room = 1 - _LESS
    while True:
        features = _features(plan, scores, rho.get("release", 0.0) * (1 - room))
        promise = Guarantee((*statistics, features))
        # Sums and conversions round up; the promise is kept after all of that, not before.
        if (
            plan.allocation == "none"
            or promise.epsilon(plan.delta, plan.unit, plan.conversion) <= plan.epsilon
        ):
            return CalibratedPlan(plan, ranking, tuple(scores.tolist()), promise)
        room *= 2


def rank(
    plan: Plan, weights: ArrayLike | None = None
) -> tuple[tuple[int, ...], NDArray[np.float64]]:
    """The top M channels, that of the largest weight first, and their weights."""
    if weights is None:
        return tuple(range(plan.released)), np.ones(plan.released)
    values = np.asarray(weights, dtype=np.float64)
    if values.ndim != 1 or values.size not in (plan.channels, plan.released):
        raise InvalidValueError(
            f"importance has shape {values.shape}; give one score for each of the "
            f"{plan.channels} channels, or for each of the {plan.released} released"
        )
    order = np.argsort(-values, kind="stable")[: plan.released]
    return tuple(order.tolist()), values[order]


def _statistics(plan: Plan, rho: dict[str, float]) -> list[GaussianEvent]:
    """Caps and importance, as far as somebody can move them."""
    events = []
    for name, source in plan.sources.items():
        bound = plan.bound if name == "caps" else 1.0
        if source == "public":
            if plan.reads_queries:
                exposures = plan.participants.read_in_the_clear(bound)
                events.append(GaussianEvent(name, (0.0,), exposures))
            continue
        exposures = plan.participants.statistic(bound)
        sigma = 0.0
        if plan.allocation != "none":
            sigma = float(uniform(exposures[plan.unit].sensitivity, rho[name]))
        draws = plan.channels * plan.shares if sigma else 0
        events.append(GaussianEvent(name, (sigma,), exposures, draws=draws))
    return events


def _features(plan: Plan, scores: NDArray[np.float64], rho: float) -> GaussianEvent:
    exposures = plan.participants.features(plan.diameter)
    if plan.allocation == "none":
        return GaussianEvent("features", (0.0,) * plan.released, exposures)
    # The price of one release of every query, which is then paid `releases` times.
    rho /= plan.releases
    mine = exposures[plan.unit]
    sensitivity = np.full(plan.released, mine.sensitivity)
    once = rho / mine.count
    if plan.allocation == "canal":
        sigma = water_filling(scores, sensitivity, once)
    elif plan.allocation == "uniform":
        sigma = uniform(sensitivity, once)
    else:
        # The most that the mean square of a clipped channel can be; public, whatever the data.
        power = 1 / plan.positions
        sigma = reverse_water_filling(scores, sensitivity, power, once)
    draws = plan.released * plan.positions * plan.shares
    once_each = GaussianEvent("features", tuple(sigma.tolist()), exposures, draws=draws)
    return once_each.times(plan.releases)
