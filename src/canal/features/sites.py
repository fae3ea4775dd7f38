"""The sites, as whoever makes a release sees them: asked for sums over all, never for one's part.

`LocalSites` are teachers in this process. `canal.federation` has the same for hospitals that are
elsewhere; nothing else in a release knows the difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from canal.features.ensemble import Ensemble
from canal.features.options import Options
from canal.features.rows import contribute, share
from canal.features.statistics import Name, Sum, sum_up
from canal.release.noise import Noise

if TYPE_CHECKING:
    from canal.features.calibration import CalibratedPlan
    from canal.features.mechanism import Mechanism
    from canal.features.queries import Queries
    from canal.features.statistics import Statistics
    from canal.learning.networks import Tap
    from canal.privacy.randomness import Secret
    from canal.release.agreement import Agreement
    from canal.release.manifest import Manifest


class Sites(Protocol):
    """All sites of one release."""

    @property
    def cohorts(self) -> tuple[str, ...]:
        """Names of the sites' cohorts."""

    @property
    def initialisation(self) -> str:
        """Digest of the weights that all teachers started from."""

    @property
    def trained_initialisation(self) -> bool:
        """Whether those were, or may have been, trained on the recipient's images."""

    @property
    def shared(self) -> Tap | None:
        """Those weights, where public statistics are wanted."""

    @property
    def layer(self) -> str:
        """That is tapped."""

    @property
    def claims(self) -> list[list[str]]:
        """What determines each teacher's features, as far as an aggregator may know; private."""

    @property
    def people(self) -> dict[str, tuple[frozenset[str], ...]]:
        """The content digests of every patient's images, by cohort, where they are known; private.

        Of sites that are elsewhere nothing: each has a ledger of its own, and binds its own.
        """

    def shape(self, channels: int, size: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """C and grid of the bottleneck for images of this size."""

    def consider(self, agreement: Agreement, secret: Secret, key: str) -> None:
        """Ask every site whether it would agree to this release, to be paid under this key."""

    def begin(self) -> None:
        """Have every site agree, and pay."""

    def sums(self, calibrated: CalibratedPlan, names: Sequence[Name]) -> list[Sum]:
        """Statistics, summed over all sites and queries; with all shares of the noise, if any."""

    def totals(self, mechanism: Mechanism, start: int, stop: int) -> Iterator[Any]:
        """Features of some queries, summed over all sites; with all shares, if any."""

    def publish(self, statistics: Statistics) -> None:
        """Tell every site which statistics were published; features come after."""

    def finish(self, manifest: Manifest) -> None:
        """Tell every site what was published in the end."""


class LocalSites:
    """Teachers in this process, with one aggregator that is trusted; or a rehearsal of shares.

    Args:
        ensemble: the teachers; private.
        queries: the recipient's images.
        options: what cannot change a guarantee.
    """

    def __init__(self, ensemble: Ensemble, queries: Queries, options: Options) -> None:
        self.ensemble = ensemble
        self.queries = queries
        self.options = options
        self._shares: dict[str, Noise] = {}

    @property
    def cohorts(self) -> tuple[str, ...]:
        """Names of the sites' cohorts."""
        return self.ensemble.cohorts

    @property
    def initialisation(self) -> str:
        """Digest of the weights that all teachers started from."""
        return self.ensemble.initialisation

    @property
    def trained_initialisation(self) -> bool:
        """Whether those were, or may have been, trained on the recipient's images."""
        return self.ensemble.trained_initialisation

    @property
    def shared(self) -> Tap | None:
        """Those weights, where public statistics are wanted."""
        return self.ensemble.shared

    @property
    def layer(self) -> str:
        """That is tapped."""
        return self.ensemble.teachers[0].tap.layer

    @property
    def claims(self) -> list[list[str]]:
        """What determines each teacher's features; private."""
        return self.ensemble.claims

    @property
    def people(self) -> dict[str, tuple[frozenset[str], ...]]:
        """The content digests of every patient's images, by cohort, where they are known."""
        known = ((each.cohort, each.patients) for each in self.ensemble.teachers)
        return {cohort: patients for cohort, patients in known if patients is not None}

    def shape(self, channels: int, size: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """C and grid of the bottleneck for images of this size."""
        return self.ensemble.shape(channels, size)

    def consider(self, agreement: Agreement, secret: Secret, key: str) -> None:  # noqa: ARG002
        """Nobody to ask; where noise comes in shares, all of them are drawn here."""
        if agreement.plan.trust == "secure-sum":
            self._shares = {
                claim[0]: agreement.noise_of_site(secret.at(claim[0]), claim, self.options.paired)
                for claim in self.claims
            }

    def begin(self) -> None:
        """Nothing to agree on; the one ledger of this process was charged before."""

    def sums(self, calibrated: CalibratedPlan, names: Sequence[Name]) -> list[Sum]:
        """Statistics, summed over teachers and queries; with all shares of the noise, if any."""
        found = [Sum(calibrated, name) for name in names]
        for teacher in self.ensemble.teachers:
            parts = sum_up(
                calibrated,
                names,
                self.queries,
                [(teacher.cohort, teacher.tap)],
                check=partial(self.options.check, calibrated.plan),
                progress=self.options.progress,
            )
            for total, part in zip(found, parts, strict=True):
                if teacher.cohort in self._shares:
                    stream = self._shares[teacher.cohort].of_statistic(part.name)
                    part.total = part.noisy_sum.share(part.total, stream)
                total.total = total.total + part.total
        return found

    def publish(self, statistics: Statistics) -> None:
        """Noise of what comes now is bound to what was published."""
        self._shares = {site: own.after(statistics) for site, own in self._shares.items()}

    def totals(self, mechanism: Mechanism, start: int, stop: int) -> Iterator[Any]:
        """Features of some queries, summed over all teachers; with all shares, if any."""
        plan, names = mechanism.calibrated.plan, self.queries.ids
        for batch in self.queries.batches(start, stop):
            total: Any = 0
            for teacher in self.ensemble.teachers:
                given = contribute(
                    mechanism,
                    teacher,
                    batch,
                    broken=lambda cohort, row: self.options.check(plan, cohort, names[row]),
                    progress=self.options.progress,
                )
                if teacher.cohort in self._shares:
                    own = self._shares[teacher.cohort]
                    given = share(mechanism, given, batch, self.queries, own)
                total = total + given
            yield from total

    def finish(self, manifest: Manifest) -> None:
        """Nobody else is to be told."""
