r"""The plan: everything that determines what a release costs, fixed before any data is touched.

A `Plan` is what a person asks for. `calibrate` (see `canal.features.calibration`) turns it, with
the weights of the channels, into a `CalibratedPlan` that knows every sigma.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from canal.errors import InvalidValueError, ReleaseError
from canal.privacy.budget import BudgetSplit, Source
from canal.privacy.gaussian import Conversion
from canal.privacy.units import UNITS, Participants, Unit
from canal.release.plan import ReleasePlan, Trust, check_cohorts

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from canal.features.calibration import CalibratedPlan

Allocation = Literal["canal", "uniform", "reverse", "none"]
ALLOCATIONS: tuple[Allocation, ...] = get_args(Allocation)
Weight = Literal["importance", "matched"]
WEIGHTS: tuple[Weight, ...] = get_args(Weight)
Broken = Literal["zero", "refuse"]
BROKEN: tuple[Broken, ...] = get_args(Broken)
# `paper` is the paper's own accounting. `honest` protects a patient, and takes caps and importance
# from the public shared initialisation.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "unit": "paper",
        "conversion": "paper",
        "nonnegative": False,
        "caps_source": "private",
        "importance_source": "private",
        "weight": "importance",
    },
    "honest": {
        "unit": "patient",
        "conversion": "exact",
        "nonnegative": True,
        "caps_source": "public",
        "importance_source": "public",
        "weight": "matched",
    },
}


@dataclass(frozen=True)
class Plan(ReleasePlan):
    r"""What is asked for. All of it is public.

    Args:
        epsilon: what the release may cost the chosen unit.
        delta: of the same guarantee.
        participants: K teachers, N queries, m images of one person.
        channels: C, of the bottleneck.
        released: M, the channels that are published.
        grid: positions of the bottleneck, `(height, width)` or `(height, width, depth)`.
        unit: whose epsilon it is.
        conversion: between epsilon and rho.
        nonnegative: channels are clamped to be non-negative before they are clipped (the tap is
            behind a ReLU), so two of them are at most $\sqrt 2$ apart, not 2.
        caps_source: where the caps come from; a public source is charged nothing.
        importance_source: where the importance scores come from.
        weight: what a channel's noise counts: `importance` is the paper's $s_c$; `matched` is
            $s_c \hat c_c^2$, since noise reaches the student multiplied by the cap.
        allocation: `canal` (water-filling), `uniform`, `reverse` (noise-aware), or `none`, which
            is no noise and no guarantee.
        caps_bound: B of the caps statistic, in units of the features. If not given, the norm of
            features of unit mean square, $\sqrt{C\,H\,W}$: enough behind any normalisation.
        split: shares of the budget when both sources are private.
        trained_initialisation: the weights that all teachers start from were trained on the
            recipient's images, the queries. They are public, so the queries are not protected.
        releases: how many times each query is released with fresh noise. 1 is ours; more is the
            per-iteration model of prior work (`canal.features.per_iteration`).
        trust: who adds the noise; see `ReleasePlan`.
        colluding: t, the number of colluding sites.
        broken: where a teacher gives NaN or infinity for a query: `zero`, it contributes nothing
            there and the divisor stays K; or `refuse`, there is no release. Whether a teacher does
            can hang on one patient, and no epsilon covers whether a release exists.
    """

    epsilon: float
    delta: float
    participants: Participants
    channels: int
    released: int
    grid: tuple[int, ...]
    unit: Unit = "patient"
    conversion: Conversion = "exact"
    nonnegative: bool = True
    caps_source: Source = "public"
    importance_source: Source = "public"
    weight: Weight = "matched"
    allocation: Allocation = "canal"
    caps_bound: float | None = None
    split: BudgetSplit = field(default_factory=BudgetSplit)
    trained_initialisation: bool = False
    releases: int = 1
    trust: Trust = "trusted"
    colluding: int = 0
    broken: Broken = "zero"

    kind: ClassVar[str] = "features"
    units: ClassVar[tuple[Unit, ...]] = UNITS
    charged: ClassVar[tuple[Unit, ...]] = ("patient", "paper", "membership", "image")

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise InvalidValueError(
                f"unit = {self.unit!r} is none of features; choose one of {', '.join(UNITS)}"
            )
        self.check(allocation=ALLOCATIONS, weight=WEIGHTS, broken=BROKEN)
        for name in ("channels", "released", "releases"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} = {getattr(self, name)!r} must be at least 1")
        for name in ("nonnegative", "trained_initialisation"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidValueError(f"{name} = {getattr(self, name)!r} must be true or false")
        if not self.grid or min(self.grid) < 1:
            raise InvalidValueError(f"grid = {self.grid!r} must have sides of at least 1")
        if self.released > self.channels:
            raise InvalidValueError(
                f"released = {self.released} is more than channels = {self.channels}; "
                "release as many or fewer"
            )
        if self.caps_bound is None:
            # One double for all that reads it: plan, mechanism, statement.
            bound = math.sqrt(self.channels * self.positions)
            object.__setattr__(self, "caps_bound", bound)
        if not 0 < self.bound < math.inf:
            raise InvalidValueError(f"caps_bound = {self.caps_bound!r} must be above 0 and finite")

    @classmethod
    def preset(cls, name: str, **choices: Any) -> Plan:
        """The plan of a preset, with single choices set otherwise.

        Args:
            name: `paper` or `honest`; both release a tenth of the channels, at delta 1e-5.
            choices: arguments of `Plan`; they win over the preset. None is not given.
        """
        if name not in PRESETS:
            raise InvalidValueError(
                f"preset = {name!r} is unknown; choose one of {', '.join(PRESETS)}"
            )
        given = {key: value for key, value in choices.items() if value is not None}
        common = {"delta": 1e-5, "released": max(1, given.get("channels", 1) // 10)}
        return cls(**(common | PRESETS[name] | given))

    @property
    def positions(self) -> int:
        """H·W (or H·W·D) of one channel."""
        return math.prod(self.grid)

    @property
    def bound(self) -> float:
        """B of the caps statistic, as a plain number."""
        assert self.caps_bound is not None  # noqa: S101  # set by __post_init__
        return self.caps_bound

    @property
    def diameter(self) -> float:
        r"""D, the largest distance between two clipped channels; $\sqrt 2$ rounded up."""
        return math.nextafter(math.sqrt(2), math.inf) if self.nonnegative else 2.0

    @property
    def sources(self) -> dict[Literal["caps", "importance"], Source]:
        """Where each statistic comes from."""
        return {"caps": self.caps_source, "importance": self.importance_source}

    @property
    def reads_queries(self) -> bool:
        """Whether public statistics are read from the query images, in the clear.

        Then those images have no protection of their own. A plan whose unit is the image must
        take them from other public images.
        """
        return self.unit != "image" and "public" in self.sources.values()

    @property
    def paid_split(self) -> BudgetSplit:
        """The shares that are really paid, given the sources."""
        return self.split.with_sources(self.caps_source, self.importance_source)

    @property
    def budgeted(self) -> tuple[Unit, ...]:
        """The plan's own unit, and patients, whatever unit it counts in."""
        return tuple(dict.fromkeys((self.unit, "patient")))

    @property
    def sites(self) -> int:
        """K: every site has one teacher."""
        return self.participants.teachers

    @property
    def draws(self) -> int:
        """Noise values that one unit takes part in; their finite precision is set aside first."""
        features = self.released * self.positions * self.releases * self.shares
        statistics = list(self.sources.values()).count("private") * self.channels * self.shares
        return features * self.participants.features(self.diameter)[self.unit].count + statistics

    def rho(self) -> dict[str, float]:
        """What each part may cost the chosen unit; together never above (epsilon, delta)."""
        return self.paid_split.rho(self.total_rho())

    def calibrate(self, weights: ArrayLike | None = None) -> CalibratedPlan:
        """Fix every sigma, and with it the guarantee.

        Args:
            weights: of the C channels, public or already privatised; or of M, taken as they are;
                or None for flat ones.
        """
        from canal.features.calibration import calibrate

        return calibrate(self, weights)

    @classmethod
    def objects(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """See `ReleasePlan`."""
        return {
            "participants": Participants(**values["participants"]),
            "split": BudgetSplit(**values["split"]),
            "grid": tuple(values["grid"]),
        }


def check_plan(plan: Plan, cohorts: Sequence[str]) -> None:
    """Refuse a plan that has no release, or none with the guarantee that it names."""
    check_cohorts(cohorts, plan.participants.teachers, "teachers")
    if plan.releases != 1:
        raise ReleaseError("a release is made once; a plan with fresh noise has no folder")
    if plan.unit != "image":
        return
    if "public" in plan.sources.values():
        raise ReleaseError(
            "a plan whose unit is the image cannot read public caps or importance from the images "
            "that it protects; take --caps-source private and --importance-source private"
        )
    if plan.trained_initialisation:
        raise ReleaseError(
            "the shared initialisation was trained on the recipient's images and is public, so "
            "they cannot be protected; start from random weights, or take another --unit"
        )
