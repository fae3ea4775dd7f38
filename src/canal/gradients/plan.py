r"""The plan of an adapter release: everything that determines what it costs, fixed before round 1.

T rounds publish a noisy sum of clipped gradients each. A patient has a part of length at most one
in every block of every sum, so with noise $\sigma_b$ in units of the bound
$$\mu^2 = T \sum_b (\Delta/\sigma_b)^2, \qquad \Delta = 1 \text{ (added or removed)},\;
2 \text{ (replaced).}$$
How the next round's network follows from earlier sums is of no concern: composition is adaptive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError
from canal.gradients.target_modules import Adapter
from canal.privacy.allocation import uniform, water_filling
from canal.privacy.events import GaussianEvent, Guarantee
from canal.privacy.gaussian import Conversion
from canal.privacy.lattice import Lattice
from canal.privacy.units import RELATIONS, Exposure, Relation, Unit
from canal.release.plan import Calibrated, PatientPlan, Trust

ADAPTERS = "adapters"
TENSOR = "rounds"
Allocation = Literal["flat", "ellipsoid", "channels", "none"]
ALLOCATIONS: tuple[Allocation, ...] = get_args(Allocation)
# How far a patient moves a sum of parts of length one.
DISTANCE: dict[Unit, float] = {"membership": 1.0, "patient": 2.0}


@dataclass(frozen=True)
class AdapterPlan(PatientPlan):
    """What is asked for. All of it is public.

    Args:
        epsilon: what the release may cost a patient.
        delta: of the same guarantee.
        patients: N at all sites together, as somebody states it in public; they divide the sums.
            Where they are counted, the most that are expected.
        parameters: d, that are taught.
        directions: k, of a public basis that gradients are projected on; 0 for all parameters.
        blocks: how many are clipped on their own; 1 unless the allocation is `channels`.
        sites: K.
        rounds: T.
        relation: whose epsilon it is: a patient who is added or removed, or replaced.
        conversion: between epsilon and rho.
        allocation: `flat` (one clip, even noise), `ellipsoid` (the same behind public scales),
            `channels` (every channel its own bound, noise by water-filling), or `none`, which is
            no noise and no guarantee.
        count: share of the budget that counts the patients; 0 where their number is public.
        adapter: which parameters.
        trust: who adds the noise; see `ReleasePlan`.
        colluding: t, the number of colluding sites.
    """

    epsilon: float
    patients: int
    parameters: int
    directions: int = 0
    delta: float = 1e-5
    blocks: int = 1
    sites: int = 1
    rounds: int = 20
    relation: Relation = "add-remove"
    conversion: Conversion = "exact"
    allocation: Allocation = "flat"
    count: float = 0.0
    adapter: Adapter = field(default_factory=Adapter)
    trust: Trust = "trusted"
    colluding: int = 0

    kind: ClassVar[str] = ADAPTERS

    def __post_init__(self) -> None:
        for name in ("patients", "parameters", "blocks", "sites", "rounds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidValueError(f"{name} = {value!r} must be a whole number, at least 1")
        self.check(allocation=ALLOCATIONS, relation=tuple(RELATIONS))
        if not isinstance(self.directions, int) or not 0 <= self.directions <= self.parameters:
            raise InvalidValueError(
                f"directions = {self.directions!r} must be a whole number, at most the "
                f"{self.parameters} parameters"
            )
        if not 0 <= self.count < 1:
            raise InvalidValueError(f"count = {self.count!r} must be at least 0 and below 1")
        if self.blocks > 1 and self.allocation != "channels":
            raise InvalidValueError("several blocks are clipped by the allocation channels alone")
        if self.count and self.relation == "replace":
            raise InvalidValueError(
                "replacing a patient does not change how many there are; state their number"
            )

    @property
    def coordinates(self) -> int:
        """How many numbers a round publishes."""
        return self.directions or self.parameters

    @property
    def draws(self) -> int:
        """Noise values of all rounds, and of the count."""
        return self.shares * (self.coordinates * self.rounds + bool(self.count))

    def rho(self) -> dict[str, float]:
        """What rounds and count may cost; together never above (epsilon, delta)."""
        total = self.total_rho()
        return {"count": self.count * total, "rounds": (1 - self.count) * total}

    def calibrate(self, weights: ArrayLike | None = None) -> CalibratedAdapterPlan:
        """Fix every sigma, and with it the guarantee.

        Args:
            weights: of the blocks, public: what a unit of noise variance in each of them harms.
                None for flat ones.
        """
        if self.allocation == "none":
            return CalibratedAdapterPlan(self, self._promise(np.zeros(self.blocks), 0.0))
        rho = self.rho()
        scores = np.ones(self.blocks) if weights is None else np.asarray(weights, np.float64)
        if scores.shape != (self.blocks,):
            raise InvalidValueError(f"give one weight for each of the {self.blocks} blocks")
        if not (np.isfinite(scores) & (scores > 0)).all():
            raise InvalidValueError("weights must be above 0 and finite, as public numbers are")
        sensitivity = np.full(self.blocks, DISTANCE[self.unit])

        def promise(share: float) -> Guarantee:
            once = share * rho["rounds"] / self.rounds
            sigma = (
                water_filling(scores, sensitivity, once)
                if self.allocation == "channels"
                else uniform(sensitivity, once)
            )
            counting = float(uniform(1.0, share * rho["count"])) if self.count else 0.0
            return self._promise(sigma, counting)

        made = CalibratedAdapterPlan(self, self.within_budget(promise))
        if made.lattice.step > 1:
            raise InvalidValueError(
                f"noise of {float(made.sigma.max()):.3g} bounds leaves no room for a patient in 32 "
                "bits: the lattice step would be above 1; ask for a larger epsilon or delta"
            )
        return made

    def _promise(self, sigma: NDArray[np.float64], counting: float) -> Guarantee:
        exposures = {unit: Exposure(far, self.rounds) for unit, far in DISTANCE.items()}
        draws = self.coordinates * self.shares if self.allocation != "none" else 0
        events = [GaussianEvent("rounds", tuple(sigma.tolist()), exposures, draws=draws)]
        if self.count:
            once = {unit: Exposure(far) for unit, far in DISTANCE_OF_COUNT.items()}
            events.append(GaussianEvent("count", (counting,), once, draws=self.shares))
        return Guarantee(tuple(events))

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return super().to_json() | {"adapter": self.adapter.to_json()}

    @classmethod
    def objects(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """See `ReleasePlan`."""
        return {"adapter": Adapter.from_json(values["adapter"])}


# How far a patient moves the number of patients; one without a label is none.
DISTANCE_OF_COUNT: dict[Unit, float] = {"membership": 1.0, "patient": 1.0}


@dataclass(frozen=True)
class CalibratedAdapterPlan(Calibrated):
    """A plan that knows every sigma.

    Args:
        plan: what was asked for.
        guarantee: what it promises.
    """

    plan: AdapterPlan
    guarantee: Guarantee

    @property
    def sigma(self) -> NDArray[np.float64]:
        """Of every block of a round's sum, in units of its bound, as it is accounted for."""
        return np.array(self.guarantee.events[0].sigma)

    @property
    def count_sigma(self) -> float:
        """Of the number of patients; 0 where that is public."""
        return self.guarantee.events[1].sigma[0] if self.plan.count else 0.0

    def after(self, rounds: int) -> Guarantee:
        """What the count and so many rounds cost."""
        first, *rest = self.guarantee.events
        exposures = {unit: Exposure(far, rounds) for unit, far in DISTANCE.items()}
        return Guarantee((replace(first, exposures=exposures), *rest))

    @property
    def lattice(self) -> Lattice:
        """Of all sums: as fine as 32 bits allow for so many patients and so much noise."""
        noise = float(self.sigma.max()) * self.plan.excess
        return Lattice.finest(float(self.plan.patients * self.plan.sites), noise)
