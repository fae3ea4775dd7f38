"""What a site is asked in a session of adapters: round after round, about its patients.

The network of a round follows from the sums of all earlier ones, which the aggregator publishes;
a site keeps them and takes every step itself. Whatever it is told, a patient moves its answer by no
more than the plan says: rounds compose, however their networks are chosen. So it need not believe
the sums, but it holds the aggregator to them, and to their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import InvalidValueError, RefusalError, ReleaseError
from canal.federation.journal import Journal
from canal.federation.message import Message
from canal.federation.terms import Terms
from canal.gradients.basis import Basis
from canal.gradients.machine import check_rows, made_up
from canal.gradients.mechanism import GradientMechanism, PatientSum
from canal.gradients.public import Public
from canal.learning import checkpoint
from canal.learning.networks import weights_digest
from canal.privacy.ledger import Charge
from canal.release.manifest import Manifest
from canal.release.mechanism import Integers, Published
from canal.release.verification import check_statement


class Lessons:
    """One session, as a site sees it.

    Args:
        terms: that it agreed to.
        journal: of the session.
        init: gives the folder of the initialisation that the terms name.
        chunk: images a pass.
    """

    def __init__(
        self, terms: Terms, journal: Journal, init: Callable[[], Path], chunk: int
    ) -> None:
        self.terms, self.journal, self._init, self._chunk = terms, journal, init, chunk
        self._checked = False
        self._before = Published()

    @cached_property
    def _network(self) -> Any:
        network, _ = checkpoint.load(self._init())
        if weights_digest(network) != self.terms.adapters.initialisation:
            raise RefusalError("the rounds start from another initialisation than is here")
        return network

    def check_machine(self) -> None:
        """Refuse a machine on which a sample's gradient depends on the rest of its batch."""
        if self._checked:
            return
        start = checkpoint.describe(self._init())
        shape = self._chunk, int(start.architecture["in_channels"]), *start.size
        try:
            check_rows(self.mechanism.gradients, *made_up(shape))
        except InvalidValueError as error:
            raise RefusalError(str(error)) from error
        self._checked = True

    @cached_property
    def mechanism(self) -> GradientMechanism:
        """What follows from the terms, derived here and believed from nobody."""
        spec = self.terms.adapters
        try:
            coordinates = spec.plan.adapter.install(self._network)
            basis = self._basis() if spec.plan.directions else None
            public = Public.from_json(spec.public, coordinates.groups, basis)
            patient_sum = PatientSum.of(spec.plan.calibrate(public.weights), public)
        except (InvalidValueError, LookupError, TypeError, ValueError) as error:
            raise RefusalError(f"these terms do not fit the network: {error}") from error
        return GradientMechanism(spec, patient_sum, self._network, coordinates, coordinates.read())

    def receive(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep the public basis, if the terms have one; whether it is the right one, they say."""
        if not self.terms.adapters.plan.directions or self.journal.basis.is_file():
            return
        if not arrays:
            raise RefusalError("these terms come with a basis, and it is missing")
        self.journal.write(self.journal.basis, Message({}, dict(arrays)).to_bytes())

    def _basis(self) -> Basis:
        return Basis.from_arrays(Message.from_bytes(self.journal.basis.read_bytes()).arrays)

    @property
    def stated(self) -> dict[str, Any]:
        """Every number that the plan fixes, as this site derives it."""
        return self.mechanism.stated

    @property
    def due(self) -> list[Charge]:
        """What everyone pays."""
        return self.mechanism.charges()

    @property
    def published(self) -> Published:
        """The count of the patients, where there is one.

        Raises:
            RefusalError: it was not published yet.
        """
        counted = self.journal.published
        if self.terms.adapters.plan.count and counted is None:
            raise RefusalError("rounds come after the count of patients; publish that first")
        return Published(counted or {})

    def publish(self, parts: int) -> None:
        """Keep the number of patients that was published."""
        told = {"patients": parts}
        if not self.terms.adapters.plan.count:
            raise RefusalError("the number of patients was stated; nobody counts it")
        if self.journal.published not in (None, told):
            raise RefusalError("another number of patients was published in this session")
        if self.journal.published is None:
            self.journal.publish(told)

    def before(self, number: int, latest: Integers | None) -> Published:
        """All that was published before a round.

        Args:
            number: of the round.
            latest: the sum of the round before it, as it was published; None for the first.
        """
        plan = self.terms.adapters.plan
        if not 0 <= number < plan.rounds:
            raise RefusalError(f"there is no round {number}; {plan.rounds} were agreed on")
        if (latest is None) != (number == 0):
            raise RefusalError("a round comes with the sum of the one before it")
        if latest is not None:
            self._keep(number - 1, latest)
        if len(self._before.sums) > number or not self._before.sums:
            self._before = self.published
        known = self._before.sums
        known += [self._kept(each) for each in range(len(known), number)]
        return self._before

    def _keep(self, number: int, stored: Integers) -> None:
        """Have a published sum on disk; another one under the same number is refused."""
        size = self.terms.adapters.plan.coordinates
        if stored.dtype != np.int32 or stored.shape != (size,):
            raise RefusalError(f"the sum of a round has {size} integers")
        if self.journal.answers("round") <= number:
            raise RefusalError(f"round {number} was never answered here")
        path = self.journal.folder / f"sum-{number:06d}"
        content = Message({}, {"sum": stored}).to_bytes()
        if not path.is_file():
            self.journal.write(path, content)
        elif path.read_bytes() != content:
            raise RefusalError(f"another sum was published for round {number}")

    def _kept(self, number: int) -> Integers:
        path = self.journal.folder / f"sum-{number:06d}"
        if not path.is_file():
            raise RefusalError(f"the sum of round {number} did not come yet")
        stored: Integers = Message.from_bytes(path.read_bytes()).arrays["sum"]
        return stored

    def check_published(self, manifest: Manifest) -> None:
        """Refuse a manifest that is not of what was agreed to and answered here."""
        agreement = self.terms.adapters
        try:
            check_statement(manifest)
            public = {name: manifest.statistics[name] for name in agreement.public}
            same = {
                "plan": manifest.plan == agreement.plan.to_json(),
                "participants": manifest.participants
                == {
                    "cohorts": list(agreement.cohorts),
                    "initialisation": agreement.initialisation,
                    "views": agreement.views,
                },
                "public numbers": public == agreement.public,
                "number of patients": manifest.statistics["patients"]
                == self.mechanism.patients(self.published),
                "update": manifest.statistics["update"] == agreement.update.to_json(),
                "charge": manifest.ledger is None or manifest.ledger["key"] == self.terms.key,
                "privacy": manifest.private == agreement.private,
            }
        except (ReleaseError, LookupError, TypeError) as error:
            raise RefusalError(f"this manifest does not hold together: {error}") from error
        other = [what for what, agrees in same.items() if not agrees]
        if other:
            raise RefusalError(f"the manifest has another {', '.join(other)} than was agreed to")
        if self.journal.answers("round") < agreement.plan.rounds:
            raise RefusalError("a release is finished when every round was answered")
