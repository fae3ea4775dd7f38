"""Sites that are elsewhere and teach adapters, as an aggregator sees them: sums over all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.federation.message import Message
from canal.federation.remote import add_up_answers, ask, roster
from canal.federation.terms import Terms
from canal.gradients.store import ADAPTERS

if TYPE_CHECKING:
    from torch import Tensor

    from canal.federation.transport import Transport
    from canal.gradients.agreement import AdapterAgreement
    from canal.gradients.mechanism import Mechanism, Stored
    from canal.privacy.randomness import Secret
    from canal.release.manifest import Manifest
    from canal.release.registry import Trust

Integers = NDArray[np.int64]


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
    def names(self) -> tuple[str, ...]:
        """Of the sites, which are those of their cohorts."""
        return tuple(sorted(self.transport.sites))

    @property
    def claims(self) -> list[list[str]]:
        """What determines each site's part; of an aggregator without trust, only names."""
        told = {name: self._members[name].head.get("claim") for name in self.names}
        return [list(claim) if claim else [name] for name, claim in told.items()]

    @property
    def people(self) -> dict[str, tuple[frozenset[str], ...]]:
        """Nothing: each site binds its own, in its own ledger."""
        return {}

    def consider(
        self,
        agreement: AdapterAgreement,
        mechanism: Mechanism,
        secret: Secret,  # noqa: ARG002
        key: str,
    ) -> None:
        """Ask whether all would agree: nobody pays for a release that another refuses."""
        self._terms = Terms(self.session, key, agreement, roster(self._members))
        self._stated = mechanism.to_json()
        if mechanism.basis is not None:
            self._basis = mechanism.basis.to_arrays()
        self._propose("consider")

    def begin(self) -> None:
        """Have every site agree, and pay."""
        self._propose("agree")

    def _propose(self, kind: str) -> None:
        assert self._terms is not None  # noqa: S101  # considered
        self._ask(kind, self._basis, terms=self._terms.to_json(), stated=self._stated)

    def count(self, mechanism: Mechanism) -> int:  # noqa: ARG002
        """How many patients all sites have, in parts; with all shares of the noise, if any."""
        answers = self._ask("count")
        return int(add_up_answers(self.trust, self.names, answers, "patients", (1,))[0])

    def publish(self, parts: int) -> None:
        """Tell every site how many patients were counted."""
        self._ask("publish", patients=parts)

    def total(
        self,
        mechanism: Mechanism,
        number: int,
        values: Tensor,  # noqa: ARG002  # every site takes the steps itself
        latest: Stored | None,
        published: bytes,  # noqa: ARG002
    ) -> Integers:
        """The sum of one round over all sites, `[d]`; with all shares of the noise, if any."""
        arrays = {} if latest is None else {"latest": np.ascontiguousarray(latest)}
        answers = self._ask("round", arrays, number=number)
        shape = (mechanism.calibrated.plan.coordinates,)
        return add_up_answers(self.trust, self.names, answers, "sum", shape).astype(np.int64)

    def finish(self, manifest: Manifest) -> None:
        """Tell every site what was published."""
        self._ask("finish", manifest=manifest.to_bytes().decode())

    def _ask(
        self, kind: str, arrays: Mapping[str, NDArray[Any]] | None = None, **values: Any
    ) -> dict[str, Message]:
        head = {"kind": kind, "session": self.session, **values}
        return ask(self.transport, Message(head, arrays or {}))
