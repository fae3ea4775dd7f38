r"""Caps and importance: two vectors over channels, paid for or public (ssec:budget-split).

Both are a mean over teachers k and queries i of $v_{ki} \ge 0$, clipped to norm B. For the caps v
holds the norms of the C channels; for the importance, the task-gradient energies
(Eq. gkd-importance) scaled to length one, so that B = 1. A private statistic is a sum on the
lattice that gets integer noise once. A public one is the same mean of the shared initialisation,
whose weights are public, over the same queries.

Noisy values may come out negative: what is used is their posterior mean, always positive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from canal.errors import ReleaseError
from canal.features.calibration import CalibratedPlan, statistic_lattice
from canal.features.clipping import clip
from canal.privacy.budget import Source
from canal.privacy.posterior import posterior_mean
from canal.release.noisy_sum import NoisySum

if TYPE_CHECKING:
    from torch import Tensor

    from canal.features.plan import Plan
    from canal.features.queries import Queries, QueryBatch
    from canal.learning.networks import Tap

Name = Literal["caps", "importance"]
NAMES: tuple[Name, ...] = get_args(Name)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Statistic:
    """One vector over the C channels, as it was published.

    Args:
        source: `private`, with noise; or `public`.
        values: noisy, where it was private.
        sigma: of that noise; 0 where there is none.
    """

    source: Source
    values: tuple[float, ...]
    sigma: float = 0.0

    def estimate(self) -> Floats:
        """The positive values to work with."""
        values = np.array(self.values)
        return posterior_mean(values, self.sigma) if self.sigma else values


@dataclass(frozen=True)
class Statistics:
    """Both of them.

    Args:
        caps: channel norms.
        importance: gradient energies.
    """

    caps: Statistic
    importance: Statistic

    def weights(self, plan: Plan) -> Floats:
        r"""What noise on each channel counts: $s_c$, or the matched $s_c \hat c_c^2$.

        A channel of cap 0 is dead; it counts nothing, and an allocation by weight drops it.
        """
        caps, importance = self.caps.estimate(), self.importance.estimate()
        if plan.weight == "matched":
            return importance * np.square(caps)
        return np.where(caps > 0, importance, 0.0)

    def check(self, calibrated: CalibratedPlan) -> None:
        """Refuse statistics that a plan could not have published, whoever says so.

        Args:
            calibrated: the plan; only what it fixes for caps and importance is read.
        """
        plan = calibrated.plan
        for name, source in plan.sources.items():
            made = self.caps if name == "caps" else self.importance
            sigma = float(calibrated.sigma(name)[0]) * plan.excess if source == "private" else 0.0
            values = np.array(made.values)
            if made.source != source or not math.isclose(made.sigma, sigma, rel_tol=1e-9):
                raise ReleaseError(f"{name} did not get the noise that the plan asks for")
            # Seen here too: the plan may be what is wrong about its noise.
            if source == "private" and plan.allocation != "none" and not sigma > 0:
                raise ReleaseError(f"{name} is read from the teachers and has no noise")
            if len(values) != plan.channels:
                raise ReleaseError(f"{name} has {len(values)} values, not {plan.channels}")
            # What noise made negative has a positive estimate; without noise nothing is negative.
            if not np.isfinite(values).all() or (not sigma and np.signbit(values).any()):
                raise ReleaseError(f"{name} holds values that no network has")

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            name: {"source": made.source, "values": list(made.values), "sigma": made.sigma}
            for name, made in (("caps", self.caps), ("importance", self.importance))
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Statistics:
        """The reverse of `to_json`."""
        return cls(
            *(
                Statistic(
                    values[name]["source"],
                    tuple(float(value) for value in values[name]["values"]),
                    float(values[name]["sigma"]),
                )
                for name in ("caps", "importance")
            )
        )


def refuse_broken(network: str, query: str) -> None:
    """Refuse a public network that says nothing about a query."""
    raise ReleaseError(f"the shared {network} returns NaN or infinity for query {query!r}")


def sum_up(
    calibrated: CalibratedPlan,
    names: Sequence[Name],
    queries: Queries,
    networks: Sequence[tuple[str, Tap]],
    *,
    check: Callable[[str, str], None] = lambda network, query: None,
    progress: Callable[[int], None] = lambda count: None,
) -> list[Sum]:
    """The sums of some statistics over networks and queries, before any noise; private.

    Args:
        calibrated: the plan.
        names: of the statistics; without any, nothing is read.
        queries: N of them.
        networks: names and taps, each of which counts once.
        check: told network and query where there was NaN or infinity.
        progress: called with the number of images passed through a network.
    """
    sums = [Sum(calibrated, name) for name in names]
    for network, tap in networks if sums else ():
        for batch in queries.batches():
            features, energy = _read(tap, batch, [total.name for total in sums])
            for total in sums:
                broken = total.add(features if total.name == "caps" else energy)
                for row in np.flatnonzero(broken).tolist():
                    check(network, queries.ids[batch.start + row])
            progress(len(batch.images))
    return sums


class Sum:
    """The sum of a statistic's clipped vectors on the lattice, in units of its bound.

    A private one is over all teachers; what a single site gives is a part of it.
    """

    def __init__(self, calibrated: CalibratedPlan, name: Name) -> None:
        plan = calibrated.plan
        self.calibrated = calibrated
        self.name = name
        networks = plan.participants.teachers if plan.sources[name] == "private" else 1
        self.terms = networks * plan.participants.queries
        self.bound = plan.bound if name == "caps" else 1.0
        self.lattice = statistic_lattice(calibrated, name)
        self.total: NDArray[Any] = np.zeros(plan.channels, dtype=np.int64)

    def add(self, vectors: Tensor) -> NDArray[np.bool_]:
        """Add `[B, C]`; tell which rows were broken, and counted as zero."""
        # Caps are v / B in the unit ball; importance is scaled to length one whatever its size.
        cap = self.bound if self.name == "caps" else 0.0
        values = vectors.double().cpu().numpy()[:, None]
        clipped = clip(values, [cap], self.lattice, nonnegative=True)
        self.total += clipped.integers[:, 0].sum(axis=0)
        return clipped.broken

    @property
    def noisy_sum(self) -> NoisySum:
        """How this sum gets its noise."""
        plan = self.calibrated.plan
        std = self.terms * float(self.calibrated.sigma(self.name)[0]) / self.bound
        return NoisySum(
            *(self.name, self.lattice, np.array(std), float(self.terms)),
            *(plan.shares, plan.colluding),
        )

    def published(self, source: Source) -> Statistic:
        """The mean as it is published.

        Args:
            source: of the statistic; a private one has its noise already.
        """
        sigma = float(self.calibrated.sigma(self.name)[0]) * self.calibrated.plan.excess
        return Statistic(source, self.mean(), sigma if source == "private" else 0.0)

    def mean(self) -> tuple[float, ...]:
        """The mean over teachers and queries of what was added."""
        unit = self.lattice.step * self.bound / self.terms
        return tuple((self.total * unit).tolist())


def _read(tap: Tap, batch: QueryBatch, names: list[Name]) -> tuple[Tensor, Tensor]:
    """Channel norms and gradient energies, `[B, C]` each; only what is asked for is computed."""
    if "importance" in names:
        features, energy = tap.features_and_energy(batch.images, batch.masks)
        # Without a truth there is no loss; such a query adds nothing, and the divisor stays.
        energy = energy * batch.labelled[:, None]
    else:
        features = energy = tap.features(batch.images)
    return features.double().flatten(2).square().sum(2).sqrt(), energy
