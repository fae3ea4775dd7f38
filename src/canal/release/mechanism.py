"""What a release mechanism is, and who computes its sums.

A release is a sequence of *steps*. In each, every site contributes integers that depend on its own
data and on what was published before, and on nothing else; the contributions are summed, the sum
gets its noise (`canal.release.noisy_sum`) and is published. *Preliminaries* are steps whose results
everything else depends on: a noisy count of patients, noisy clip norms.

A `Mechanism` says what the steps are, what a site contributes and how much noise there is. A
`Federation` gives the sums over all sites: `LocalFederation` has them in this process,
`canal.federation` on hosts of their own. `canal.release.publish` makes a release of the two.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from canal.errors import InvalidValueError, RefusalError, ReleaseError
from canal.privacy.randomness import Secret, Stream
from canal.release.charges import charges
from canal.release.noisy_sum import NoisySum

if TYPE_CHECKING:
    from canal.privacy.ledger import Charge, Ledger
    from canal.release.manifest import Manifest
    from canal.release.plan import Calibrated

Integers = NDArray[np.signedinteger]
# By the name of each sum of a step, its rows: `[rows, ...]`.
Sums = dict[str, Integers]
SECRET = "secret"  # noqa: S105  # the word, not one


def written(content: Any) -> bytes:
    """JSON values as bytes, always the same ones."""
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def digest(content: Any) -> bytes:
    """SHA-256 of JSON values."""
    return hashlib.sha256(written(content)).digest()


class ReleaseSpec(ABC):
    """Everything about a release that is public before it is made; it binds every party.

    Attributes:
        plan: what is asked for, and what it costs.
        cohorts: of the sites, in the order of the release.
        noise: `secret`, or the seed of a research run.
    """

    kind: ClassVar[str]
    plan: Any
    cohorts: tuple[str, ...]
    noise: str

    @abstractmethod
    def check(self) -> None:
        """Refuse what no site answers, whoever asks."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """As JSON values; the noise is bound to them."""

    @property
    def private(self) -> bool:
        """Whether its noise is to protect anybody."""
        return self.noise == SECRET and self.plan.allocation != "none"

    @property
    def seed(self) -> int | None:
        """The seed of a research run; None where noise comes from a secret."""
        if self.noise == SECRET:
            return None
        found = re.fullmatch(r"seed (\d+)(, paired)?", self.noise)
        if found is None:
            raise InvalidValueError(f"noise of the kind {self.noise!r} is unknown")
        return int(found[1])

    @property
    def paired(self) -> bool:
        """Whether arms of an experiment share their standard-normal draws."""
        return self.noise.endswith(", paired")

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of everything."""
        return digest(self.to_json())

    def noise_of_site(self, secret: Secret, claim: list[str]) -> Noise:
        """A site's noise: bound to this release, and to the data that the site computes from.

        Args:
            secret: of the site.
            claim: what determines the site's contributions; private.
        """
        return Noise(secret, (self.digest, digest(claim)), self.paired)


def noise_of(seed: int | None, paired: bool = False) -> str:
    """Where the noise of a release comes from, as a `ReleaseSpec` says it.

    Args:
        seed: of a research run; None for a secret.
        paired: the same standard-normal draws for every plan with this seed.
    """
    if seed is None and paired:
        raise ReleaseError("noise that protects somebody is never drawn twice; give a seed")
    return SECRET if seed is None else f"seed {seed}{', paired' if paired else ''}"


@dataclass(frozen=True)
class Noise:
    """The noise of one party: its secret, and what every draw is bound to.

    Each row of a sum has a stream of its own, so publishing the same thing twice draws the same
    noise, and publishing another thing never does.

    Args:
        secret: behind all streams.
        context: what all of them are bound to.
        paired: bound to nothing, so that arms of an experiment share their draws.
    """

    secret: Secret
    context: tuple[bytes, ...] = ()
    paired: bool = False

    def after(self, published: bytes) -> Noise:
        """The noise of what comes after this was published."""
        return replace(self, context=(*self.context, published))

    def of_statistic(self, name: str) -> Stream:
        """The stream of a preliminary."""
        return self.stream(b"statistic", name.encode())

    def stream(self, purpose: bytes, *labels: bytes) -> Stream:
        """The stream of one row of one sum.

        Args:
            purpose: what is summed.
            labels: that tell this row from all others.
        """
        bound = () if self.paired else self.context
        return Stream(self.secret.key(purpose, *bound, *labels))


@dataclass(frozen=True)
class Step:
    """One computation at every site: a pass over its data, and one message where sites are apart.

    Args:
        name: of the computation.
        number: among the steps of this name.
        start: its first row in what is published.
        stop: behind its last.
    """

    name: str
    number: int = 0
    start: int = 0
    stop: int = 1


@dataclass
class Published:
    """What was published so far; later steps depend on it and on nothing else that is private.

    Args:
        statistics: results of the preliminaries, as JSON values.
        sums: what was published of every step since, in order, where later steps depend on it.
    """

    statistics: dict[str, Any] = field(default_factory=dict)
    sums: list[Integers] = field(default_factory=list)

    @property
    def digest(self) -> bytes:
        """SHA-256 of everything."""
        found = hashlib.sha256(written(self.statistics))
        for stored in self.sums:
            found.update(hashlib.sha256(np.ascontiguousarray(stored).tobytes()).digest())
        return found.digest()


class Site(Protocol):
    """The data of one site; private, but for the name of its cohort."""

    @property
    def cohort(self) -> str:
        """Name of the cohort, in the ledger too."""

    @property
    def claim(self) -> list[str]:
        """What determines the site's contributions, the name first; private."""

    @property
    def people(self) -> tuple[frozenset[str], ...] | None:
        """Content digests of every patient's images; private. None if nobody knows them."""


class SiteCohort(Protocol):
    """What a site that is elsewhere has; all of it private but the initialisations that came."""

    ensemble: Any
    teacher: Any

    @property
    def name(self) -> str:
        """Name of the site; public."""

    @property
    def source(self) -> dict[str, Any]:
        """Where the cohort's images are and how they are read (`canal.data.load.select`)."""

    def initialisation(self, name: str) -> Path:
        """Folder of an initialisation that came, by its digest."""

    def arrays(self, init: Path) -> Any:
        """The cohort's images, as large as a network wants them."""

    def patients(self, initialisation: str, views: int) -> Any:
        """The patients, as a network of this initialisation sees them."""


class SitePart(Protocol):
    """What a site does for one release, whoever asks; derived from the `ReleaseSpec` alone."""

    @property
    def data(self) -> Any:
        """The data that the site computes from, as `Mechanism.contribute` takes it; private."""

    @property
    def mechanism(self) -> Mechanism:
        """What follows from the spec, once no public input is lacking."""

    @property
    def items(self) -> tuple[str, ...]:
        """Digests of the public items about which a site answers once."""
        return ()

    @property
    def lacking(self) -> list[int]:
        """Blocks of public inputs that did not come yet."""
        return []

    def accept(self, number: int, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:  # noqa: ARG002
        """Take a block of public inputs that the spec names, and give what is to be kept of it."""
        raise RefusalError(f"this release needs no public inputs, and none of number {number}")

    def check(self) -> None:
        """Refuse what cannot be done here, before it costs anything."""


class Mechanism(Protocol):
    """A kind of release: its steps, what a site contributes to them, and how much noise they get.

    Everything here is public but `contribute`. A site that is elsewhere has a mechanism of its own,
    derived from the `ReleaseSpec` alone, and believes no number that it is told.
    """

    # In the manifest; and the name of the tensor in a shard.
    kind: ClassVar[str]
    tensor: ClassVar[str] = ""
    # What the sites' claims are called, and a charge in the ledger.
    holders: ClassVar[str]
    note: ClassVar[str]
    # Whether a step depends on the sums of earlier ones.
    adaptive: ClassVar[bool] = False
    # Statistics of a manifest that only who measured them knows; a site cannot check these.
    untold: ClassVar[frozenset[str]] = frozenset()

    spec: ReleaseSpec

    @property
    def calibrated(self) -> Calibrated:
        """The plan with the noise that is fixed before private data is read."""

    def settled(self, published: Published) -> Calibrated:  # noqa: ARG002
        """The plan with all of its noise, once the preliminaries are published."""
        return self.calibrated

    def charges(self) -> list[Charge]:
        """What the release costs everyone, whatever the preliminaries will be."""
        return charges(self.calibrated, self.spec.cohorts)

    def check_ledger(self, ledger: Ledger) -> None:  # noqa: ARG002
        """Refuse a ledger whose budgets this release cannot keep."""
        return

    @property
    def public_contents(self) -> Sequence[str]:
        """Content digests of the public images that it is about."""
        return ()

    @property
    def stated(self) -> dict[str, Any]:
        """Every number that is fixed before private data is read; a site derives the same."""

    @property
    def inputs(self) -> Sequence[Mapping[str, NDArray[Any]]]:
        """Public inputs that every site needs, in blocks."""
        return ()

    @property
    def announces(self) -> bool:
        """Whether sites are told the results of the preliminaries, wherever those come from."""
        return bool(self.preliminaries())

    def check_statistics(self, statistics: Any) -> None:  # noqa: ARG002
        """Refuse results of the preliminaries that the plan could not have published."""
        return

    def shapes(self, step: Step, published: Published) -> dict[str, tuple[int, ...]]:
        """Of every sum of a step, its shape, rows first."""

    def preliminaries(self) -> tuple[Step, ...]:
        """Steps that come first, whose results everything else depends on; there may be none."""
        return ()

    def settle(self, sums: Mapping[str, Integers]) -> dict[str, Any]:  # noqa: ARG002
        """The results of the preliminaries, as they are published.

        Args:
            sums: noisy, by their names.
        """
        return {}

    def shards(self) -> list[tuple[Step, ...]]:
        """The steps of each file of the release; what is small is published in the manifest."""
        return []

    def noisy_sum(self, step: Step, name: str, published: Published) -> NoisySum:
        """How a sum of a step gets its noise."""

    def streams(self, noise: Noise, step: Step, name: str, published: Published) -> list[Stream]:
        """A stream for each row of a sum."""

    def passed(self, step: Step) -> None:  # noqa: ARG002
        """Count a step as done that was computed before, or elsewhere; for progress."""
        return

    def contribute(self, step: Step, site: Any, published: Published) -> Sums:
        """What a site adds to the sums of a step: clipped, on the lattice; private."""

    def numbers(self, published: Published) -> dict[str, Any]:  # noqa: ARG002
        """Every number that readers need, fixed once the preliminaries are published."""
        return self.stated

    def statistics(self, published: Published) -> dict[str, Any]:
        """Public numbers and results of the preliminaries, for the manifest."""
        return published.statistics

    @property
    def participants(self) -> dict[str, Any]:
        """Cohorts, and what else readers must know of them, for the manifest."""
        return {"cohorts": list(self.spec.cohorts)}

    @property
    def row_names(self) -> Sequence[str]:
        """Names of the rows in the files, in order."""
        return ()

    def write_more(self, folder: Path) -> None:  # noqa: ARG002
        """Write what else belongs into the folder of the release."""
        return


class Federation(Protocol):
    """All sites of one release: asked for sums over all, never for the part of one."""

    @property
    def cohorts(self) -> tuple[str, ...]:
        """Names of the sites' cohorts, in the order of the release."""

    @property
    def claims(self) -> list[list[str]]:
        """What determines each site's contributions, as far as it is known here; private."""

    @property
    def people(self) -> dict[str, tuple[frozenset[str], ...]]:
        """Content digests of every patient's images, by cohort, where they are here; private."""

    def prepare(self, mechanism: Mechanism, secret: Secret, key: str) -> None:
        """Ask every site whether it would take part, to be charged under this key."""

    def commit(self) -> None:
        """Have every site agree, and pay."""

    def sums(self, steps: Sequence[Step], published: Published) -> Iterator[Sums]:
        """The sums of some steps over all sites; with all shares of the noise, if it has any."""

    def announce(self, published: Published) -> None:
        """Tell every site the results of the preliminaries."""

    def finish(self, manifest: Manifest) -> None:
        """Tell every site what was published in the end."""


class LocalFederation:
    """Sites in this process, with a trusted aggregator; or a simulation of noise shares.

    Args:
        sites: their data; private.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = tuple(sites)
        if len(set(self.cohorts)) < len(self.sites) or not self.sites:
            raise ReleaseError("give at least one site, and every site a name of its own")
        self._mechanism: Mechanism | None = None
        self._shares: dict[str, Noise] = {}

    @property
    def cohorts(self) -> tuple[str, ...]:
        """Names of the sites' cohorts."""
        return tuple(site.cohort for site in self.sites)

    @property
    def claims(self) -> list[list[str]]:
        """What determines each site's contributions; private."""
        return [site.claim for site in self.sites]

    @property
    def people(self) -> dict[str, tuple[frozenset[str], ...]]:
        """Content digests of every patient's images, by cohort, where they are known; private."""
        known = ((site.cohort, site.people) for site in self.sites)
        return {cohort: people for cohort, people in known if people is not None}

    def prepare(self, mechanism: Mechanism, secret: Secret | None, key: str = "") -> None:  # noqa: ARG002
        """Nobody to ask; where noise comes in shares, all of them are drawn here.

        Args:
            mechanism: of the release.
            secret: behind the shares; None: none are added, which an audit compares.
            key: of the charge.
        """
        self._mechanism, self._shares = mechanism, {}
        spec = mechanism.spec
        if spec.plan.trust == "secure-sum" and secret is not None:
            self._shares = {
                claim[0]: spec.noise_of_site(secret.at(claim[0]), claim) for claim in self.claims
            }

    def commit(self) -> None:
        """Nothing to agree on; the one ledger of this process was charged before."""

    def sums(self, steps: Sequence[Step], published: Published) -> Iterator[Sums]:
        """The sums of some steps over all sites; with all shares of the noise, if it has any."""
        assert self._mechanism is not None  # noqa: S101  # prepared
        for step in steps:
            total: Sums = {}
            for site in self.sites:
                own = self._shares.get(site.cohort)
                given = contribution(self._mechanism, step, site, published, own)
                total = {name: total.get(name, 0) + part for name, part in given.items()}
            yield total

    def announce(self, published: Published) -> None:
        """Nobody else is to be told."""

    def finish(self, manifest: Manifest) -> None:
        """Nobody else is to be told."""


def contribution(
    mechanism: Mechanism, step: Step, site: Any, published: Published, own: Noise | None
) -> Sums:
    """What a site adds to the sums of a step, with its share of the noise; private on its own.

    Args:
        mechanism: of the release.
        step: of the release.
        site: its data.
        published: before this step.
        own: the site's noise; None where an aggregator adds all of it.
    """
    given = mechanism.contribute(step, site, published)
    if own is None:
        return given
    return _with_noise(mechanism, step, given, published, own, NoisySum.share)


def perturbed(
    mechanism: Mechanism, step: Step, sums: Sums, published: Published, noise: Noise | None
) -> Sums:
    """The sums of a step as they are published: with noise added once, fitted into their storage.

    Args:
        mechanism: of the release.
        step: of the release.
        sums: over all sites; private, unless they hold all shares of the noise.
        published: before this step.
        noise: of the aggregator; None where the sums hold the shares of all sites.
    """
    if noise is not None:
        sums = _with_noise(mechanism, step, sums, published, noise, NoisySum.perturb)
    stored = {}
    for name, rows in sums.items():
        noisy_sum = mechanism.noisy_sum(step, name, published)
        stored[name] = np.stack([noisy_sum.store(row) for row in rows])
    return stored


def _with_noise(
    mechanism: Mechanism,
    step: Step,
    sums: Sums,
    published: Published,
    noise: Noise,
    add: Callable[[NoisySum, Integers, Stream], Integers],
) -> Sums:
    made = {}
    for name, rows in sums.items():
        noisy_sum = mechanism.noisy_sum(step, name, published)
        streams = mechanism.streams(noise, step, name, published)
        noisy = [add(noisy_sum, row, stream) for row, stream in zip(rows, streams, strict=True)]
        made[name] = np.stack(noisy)
    return made
