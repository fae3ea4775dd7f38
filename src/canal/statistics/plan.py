r"""The plan of a statistics release: public bins, how far a patient moves a sum, how much noise.

Four statistics of all patients are published: how many there are, and histograms of lesion area,
mean intensity and image size. In each histogram a patient has one *vote* in total, spread evenly
over that patient's images: a vector $v \ge 0$ with $\lVert v \rVert_1 \le 1$. For two patients
$$\lVert v \rVert_2 \le \lVert v \rVert_1 \le 1, \qquad
\lVert v - w \rVert_2^2 = \lVert v \rVert_2^2 + \lVert w \rVert_2^2 - 2 \langle v, w \rangle
\le 2,$$
since no entry of either is negative. So the L2 sensitivity of a histogram is 1 where a patient is
added or removed, and $\sqrt 2$ where one is replaced; that of the number of patients is 1 and 0.
Both are reached, by votes in one bin and in two bins. With noise $\sigma_s$ on every value of
statistic s, $\mu^2 = \sum_s (\Delta_s/\sigma_s)^2$.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

from canal.errors import InvalidValueError
from canal.privacy.events import GaussianEvent, Guarantee
from canal.privacy.gaussian import Conversion
from canal.privacy.lattice import Lattice
from canal.privacy.shares import check_share, share_std
from canal.privacy.units import RELATIONS, Exposure, Relation, Unit
from canal.release.plan import Calibrated, PatientPlan, Trust

STATISTICS = "statistics"
COUNT = "count"
Allocation = Literal["shares", "none"]
ALLOCATIONS: tuple[Allocation, ...] = get_args(Allocation)
NO_LABEL, NO_LESION = "no label", "no lesion"
# At all sites together; a site's sum is clipped to its part of them. Public, and never reached.
MOST_PATIENTS = 2**20
_SQRT_2 = math.nextafter(math.sqrt(2), math.inf)


@dataclass(frozen=True)
class Histogram:
    """Public bins of one quantity of an image.

    Args:
        what: is counted.
        edges: between neighbouring bins, which hold their lower edge; the outer bins are open.
        others: bins in front, for images without this quantity.
    """

    what: str
    edges: tuple[float, ...]
    others: tuple[str, ...] = ()

    @property
    def bins(self) -> tuple[str, ...]:
        """What each bin holds, in words."""
        low, high = (f"{edge:g}" for edge in (self.edges[0], self.edges[-1]))
        inner = (f"{a:g} to {b:g}" for a, b in pairwise(self.edges))
        return (*self.others, f"below {low}", *inner, f"{high} or more")

    def bin(self, value: float | str) -> int:
        """The bin of one image; in place of a number, one of `others`."""
        if isinstance(value, str):
            return self.others.index(value)
        return len(self.others) + bisect_right(self.edges, value)


def _distances(name: str) -> dict[Unit, float]:
    """How far a patient moves a statistic."""
    return {"membership": 1.0, "patient": 0.0 if name == COUNT else _SQRT_2}


@dataclass(frozen=True)
class StatisticsPlan(PatientPlan):
    """What is asked for. All of it is public, and so are the bins: nobody took them from the data.

    Args:
        epsilon: what the release may cost a patient.
        delta: of the same guarantee.
        sites: K.
        relation: whose epsilon it is: a patient who is added or removed, or replaced.
        conversion: between epsilon and rho.
        allocation: `shares` of the budget, or `none`, which is no noise and no guarantee.
        split: shares of count, area, intensity and size, of the budget of a patient who is added
            or removed. To replace one costs nothing in the count; the others share its part.
        area: edges between bins of lesion area, as a fraction of the image.
        intensity: edges between bins of mean intensity, from 0 to 255.
        size: edges between bins of the longer side, in pixels.
        trust: who adds the noise; see `ReleasePlan`.
        colluding: t, the number of colluding sites.
    """

    epsilon: float
    delta: float = 1e-5
    sites: int = 1
    relation: Relation = "add-remove"
    conversion: Conversion = "exact"
    allocation: Allocation = "shares"
    split: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)
    area: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    intensity: tuple[float, ...] = tuple(range(16, 256, 16))
    size: tuple[float, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    trust: Trust = "trusted"
    colluding: int = 0

    kind: ClassVar[str] = STATISTICS

    def __post_init__(self) -> None:
        if isinstance(self.sites, bool) or not isinstance(self.sites, int) or self.sites < 1:
            raise InvalidValueError(f"sites = {self.sites!r} must be a whole number, at least 1")
        for name in ("split", "area", "intensity", "size"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        self.check(allocation=ALLOCATIONS, relation=tuple(RELATIONS))
        given = len(self.split) == len(self.histograms) + 1 and min(self.split) > 0
        if not given or not math.isclose(sum(self.split), 1):
            raise InvalidValueError(
                f"split = {self.split!r} must be shares above 0 of {', '.join(self.widths)} that "
                "add up to 1"
            )
        for name, histogram in self.histograms.items():
            edges = histogram.edges
            rising = all(a < b for a, b in pairwise(edges))
            if not edges or not rising or not all(map(math.isfinite, edges)):
                raise InvalidValueError(
                    f"{name} = {edges!r} must be rising, finite edges between bins, at least one"
                )

    @cached_property
    def histograms(self) -> dict[str, Histogram]:
        """By name, in the order in which they are published behind the count."""
        return {
            "area": Histogram("lesion area, share of the image", self.area, (NO_LABEL, NO_LESION)),
            "intensity": Histogram("mean intensity", self.intensity),
            "size": Histogram("longer side, pixels", self.size),
        }

    @property
    def widths(self) -> dict[str, int]:
        """How many numbers each statistic has, in the order in which they are published."""
        return {COUNT: 1} | {name: len(each.bins) for name, each in self.histograms.items()}

    @property
    def draws(self) -> int:
        """Noise values of all statistics."""
        return self.shares * sum(self.widths.values())

    def calibrate(self) -> CalibratedStatisticsPlan:
        r"""Fix every sigma, $\sigma_s = \kappa / \sqrt{w_s}$ for shares w of the budget.

        $\kappa^2 = \sum_s w_s \Delta_s^2 / (2 \rho)$ makes the budget binding.
        """
        if self.allocation == "none":
            return CalibratedStatisticsPlan(self, self._guarantee(0.0))
        rho = self.total_rho()
        squares = math.fsum(
            share * _distances(name)[self.unit] ** 2
            for name, share in zip(self.widths, self.split, strict=True)
        )
        guarantee = self.within_budget(
            lambda share: self._guarantee(math.sqrt(squares / (2 * share * rho)))
        )
        made = CalibratedStatisticsPlan(self, guarantee)
        if made.lattice.step > 1:
            raise InvalidValueError(
                f"noise of {max(made.sigma.values()):.3g} patients leaves no room for a vote in 32 "
                "bits; ask for a larger epsilon or delta"
            )
        if self.trust == "secure-sum":
            least = min(made.sigma.values()) / made.lattice.step
            check_share(share_std(least, self.sites, self.colluding))
        return made

    def _guarantee(self, scale: float) -> Guarantee:
        events = []
        for (name, width), share in zip(self.widths.items(), self.split, strict=True):
            exposures = {unit: Exposure(far) for unit, far in _distances(name).items()}
            draws = self.shares * width if scale else 0
            events.append(GaussianEvent(name, (scale / math.sqrt(share),), exposures, draws=draws))
        return Guarantee(tuple(events))


@dataclass(frozen=True)
class CalibratedStatisticsPlan(Calibrated):
    """A plan that knows every sigma.

    Args:
        plan: what was asked for.
        guarantee: what it promises.
    """

    plan: StatisticsPlan
    guarantee: Guarantee

    @property
    def sigma(self) -> dict[str, float]:
        """Of every number of each statistic, in patients, as it is accounted for."""
        return {event.name: event.sigma[0] for event in self.guarantee.events}

    @property
    def lattice(self) -> Lattice:
        """Of all votes: as fine as 32 bits allow."""
        return Lattice.finest(MOST_PATIENTS, max(self.sigma.values()) * self.plan.excess)

    def to_json(self) -> dict[str, Any]:
        """What readers need: noise as wide as it is for them, and the lattice."""
        sigma = {name: value * self.plan.excess for name, value in self.sigma.items()}
        return {"sigma": sigma, "step": self.lattice.step}
