"""Sites on hosts of their own, as an aggregator sees them: messages to all, sums of the answers.

What it learns under `secure-sum` is masked words of every site, and their sum.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import FederationError
from canal.federation.contract import Contract
from canal.federation.masks import add_up
from canal.federation.message import Message

if TYPE_CHECKING:
    from canal.federation.transport import Transport
    from canal.privacy.randomness import Secret
    from canal.release.manifest import Manifest
    from canal.release.mechanism import Mechanism, Published, Step, Sums
    from canal.release.plan import Trust

# Steps that are under way while one is added up.
_AHEAD = 2


class RemoteFederation:
    """All sites of one session, on hosts of their own.

    Args:
        transport: to them.
        session: its name, 32 hexadecimal digits; another release needs another.
        kind: of the release.
        trust: the model of trust.
        wanted: what the sites must know to introduce themselves.
        research: noise is seeded, and protects nobody.
    """

    def __init__(
        self,
        transport: Transport,
        session: str,
        kind: str,
        trust: Trust,
        wanted: Mapping[str, Any] | None = None,
        *,
        research: bool = False,
    ) -> None:
        self.transport, self.session, self.trust = transport, session, trust
        self._members = self._ask(
            "handshake", release=kind, trust=trust, research=research, **(wanted or {})
        )
        self._contract: Contract | None = None
        self._mechanism: Mechanism | None = None

    @property
    def cohorts(self) -> tuple[str, ...]:
        """Names of the sites, which are those of their cohorts."""
        return tuple(sorted(self.transport.sites))

    @property
    def claims(self) -> list[list[str]]:
        """What determines each site's contributions; to an aggregator without trust, only names."""
        told = {name: self._members[name].head.get("claim") for name in self.cohorts}
        return [list(claim) if claim else [name] for name, claim in told.items()]

    @property
    def people(self) -> dict[str, tuple[frozenset[str], ...]]:
        """Nothing: each site binds its own, in its own ledger."""
        return {}

    def common(self, fact: str) -> Any:
        """A fact that all sites must have in common.

        Args:
            fact: as they named it when they introduced themselves.
        """
        told = {name: member.head[fact] for name, member in self._members.items()}
        if len(set(told.values())) > 1:
            raise FederationError(
                f"the sites differ in their {fact}: {told}; they can be averaged only when all "
                "start from one initialisation"
            )
        return next(iter(told.values()))

    def prepare(self, mechanism: Mechanism, secret: Secret, key: str) -> None:  # noqa: ARG002
        """Ask whether all would agree: nobody pays for a release that another refuses."""
        self._mechanism = mechanism
        self._contract = Contract(self.session, key, mechanism.spec, roster(self._members))
        answers, inputs = self._propose("prepare"), mechanism.inputs
        for number, block in enumerate(inputs):
            lacking = [name for name in answers if number in answers[name].head["lacking"]]
            if lacking:
                contract = self._contract.to_json()
                self._ask("upload", block, lacking, contract=contract, number=number)
        if any(answer.head["lacking"] for answer in answers.values()):
            self._propose("prepare")

    def commit(self) -> None:
        """Have every site agree, and pay."""
        self._propose("commit")

    def _propose(self, kind: str) -> dict[str, Message]:
        assert self._contract is not None  # noqa: S101  # prepared
        assert self._mechanism is not None  # noqa: S101  # prepared
        return self._ask(kind, contract=self._contract.to_json(), stated=self._mechanism.stated)

    def sums(self, steps: Sequence[Step], published: Published) -> Iterator[Sums]:
        """The sums of some steps over all sites; with all shares of the noise, if it has any."""
        mechanism = self._mechanism
        assert mechanism is not None  # noqa: S101  # prepared
        latest = {}
        if mechanism.adaptive and published.sums:
            latest = {mechanism.tensor: np.ascontiguousarray(published.sums[-1])}

        def ask_for(step: Step) -> dict[str, Message]:
            return self._ask("sum", latest, step=step.name, number=step.number)

        with ThreadPoolExecutor(_AHEAD) as pool:
            coming: deque[tuple[Step, Future[dict[str, Message]]]] = deque()
            waiting = iter(steps)
            while True:
                for step in itertools.islice(waiting, _AHEAD - len(coming)):
                    coming.append((step, pool.submit(ask_for, step)))
                if not coming:
                    return
                step, answers = coming.popleft()
                shapes = mechanism.shapes(step, published)
                yield {
                    name: add_up_answers(self.trust, self.cohorts, answers.result(), name, shape)
                    for name, shape in shapes.items()
                }
                mechanism.passed(step)

    def announce(self, published: Published) -> None:
        """Tell every site the results of the preliminaries, and what follows from them."""
        assert self._mechanism is not None  # noqa: S101  # prepared
        numbers = self._mechanism.numbers(published)
        self._ask("announce", statistics=published.statistics, numbers=numbers)

    def finish(self, manifest: Manifest) -> None:
        """Tell every site what was published."""
        self._ask("finish", manifest=manifest.to_bytes().decode())

    def _ask(
        self,
        kind: str,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        whom: Sequence[str] = (),
        **values: Any,
    ) -> dict[str, Message]:
        head = {"kind": kind, "session": self.session, **values}
        return ask(self.transport, Message(head, arrays or {}), whom)


def ask(transport: Transport, question: Message, whom: Sequence[str] = ()) -> dict[str, Message]:
    """Ask all sites, or some, the same; every one of them must say yes.

    Raises:
        FederationError: and names the site that refused, with its reason.
    """
    content = question.to_bytes()
    sites = tuple(whom) or transport.sites
    answers = transport.ask(dict.fromkeys(sites, content))
    missing = sorted(set(sites) - set(answers))
    if missing:
        raise FederationError(
            f"{', '.join(missing)} did not answer ({question.head['kind']}); a sum of fewer is "
            "never made; start the same again when all are there"
        )
    found = {}
    for site in sites:
        answer = Message.from_bytes(answers[site])
        if answer.head.get("ok") is not True:
            raise FederationError(f"{site} refuses: {answer.head.get('error')}")
        found[site] = answer
    return found


def add_up_answers(
    trust: Trust,
    sites: Sequence[str],
    answers: Mapping[str, Message],
    name: str,
    shape: tuple[int, ...],
) -> NDArray[Any]:
    """The sum over all sites; of masked words, what is left when the masks are gone.

    Args:
        trust: the model of trust.
        sites: all of them.
        answers: of every site.
        name: of the array that is added up.
        shape: that it must have.
    """
    words = np.uint32 if trust == "secure-sum" else np.int32
    given = {site: answer.arrays.get(name, np.empty(0)) for site, answer in answers.items()}
    for site, array in given.items():
        if array.shape != shape or array.dtype != words:
            raise FederationError(
                f"{site} sent {name} of {array.dtype} {array.shape}, not of "
                f"{np.dtype(words)} {shape}"
            )
    if trust == "secure-sum":
        return add_up(given, sites)
    # 64 bits: what a site claims cannot make the sum wrap.
    total = np.zeros(shape, dtype=np.int64)
    for site in sites:
        total += given[site]
    return total


def roster(members: Mapping[str, Message]) -> dict[str, dict[str, str]]:
    """Every site's key, certificate and signature, as it introduced itself."""
    return {
        name: {what: str(member.head[what]) for what in ("public", "certificate", "signature")}
        for name, member in members.items()
    }
