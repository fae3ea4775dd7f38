r"""The plan: everything that determines what a release costs, fixed before any data is touched.

A `Plan` is what a person asks for; `calibrate` turns it into a `CalibratedPlan`, which knows every
sigma and what all of it costs each unit.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError
from canal.privacy.allocation import uniform, water_filling
from canal.privacy.budget import BudgetSplit, Source
from canal.privacy.events import GaussianEvent, Guarantee
from canal.privacy.gaussian import Conversion, check_conversion
from canal.privacy.precision import rho_for_release
from canal.privacy.units import Participants, Unit, check_unit

Allocation = Literal["canal", "uniform"]
ALLOCATIONS: tuple[Allocation, ...] = get_args(Allocation)
EventName = Literal["caps", "importance", "features"]
# `paper` is the paper's own accounting. `honest` protects a patient, and takes caps and importance
# from the public shared initialisation.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "unit": "paper",
        "conversion": "paper",
        "nonnegative": False,
        "caps_source": "private",
        "importance_source": "private",
    },
    "honest": {
        "unit": "patient",
        "conversion": "exact",
        "nonnegative": True,
        "caps_source": "public",
        "importance_source": "public",
    },
}


@dataclass(frozen=True)
class Plan:
    r"""What is asked for. All of it is public.

    Args:
        epsilon: what the release may cost the chosen unit.
        delta: of the same guarantee.
        participants: K teachers, N queries, m images of one person.
        channels: C, of the bottleneck.
        released: M, the channels that are published.
        height: of the bottleneck.
        width: of the bottleneck.
        unit: whose epsilon it is.
        conversion: between epsilon and rho.
        nonnegative: channels are clamped to be non-negative before they are clipped (the tap is
            behind a ReLU), so two of them are at most $\sqrt 2$ apart, not 2.
        caps_source: where the caps come from; a public source is charged nothing.
        importance_source: where the importance scores come from.
        caps_bound: B of the caps statistic, in units of the features.
        split: shares of the budget when both sources are private.
    """

    epsilon: float
    delta: float
    participants: Participants
    channels: int
    released: int
    height: int
    width: int
    unit: Unit = "patient"
    conversion: Conversion = "exact"
    nonnegative: bool = True
    caps_source: Source = "public"
    importance_source: Source = "public"
    caps_bound: float = 1.0
    split: BudgetSplit = field(default_factory=BudgetSplit)

    def __post_init__(self) -> None:
        check_unit(self.unit)
        check_conversion(self.conversion)
        if not 0 < self.epsilon < math.inf:
            raise InvalidValueError(f"epsilon = {self.epsilon!r} must be above 0 and finite")
        for name in ("channels", "released", "height", "width"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} = {getattr(self, name)!r} must be at least 1")
        if self.released > self.channels:
            raise InvalidValueError(
                f"released = {self.released} is more than channels = {self.channels}; "
                "release as many or fewer"
            )
        if not 0 < self.caps_bound < math.inf:
            raise InvalidValueError(f"caps_bound = {self.caps_bound!r} must be above 0 and finite")

    @classmethod
    def preset(cls, name: str, **choices: Any) -> Plan:
        """The plan of a preset, with single choices set otherwise.

        Args:
            name: `paper` or `honest`.
            choices: arguments of `Plan`; they win over the preset.
        """
        if name not in PRESETS:
            raise InvalidValueError(
                f"preset = {name!r} is unknown; choose one of {', '.join(PRESETS)}"
            )
        return cls(**(PRESETS[name] | choices))

    @property
    def diameter(self) -> float:
        r"""D, the largest distance between two clipped channels; $\sqrt 2$ rounded up."""
        return math.nextafter(math.sqrt(2), math.inf) if self.nonnegative else 2.0

    @property
    def paid_split(self) -> BudgetSplit:
        """The shares that are really paid, given the sources."""
        return self.split.with_sources(self.caps_source, self.importance_source)

    @property
    def draws(self) -> int:
        """Noise values that one unit takes part in; their finite precision is set aside first."""
        features = self.released * self.height * self.width
        statistics = (self.caps_source, self.importance_source).count("private") * self.channels
        return features * self.participants.features(self.diameter)[self.unit].count + statistics

    def rho(self) -> dict[str, float]:
        """What each part may cost the chosen unit; together never above (epsilon, delta)."""
        total = rho_for_release(self.epsilon, self.delta, self.draws, self.conversion)
        if total == 0:
            raise InvalidValueError(
                f"epsilon = {self.epsilon!r} is too small for {self.draws} noise values: their "
                "finite precision alone takes as much; ask for more, or release less"
            )
        return self.paid_split.rho(total)

    def select(self, importance: ArrayLike | None = None) -> NDArray[np.float64]:
        """Scores of the channels that are released: the top M, most important first.

        Args:
            importance: C scores, public or already privatised; or M, taken as they are;
                or None for flat ones.
        """
        if importance is None:
            return np.ones(self.released)
        scores = np.asarray(importance, dtype=np.float64)
        if scores.ndim != 1 or scores.size not in (self.channels, self.released):
            raise InvalidValueError(
                f"importance has shape {scores.shape}; give one score for each of the "
                f"{self.channels} channels, or for each of the {self.released} released"
            )
        return np.sort(scores)[::-1][: self.released]

    def calibrate(
        self, importance: ArrayLike | None = None, allocation: Allocation = "canal"
    ) -> CalibratedPlan:
        """Fix every sigma, and with it the guarantee.

        Args:
            importance: as for `select`.
            allocation: `canal` (water-filling) or `uniform`.
        """
        if allocation not in ALLOCATIONS:
            raise InvalidValueError(
                f"allocation = {allocation!r} is unknown; choose one of {', '.join(ALLOCATIONS)}"
            )
        scores, room = self.select(importance), 2.0**-48
        while True:
            # Sums and conversions round up; the promise is kept after all of that, not before.
            made = CalibratedPlan(self, self._events(scores, allocation, 1 - room))
            if made.guarantee.epsilon(self.delta, self.unit, self.conversion) <= self.epsilon:
                return made
            room *= 2

    def _events(
        self, scores: NDArray[np.float64], allocation: Allocation, part: float
    ) -> Guarantee:
        """Events that together cost the given part of the budget."""
        rho = {name: part * share for name, share in self.rho().items()}
        events = []
        for name, source, bound in (
            ("caps", self.caps_source, self.caps_bound),
            ("importance", self.importance_source, 1.0),
        ):
            if source == "private":
                exposures = self.participants.statistic(bound)
                sigma = uniform(exposures[self.unit].sensitivity, rho[name])
                events.append(GaussianEvent(name, (float(sigma),), exposures, draws=self.channels))
        exposures = self.participants.features(self.diameter)
        mine = exposures[self.unit]
        sensitivity = np.full(self.released, mine.sensitivity)
        rho_once = rho["release"] / mine.count
        sigmas = (
            water_filling(scores, sensitivity, rho_once)
            if allocation == "canal"
            else uniform(sensitivity, rho_once)
        )
        draws = self.released * self.height * self.width
        events.append(GaussianEvent("features", tuple(sigmas.tolist()), exposures, draws=draws))
        return Guarantee(tuple(events))

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class CalibratedPlan:
    """A plan whose every sigma is fixed.

    Guarantees:
        `guarantee.epsilon(plan.delta, plan.unit, plan.conversion) <= plan.epsilon`.
    """

    plan: Plan
    guarantee: Guarantee

    def sigma(self, event: EventName) -> NDArray[np.float64] | None:
        """Noise standard deviations of one event, or None if it is public."""
        if event not in get_args(EventName):
            raise InvalidValueError(f"a plan has no event {event!r}")
        for candidate in self.guarantee.events:
            if candidate.name == event:
                return np.array(candidate.sigma)
        return None

    def snr(self) -> NDArray[np.float64]:
        r"""The most signal-to-noise that a released channel can have, $1/(HW\sigma_c^2)$.

        Its signal has norm at most one, spread over H·W positions.
        """
        sigma = self.sigma("features")
        assert sigma is not None  # noqa: S101  # calibrate always adds it
        return 1 / (self.plan.height * self.plan.width * np.square(sigma))

    def total_snr(self) -> float:
        r"""Signal over noise, summed over everything released; $(K\mu/D)^2$ at patient level."""
        return float(
            self.snr().sum() * self.plan.height * self.plan.width * self.plan.participants.queries
        )
