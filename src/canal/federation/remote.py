"""Sites that are elsewhere, as an aggregator sees them: questions to all, sums of the answers.

What it learns under `secure-sum` is masked words of every site, and their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import FederationError
from canal.features.mechanism import BLOCK, FEATURES, STATISTICS
from canal.federation.masks import add_up
from canal.federation.message import Message
from canal.federation.questions import fingerprints
from canal.federation.terms import Terms

if TYPE_CHECKING:
    from canal.features.mechanism import FeatureMechanism
    from canal.features.queries import Queries
    from canal.features.release import Options
    from canal.federation.transport import Transport
    from canal.learning.networks import Tap
    from canal.privacy.randomness import Secret
    from canal.release.manifest import Manifest
    from canal.release.mechanism import Published, Step, Sums
    from canal.release.plan import Trust

# Blocks that are under way while one is added up.
_AHEAD = 2


class RemoteSites:
    """All sites of one session.

    Args:
        transport: to them.
        session: its name, 32 hexadecimal digits; another release needs another.
        trust: the model of trust.
        shared: the initialisation that all teachers started from.
        queries: the recipient's images.
        options: what cannot change a guarantee.
        research: noise is seeded, and protects nobody.
    """

    def __init__(
        self,
        transport: Transport,
        session: str,
        trust: Trust,
        shared: Tap,
        queries: Queries,
        options: Options,
        *,
        research: bool = False,
    ) -> None:
        self.transport = transport
        self.session = session
        self.trust = trust
        self.shared: Tap | None = shared
        self.queries = queries
        self.options = options
        self._members = self._ask("join", trust=trust, research=research)
        self._mechanism: FeatureMechanism | None = None
        self._terms: Terms | None = None

    @property
    def cohorts(self) -> tuple[str, ...]:
        """Names of the sites, which are those of their cohorts."""
        return tuple(sorted(self.transport.sites))

    @property
    def initialisation(self) -> str:
        """Digest of the weights that all teachers started from."""
        return str(self._common("initialisation"))

    @property
    def trained_initialisation(self) -> bool:
        """Whether those were, or may have been, trained on the recipient's images."""
        return bool(self._common("trained_initialisation"))

    @property
    def layer(self) -> str:
        """That is tapped."""
        return str(self._common("layer"))

    @property
    def claims(self) -> list[list[str]]:
        """What determines each teacher's features; of an aggregator without trust, only names."""
        told = {name: self._members[name].head.get("claim") for name in self.cohorts}
        return [list(claim) if claim else [name] for name, claim in told.items()]

    @property
    def people(self) -> dict[str, tuple[frozenset[str], ...]]:
        """Nothing: each site binds its own, in its own ledger."""
        return {}

    def shape(self, channels: int, size: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """C and grid of the bottleneck, as the initialisation has them."""
        import torch

        assert self.shared is not None  # noqa: S101  # an aggregator always has it
        features = self.shared.features(torch.zeros(1, channels, *size))
        first, *grid = features.shape[1:]
        return int(first), tuple(grid)

    def prepare(self, mechanism: FeatureMechanism, secret: Secret, key: str) -> None:  # noqa: ARG002
        """Ask whether all would agree: nobody pays for a release that another refuses."""
        self._mechanism = mechanism
        self._terms = Terms(
            self.session,
            key,
            mechanism.spec,
            roster(self._members),
            BLOCK,
            fingerprints(self.queries.arrays.images),
        )
        self._propose("consider")

    def commit(self) -> None:
        """Have every site agree, and pay; then send the queries that it has not yet."""
        agreed = self._propose("agree")
        arrays = self.queries.arrays
        for start in range(0, len(arrays.ids), BLOCK):
            rows = slice(start, start + BLOCK)
            lacking = [name for name in agreed if start not in agreed[name].head["there"]]
            if lacking:
                block = {
                    "images": np.asarray(arrays.images[rows]),
                    "masks": np.asarray(arrays.masks[rows]),
                    "labelled": arrays.labelled[rows],
                }
                self._ask("queries", block, lacking, start=start)

    def _propose(self, kind: str) -> dict[str, Message]:
        assert self._terms is not None  # noqa: S101  # prepared
        assert self._mechanism is not None  # noqa: S101  # prepared
        return self._ask(kind, terms=self._terms.to_json(), stated=self._mechanism.stated)

    def sums(self, steps: Sequence[Step], published: Published) -> Iterator[Sums]:
        """The sums of some steps over all sites; with all shares of the noise, if it has any."""
        assert self._mechanism is not None  # noqa: S101  # prepared
        if not steps:
            return
        if steps[0].name == STATISTICS:
            answers = self._ask("statistics")
            vector = (self._mechanism.plan.channels,)
            yield {
                name: add_up_answers(self.trust, self.cohorts, answers, name, vector)[None]
                for name in self._mechanism.private_statistics
            }
            self.options.progress(len(self.cohorts) * len(self.queries.ids))
            return
        teacher_sum = self._mechanism.teacher_sum(published)
        shape = (len(teacher_sum.channels), *self._mechanism.plan.grid)
        with ThreadPoolExecutor(_AHEAD) as pool:
            coming: list[Future[dict[str, Message]]] = []
            for place, step in enumerate(steps):
                while len(coming) < _AHEAD and place + len(coming) < len(steps):
                    number = steps[place + len(coming)].number
                    coming.append(pool.submit(self._ask, "features", block=number))
                answers, rows = coming.pop(0).result(), step.stop - step.start
                total = add_up_answers(
                    self.trust, self.cohorts, answers, "features", (rows, *shape)
                )
                yield {FEATURES: total}
                self.options.progress(rows * len(self.cohorts))

    def announce(self, published: Published) -> None:
        """Tell every site which statistics were published, and what follows from them."""
        assert self._mechanism is not None  # noqa: S101  # prepared
        numbers = self._mechanism.numbers(published)
        self._ask("publish", statistics=published.statistics, mechanism=numbers)

    def finish(self, manifest: Manifest) -> None:
        """Tell every site what was published."""
        self._ask("finish", manifest=manifest.to_bytes().decode())

    def _common(self, what: str) -> Any:
        """What all sites must have in common."""
        told = {name: member.head[what] for name, member in self._members.items()}
        if len(set(told.values())) > 1:
            raise FederationError(
                f"the sites differ in their {what}: {told}; teachers can be averaged only when all "
                "start from one initialisation"
            )
        return next(iter(told.values()))

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
