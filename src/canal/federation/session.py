"""A site's idempotent responses within one session.

What leaves the site is computed once, is on disk before it is sent, and is the same bytes whenever
it is asked for. Under `secure-sum` it holds the site's share of the noise and a mask: alone, it is
uniformly random to whoever reads it.

Every number is derived here from the contract, and believed from nobody. What the aggregator says
was published it is held to: the same step has one result for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import RefusalError, ReleaseError
from canal.federation.masks import mask
from canal.federation.message import Message
from canal.privacy.randomness import Secret
from canal.release.checks import same
from canal.release.mechanism import Noise, Published, Step, Sums, contribution, digest
from canal.release.registry import kind_of
from canal.release.verification import check_statement

if TYPE_CHECKING:
    from canal.federation.cohort import Cohort
    from canal.federation.contract import Contract
    from canal.federation.journal import Journal
    from canal.privacy.ledger import Charge
    from canal.release.manifest import Manifest
    from canal.release.mechanism import Mechanism, ReleaseSpec

_log = logging.getLogger(__name__)


class Session:
    """One session, as a site sees it.

    Args:
        contract: what the session is about.
        journal: of the session, which this process has open.
        cohort: what the site has; private.
    """

    def __init__(self, contract: Contract, journal: Journal, cohort: Cohort) -> None:
        self.contract, self.journal, self.cohort = contract, journal, cohort
        self.part = kind_of(contract.spec.kind).at_site(contract.spec, cohort)
        for number in journal.inputs():
            with suppress(RefusalError):  # of another contract, or damaged: asked for again
                self.part.accept(number, journal.read_input(number))
        self._published = Published()

    @property
    def spec(self) -> ReleaseSpec:
        """What the release will be."""
        return self.contract.spec

    @property
    def mechanism(self) -> Mechanism:
        """What follows from the contract and its public inputs."""
        mechanism: Mechanism = self.part.mechanism
        return mechanism

    @cached_property
    def due(self) -> list[Charge]:
        """What this site pays."""
        if not self.spec.private:
            return []
        name = self.cohort.settings.name
        return [charge for charge in self.mechanism.charges() if charge.cohort == name]

    @property
    def people(self) -> Sequence[frozenset[str]] | None:
        """Content digests of every patient's images, where they are known; private."""
        people: Sequence[frozenset[str]] | None = self.part.data.people
        return people

    @property
    def lacking(self) -> list[int]:
        """Blocks of public inputs that did not come yet."""
        lacking: list[int] = self.part.lacking
        return lacking

    def accept(self, number: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep a block of public inputs, if it is what the contract names."""
        lacked, kept = self.lacking, self.part.accept(number, arrays)
        if number in lacked:
            self.journal.keep_input(number, kept)

    def check(self, stated: Any) -> None:
        """Refuse numbers that do not follow from the contract, and what cannot be done here.

        What this machine cannot do, and what is wrong with the data, is found before it costs.
        """
        if not same(stated, self.mechanism.stated):
            raise RefusalError(
                "the noise that is stated is not what the plan's epsilon needs; this site derived "
                "other numbers"
            )
        self.part.check()

    def refuse_repeated(self, others: Sequence[Journal]) -> None:
        """Refuse a second view of a public item: in this session, or after another that answered.

        Args:
            others: all sessions of the site.
        """
        items = self.part.items
        if len(set(items)) < len(items):
            raise RefusalError(
                "an image is there twice under two names; a second view of it is another release, "
                "which this site does not give"
            )
        for other in others:
            if other.folder == self.journal.folder or not other.has_answered:
                continue
            before = set(items) & set(other.items)
            if before:
                raise RefusalError(
                    f"{len(before)} of these queries were answered in another session; a second "
                    "view of a query is another release, which this site does not give"
                )

    def announce(self, statistics: Any, numbers: Any) -> None:
        """Keep the results of the preliminaries, as they were published."""
        if self.journal.published not in (None, statistics):
            raise RefusalError("other statistics were published in this session")
        published = Published(statistics)
        for step in self.mechanism.preliminaries():
            if not self.journal.answered(step.name, step.number):
                raise RefusalError(f"{step.name} {step.number} was never answered here")
        try:
            self.mechanism.check_statistics(statistics)
        except ReleaseError as error:
            raise RefusalError(f"nobody published these statistics: {error}") from error
        if not same(numbers, self.mechanism.numbers(published)):
            raise RefusalError(
                "the mechanism that is stated does not follow from the plan and the published "
                "statistics; this site derived other noise"
            )
        if self.journal.published is None:
            self.journal.publish(statistics)

    def respond(self, name: str, number: int, latest: Sums, request: bytes) -> bytes:
        """This site's part of the sums of one step.

        Args:
            name: of the step.
            number: among the steps of this name.
            latest: what was published of the step before, where steps depend on each other.
            request: the message itself, word for word.
        """
        step = self._step(name, number)
        earlier = self.journal.answer(name, number, request)
        if earlier is not None:
            return earlier
        published = self._before(name, number, latest)
        self.part.check()  # what a machine cannot do is not the patients' secret
        try:
            own, data = self._noise(), self.part.data
            made = contribution(self.mechanism, step, data, published, own)
        except Exception as error:
            # Its reason may tell of private data.
            _log.exception("%s %d", name, number)
            raise RefusalError(
                f"{name} {number} could not be made; this site's log says why"
            ) from error
        if self._secure:
            sent = self._masked(made, digest([name, number, published.digest.hex()]))
        else:
            sent = {part: values.astype(np.int32) for part, values in made.items()}
        answer = Message({"ok": True, "step": name, "number": number}, sent).to_bytes()
        self.journal.keep(name, number, request, answer)
        return answer

    def check_published(self, manifest: Manifest) -> None:
        """Refuse a manifest that is not of what was agreed to and computed here."""
        mechanism, published = self.mechanism, self._announced()
        try:
            check_statement(manifest)
            stated = mechanism.statistics(published)
            told = {
                name: value
                for name, value in manifest.statistics.items()
                if name not in mechanism.untold
            }
            agrees = {
                "kind": manifest.kind == self.spec.kind,
                "plan": manifest.plan == self.spec.plan.to_json(),
                "participants": manifest.participants == mechanism.participants,
                "statistics": told == stated,
                "content": list(manifest.rows) == list(mechanism.row_names),
                "charge": manifest.ledger is None or manifest.ledger["key"] == self.contract.key,
                "privacy": manifest.private == self.spec.private,
            }
        except (ReleaseError, LookupError, TypeError) as error:
            raise RefusalError(f"this manifest does not hold together: {error}") from error
        other = [what for what, agreed in agrees.items() if not agreed]
        if other:
            raise RefusalError(f"the manifest has another {', '.join(other)} than was agreed to")
        steps = [step for shard in mechanism.shards() for step in shard]
        if not all(self.journal.answered(step.name, step.number) for step in steps):
            raise RefusalError("a release is finished when every step was answered")

    def _step(self, name: str, number: int) -> Step:
        steps = [*self.mechanism.preliminaries()]
        steps += [step for shard in self.mechanism.shards() for step in shard]
        for step in steps:
            if (step.name, step.number) == (name, number):
                return step
        raise RefusalError(f"this release has no {name} {number}")

    def _announced(self) -> Published:
        """What was published of the preliminaries.

        Raises:
            RefusalError: nothing yet.
        """
        if self.journal.published is None and self.mechanism.announces:
            raise RefusalError(
                f"{', '.join(step.name for step in self.mechanism.preliminaries()) or 'statistics'}"
                " come first; publish their results before anything else is asked"
            )
        return Published(self.journal.published or {})

    def _before(self, name: str, number: int, latest: Sums) -> Published:
        """Everything that was published before a step."""
        if any(step.name == name for step in self.mechanism.preliminaries()):
            return Published()
        announced = self._announced()
        if not self.mechanism.adaptive:
            return announced
        if set(latest) != ({self.mechanism.tensor} if number > 0 else set()):
            raise RefusalError("a step comes with what was published of the one before it")
        if latest:
            self._keep_sum(name, number - 1, latest)
        known = self._published
        if known.statistics != announced.statistics or len(known.sums) > number:
            known = self._published = announced
        known.sums += [self.journal.sum_of(each) for each in range(len(known.sums), number)]
        return known

    def _keep_sum(self, name: str, number: int, latest: Sums) -> None:
        """Have a published sum on disk; another one under the same number is refused."""
        (shape,) = self.mechanism.shapes(self._step(name, number), self._announced()).values()
        stored = latest[self.mechanism.tensor]
        if stored.dtype != np.int32 or stored.shape != shape[1:]:
            raise RefusalError(f"what is published of {name} {number} has another shape")
        if not self.journal.answered(name, number):
            raise RefusalError(f"{name} {number} was never answered here")
        self.journal.keep_sum(number, stored)

    @property
    def _secure(self) -> bool:
        """Whether noise comes in shares, under masks."""
        return bool(self.spec.plan.trust == "secure-sum")

    def _masked(self, made: Sums, about: bytes) -> dict[str, NDArray[Any]]:
        keys, hidden = self.journal.keys(), {}
        for name, values in made.items():
            context = digest([self.contract.digest, about.hex(), name])
            # Integers wrap: this is arithmetic modulo 2^32.
            words = values.astype(np.uint32)
            roster = self.contract.public_keys
            masks = mask(words.size, self.cohort.settings.name, keys, roster, context)
            words += masks.reshape(words.shape)
            hidden[name] = words
        return hidden

    def _noise(self) -> Noise | None:
        """This site's share of it; None where the aggregator adds it all."""
        if not self._secure:
            return None
        seed, claim = self.spec.seed, self.part.data.claim
        secret = self.journal.secret()
        if seed is not None:
            secret = Secret.seeded(seed).at(self.cohort.settings.name)
        return self.spec.noise_of_site(secret, claim)
