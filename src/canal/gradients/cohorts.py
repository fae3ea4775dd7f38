"""All sites of one adapter release, as whoever makes it sees them: asked for sums over all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from canal.data.overlap import Contents, digests
from canal.errors import ReleaseError
from canal.gradients.basis import Basis
from canal.gradients.gradients import Gradients
from canal.gradients.machine import check_rows, made_up
from canal.gradients.patients import Patients

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.gradients.adapter import Coordinates
    from canal.gradients.agreement import AdapterAgreement
    from canal.gradients.mechanism import Mechanism, Stored
    from canal.privacy.randomness import Secret
    from canal.release.manifest import Manifest
    from canal.release.noise import Noise

Integers = NDArray[np.int64]


class Cohorts(Protocol):
    """All sites."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the cohorts."""

    @property
    def claims(self) -> list[list[str]]:
        """What determines each site's part, as far as an aggregator may know; private."""

    @property
    def people(self) -> dict[str, tuple[frozenset[str], ...]]:
        """The content digests of every patient's images, by cohort, where they are here; private.

        Of sites that are elsewhere nothing: each has a ledger of its own, and binds its own.
        """

    def consider(
        self, agreement: AdapterAgreement, mechanism: Mechanism, secret: Secret, key: str
    ) -> None:
        """Ask every site whether it would agree to this release, to be paid under this key."""

    def begin(self) -> None:
        """Have every site agree, and pay."""

    def count(self, mechanism: Mechanism) -> int:
        """How many patients all sites have, in parts; with all shares of the noise, if any."""

    def publish(self, parts: int) -> None:
        """Tell every site how many patients were counted."""

    def total(
        self,
        mechanism: Mechanism,
        number: int,
        values: Tensor,
        latest: Stored | None,
        published: bytes,
    ) -> Integers:
        """The sum of one round over all sites, `[d]`; with all shares of the noise, if any.

        Args:
            mechanism: of the release.
            number: of the round.
            values: of the adapter in this round.
            latest: the sum of the round before, as it was published; None for the first.
            published: digest of all sums before this round.
        """

    def finish(self, manifest: Manifest) -> None:
        """Tell every site what was published in the end."""


class LocalCohorts:
    """Sites in this process, with one aggregator that is trusted; or a rehearsal of shares.

    Args:
        sites: their patients; private.
        network: with the adapter installed.
        coordinates: of the adapter.
        paired: the draws of every arm of an experiment.
        progress: called with the number of images that passed through the network.
    """

    def __init__(
        self,
        sites: Sequence[Patients],
        network: nn.Module,
        coordinates: Coordinates,
        *,
        paired: bool = False,
        progress: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.sites = tuple(sites)
        if len(set(self.names)) < len(self.names) or not self.sites:
            raise ReleaseError("give at least one site, and every site a name of its own")
        self.coordinates, self.paired, self.progress = coordinates, paired, progress
        self.network = network
        self._gradients: Gradients | None = None
        self._shares: dict[str, Noise] = {}

    def gradients(self, basis: Basis | None) -> Gradients:
        """Of the network, in a basis or as they are."""
        if self._gradients is None or self._gradients.basis is not basis:
            self._gradients = Gradients(self.network, self.coordinates.names, basis=basis)
        return self._gradients

    def check(self, views: int, basis: Basis | None = None) -> None:
        """Refuse sites that do not do what a statement says of them; to be called before they pay.

        Args:
            views: of an image in a round, at all sites alike.
            basis: in which gradients are to be taken.

        Raises:
            ReleaseError: a site does otherwise.
            InvalidValueError: batches as a site makes them let patients into each other's part.
        """
        for site in self.sites:
            if site.views != views:
                raise ReleaseError(
                    f"site {site.cohort!r} has views = {site.views}, the release {views}; "
                    "give both the same"
                )
        # Kernels are chosen by the shape of a batch; some of them are even, others are not.
        for shape in {(site.chunk, *site.arrays.images.shape[1:]) for site in self.sites}:
            check_rows(self.gradients(basis), *made_up(shape))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the cohorts."""
        return tuple(site.cohort for site in self.sites)

    @property
    def contents(self) -> dict[str, Contents]:
        """By cohort, the digests of its images; private."""
        return {site.cohort: frozenset(digests(site.arrays)) for site in self.sites}

    @property
    def claims(self) -> list[list[str]]:
        """What determines each site's part; private."""
        return [site.claim for site in self.sites]

    @property
    def people(self) -> dict[str, tuple[frozenset[str], ...]]:
        """The content digests of every patient's images, by cohort; private."""
        return {site.cohort: site.people for site in self.sites}

    def consider(
        self,
        agreement: AdapterAgreement,
        mechanism: Mechanism,  # noqa: ARG002
        secret: Secret,
        key: str,  # noqa: ARG002
    ) -> None:
        """Nobody to ask; where noise comes in shares, all of them are drawn here."""
        self._shares = {}
        if agreement.plan.trust == "secure-sum":
            self._shares = {
                claim[0]: agreement.noise_of_site(secret.at(claim[0]), claim, self.paired)
                for claim in self.claims
            }

    def begin(self) -> None:
        """Nothing to agree on; the one ledger of this process was charged before."""

    def count(self, mechanism: Mechanism) -> int:
        """How many patients all sites have, in parts; with all shares of the noise, if any."""
        return count_over(mechanism, self.sites, self._shares)

    def publish(self, parts: int) -> None:
        """Nobody else is to be told."""

    def total(
        self,
        mechanism: Mechanism,
        number: int,
        values: Tensor,
        latest: Stored | None,  # noqa: ARG002
        published: bytes,
    ) -> Integers:
        """The sum of one round over all sites, `[d]`; with all shares of the noise, if any."""
        self.coordinates.write(values)
        gradients = self.gradients(mechanism.basis)
        return sum_over(
            mechanism, self.sites, gradients, number, self._shares, published, self.progress
        )

    def finish(self, manifest: Manifest) -> None:
        """Nobody else is to be told."""


def count_over(mechanism: Mechanism, sites: Sequence[Patients], shares: Mapping[str, Noise]) -> int:
    """How many patients all sites have, in parts; private, but for the shares of the noise.

    Args:
        mechanism: says how much noise.
        sites: their patients.
        shares: the noise of every site that adds a share of it, by cohort.
    """
    return sum(mechanism.count(len(site), shares.get(site.cohort)) for site in sites)


def sum_over(
    mechanism: Mechanism,
    sites: Sequence[Patients],
    gradients: Gradients,
    number: int,
    shares: Mapping[str, Noise],
    published: bytes,
    progress: Callable[[int], None] = lambda count: None,
) -> Integers:
    """The sum of one round over all sites, `[d]`; private, but for the shares of the noise.

    Every release of sites in one process is summed here, and so is every audit of one.

    Args:
        mechanism: bounds every patient, and says how much noise.
        sites: their patients.
        gradients: of the network as it is in this round.
        number: of the round.
        shares: the noise of every site that adds a share of it, by cohort.
        published: digest of all that was published before.
        progress: called with the number of images that passed through the network.
    """
    total = np.zeros(len(mechanism.clip.scale), dtype=np.int64)
    for site in sites:
        own = shares.get(site.cohort)
        total += contribute(mechanism, site, gradients, number, own, published, progress)
    return total


def contribute(
    mechanism: Mechanism,
    site: Patients,
    gradients: Gradients,
    number: int,
    own: Noise | None,
    published: bytes,
    progress: Callable[[int], None] = lambda count: None,
) -> Integers:
    """What one site adds to a round, `[d]` integers; private, with or without its share of noise.

    Args:
        mechanism: bounds every patient, and says how much noise.
        site: its patients.
        gradients: of the network as it is in this round.
        number: of the round.
        own: noise of the site; None where an aggregator adds all of it.
        published: digest of all that was published before.
        progress: called with the number of images that passed through the network.
    """
    lattice = mechanism.calibrated.lattice
    total = site.total(gradients, mechanism.clip, lattice, number, progress=progress).numpy()
    part = mechanism.bounded(total)
    if own is None:
        return part
    return mechanism.noisy_sum.share(part, own.of_round(number, published))
