"""Sites that are elsewhere and teach adapters, as an aggregator sees them: sums over all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.federation.message import Message
from canal.federation.remote import add_up_answers, ask, roster
from canal.federation.terms import Terms
from canal.gradients.mechanism import COUNT
from canal.gradients.plan import ADAPTERS, TENSOR

if TYPE_CHECKING:
    from canal.federation.transport import Transport
    from canal.gradients.mechanism import GradientMechanism
    from canal.privacy.randomness import Secret
    from canal.release.manifest import Manifest
    from canal.release.mechanism import Published, Step, Sums
    from canal.release.plan import Trust


class RemoteCohorts:
    """All sites of one session.

    Args:
        transport: to them.
        session: its name, 32 hexadecimal digits; another release needs another.
        trust: the model of trust.
        initialisation: digest of the weights that the rounds start from; the sites have it.
        views: of an image in a round, each varied another way; 0 for the image as it is.
        research: noise is seeded, and protects nobody.
    """

    def __init__(
        self,
        transport: Transport,
        session: str,
        trust: Trust,
        initialisation: str,
        *,
        views: int = 1,
        research: bool = False,
    ) -> None:
        self.transport, self.session, self.trust = transport, session, trust
        self._members = self._ask(
            "join",
            release=ADAPTERS,
            trust=trust,
            initialisation=initialisation,
            views=views,
            research=research,
        )
        self._terms: Terms | None = None
        self._stated: dict[str, Any] = {}
        self._basis: dict[str, NDArray[Any]] = {}

    @property
    def cohorts(self) -> tuple[str, ...]:
        """Of the sites, which are those of their cohorts."""
        return tuple(sorted(self.transport.sites))

    @property
    def claims(self) -> list[list[str]]:
        """What determines each site's part; of an aggregator without trust, only names."""
        told = {name: self._members[name].head.get("claim") for name in self.cohorts}
        return [list(claim) if claim else [name] for name, claim in told.items()]

    @property
    def people(self) -> dict[str, tuple[frozenset[str], ...]]:
        """Nothing: each site binds its own, in its own ledger."""
        return {}

    def prepare(self, mechanism: GradientMechanism, secret: Secret, key: str) -> None:  # noqa: ARG002
        """Ask whether all would agree: nobody pays for a release that another refuses."""
        self._terms = Terms(self.session, key, mechanism.spec, roster(self._members))
        self._stated = mechanism.stated
        if mechanism.patient_sum.basis is not None:
            self._basis = mechanism.patient_sum.basis.to_arrays()
        self._propose("consider")

    def commit(self) -> None:
        """Have every site agree, and pay."""
        self._propose("agree")

    def _propose(self, kind: str) -> None:
        assert self._terms is not None  # noqa: S101  # prepared
        self._ask(kind, self._basis, terms=self._terms.to_json(), stated=self._stated)

    def sums(self, steps: Sequence[Step], published: Published) -> Iterator[Sums]:
        """The sums of some steps over all sites; with all shares of the noise, if it has any."""
        assert self._terms is not None  # noqa: S101  # prepared
        shape = (self._terms.adapters.plan.coordinates,)
        for step in steps:
            if step.name == COUNT:
                answers = self._ask("count")
                yield {COUNT: add_up_answers(self.trust, self.cohorts, answers, "patients", (1,))}
                continue
            arrays = {}
            if published.sums:
                arrays = {"latest": np.ascontiguousarray(published.sums[-1])}
            answers = self._ask("round", arrays, number=step.number)
            total = add_up_answers(self.trust, self.cohorts, answers, "sum", shape)
            yield {TENSOR: total[None]}

    def announce(self, published: Published) -> None:
        """Tell every site how many patients were counted."""
        self._ask("publish", **published.statistics)

    def finish(self, manifest: Manifest) -> None:
        """Tell every site what was published."""
        self._ask("finish", manifest=manifest.to_bytes().decode())

    def _ask(
        self, kind: str, arrays: Mapping[str, NDArray[Any]] | None = None, **values: Any
    ) -> dict[str, Message]:
        head = {"kind": kind, "session": self.session, **values}
        return ask(self.transport, Message(head, arrays or {}))
