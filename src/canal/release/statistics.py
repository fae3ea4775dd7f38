r"""Caps and importance: two vectors over channels, paid for or public (ssec:budget-split).

Both are a mean over teachers k and queries i of $v_{ki} \ge 0$, clipped to norm B. For the caps v
holds the norms of the C channels; for the importance, the task-gradient energies
(Eq. gkd-importance) scaled to length one, so that B = 1. A private statistic is a sum on the
lattice that gets integer noise once. A public one is the same mean of the shared initialisation,
whose weights are public, over the same queries.

Noisy values may come out negative: what is used is their posterior mean, always positive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from canal.errors import ReleaseError
from canal.privacy.budget import Source
from canal.privacy.posterior import posterior_mean
from canal.release.calibration import CalibratedPlan, statistic_lattice
from canal.release.clipping import clip

if TYPE_CHECKING:
    from torch import Tensor

    from canal.models.tap import Tap
    from canal.privacy.randomness import Stream
    from canal.release.plan import Plan
    from canal.release.queries import Queries, QueryBatch

Name = Literal["caps", "importance"]
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


def compute(
    calibrated: CalibratedPlan,
    queries: Queries,
    teachers: Sequence[tuple[str, Tap]],
    shared: Tap | None,
    stream: Callable[[str], Stream],
    *,
    check: Callable[[str, str], None],
    progress: Callable[[int], None] = lambda _: None,
) -> Statistics:
    """Read both from the networks: private from the teachers, public from the initialisation.

    Args:
        calibrated: the plan; its noise for caps and importance does not depend on them.
        queries: N of them.
        teachers: names and taps; private.
        shared: the initialisation, where a source is public.
        stream: the noise of each, by name.
        check: told cohort and query where a teacher gave NaN or infinity.
        progress: called with the number of images passed through a network.
    """
    plan = calibrated.plan
    if not queries.arrays.labelled.any():
        raise ReleaseError(
            "no query has a label, and importance is the gradient of a loss; label a few of them"
        )
    made: dict[Name, Statistic] = {}
    sources: tuple[tuple[Source, Sequence[tuple[str, Tap]]], ...] = (
        ("private", teachers),
        ("public", [] if shared is None else [("initialisation", shared)]),
    )
    for source, networks in sources:
        names = [name for name, chosen in plan.sources.items() if chosen == source]
        if names and not networks:
            raise ReleaseError(
                "public caps and importance are read from the shared initialisation; give it with "
                "--init, or take them from private data"
            )
        sums = sum_up(calibrated, names, queries, networks, check=check, progress=progress)
        for total in sums:
            made[total.name] = total.published(source, stream)
    return Statistics(made["caps"], made["importance"])


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
    sums = [Sum(calibrated, name, len(networks)) for name in names]
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
    """The sum of a statistic's clipped vectors on the lattice, in units of its bound."""

    def __init__(self, calibrated: CalibratedPlan, name: Name, networks: int) -> None:
        plan = calibrated.plan
        self.calibrated = calibrated
        self.name = name
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

    def published(self, source: Source, stream: Callable[[str], Stream]) -> Statistic:
        """What leaves the aggregator: with the plan's noise if it is private, else as it is."""
        sigma = float(self.calibrated.sigma(self.name)[0]) if source == "private" else 0.0
        return Statistic(source, self.mean(sigma, stream), sigma)

    def mean(self, sigma: float, stream: Callable[[str], Stream]) -> tuple[float, ...]:
        """The mean, with noise added once to the sum where sigma is above 0."""
        total = self.total
        if sigma:
            std, bound = self.terms * sigma / self.bound, float(self.terms)
            drawn = stream(self.name)
            total = self.lattice.perturb(total, std, drawn, bound=bound, storage="int32")
        unit = self.lattice.step * self.bound / self.terms
        return tuple((total * unit).tolist())


def _read(tap: Tap, batch: QueryBatch, names: list[Name]) -> tuple[Tensor, Tensor]:
    """Channel norms and gradient energies, `[B, C]` each; only what is asked for is computed."""
    if "importance" in names:
        features, energy = tap.features_and_energy(batch.images, batch.masks)
        # Without a truth there is no loss; such a query adds nothing, and the divisor stays.
        energy = energy * batch.labelled[:, None]
    else:
        features = energy = tap.features(batch.images)
    return features.double().flatten(2).square().sum(2).sqrt(), energy
