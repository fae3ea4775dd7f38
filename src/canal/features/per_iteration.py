"""Per-iteration release, the model of prior work: fresh noise whenever a student asks.

A baseline for research, so that the composition penalty (ssec:accounting) is seen by running it.
Its plan says how many times each query may be asked (`Plan.releases`, Q = T·B/N); at the same
epsilon its noise is then sqrt(Q) times that of a release made once. There is no folder: what was
asked twice was published twice.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from canal.errors import ReleaseError
from canal.features.clipping import Clipped
from canal.features.mechanism import TeacherSum
from canal.features.store import FEATURES
from canal.learning.networks import to_float
from canal.privacy.events import GaussianEvent, Guarantee
from canal.privacy.randomness import Secret, Stream
from canal.privacy.units import Exposure

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from canal.features.ensemble import Ensemble
    from canal.features.plan import Plan
    from canal.features.queries import Queries


class PerIterationRelease:
    """Answers every batch with new passes through all teachers and new noise.

    Args:
        mechanism: of a plan that allows `releases` answers for each query.
        ensemble: the teachers; private.
        queries: the recipient's images.
        secret: of the noise; a seeded one, since nothing here is charged to a ledger, and a second
            object counts from the start again.
    """

    kind = FEATURES

    def __init__(
        self, mechanism: TeacherSum, ensemble: Ensemble, queries: Queries, secret: Secret
    ) -> None:
        if secret.private:
            raise ReleaseError(
                "the per-iteration baseline is for research and charges nobody; give it "
                "Secret.seeded(...)"
            )
        self.mechanism = mechanism
        self.ensemble = ensemble
        self.queries = queries
        self.secret = secret
        self.asked: Counter[str] = Counter()
        self._rows = {name: row for row, name in enumerate(queries.ids)}
        # Another plan or other teachers under the same secret have noise of their own.
        about = [mechanism.to_json(), [teacher.digest for teacher in ensemble.teachers]]
        self._context = hashlib.sha256(json.dumps(about).encode()).digest()

    @property
    def plan(self) -> Plan:
        """What was asked for."""
        return self.mechanism.calibrated.plan

    @property
    def digest(self) -> str:
        """Of mechanism and teachers."""
        return self._context.hex()

    @property
    def initialisation(self) -> str:
        """Digest of the weights that the teachers started from."""
        return self.ensemble.initialisation

    @property
    def channels(self) -> NDArray[np.int64]:
        """Which of the C channels are answered."""
        return self.mechanism.channels

    @property
    def caps(self) -> NDArray[np.float64]:
        """Of those channels."""
        return self.mechanism.caps

    @property
    def sigma(self) -> NDArray[np.float64]:
        """Noise of each channel, in units of the features."""
        return self.mechanism.sigma * self.mechanism.caps

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def batch(self, names: Sequence[str]) -> Tensor:
        """Features of some queries, `[B, M, *grid]`, with noise that was never used before.

        Raises:
            ReleaseError: a query was asked about as often as the plan allows.
        """
        import torch

        allowed = self.plan.releases
        wanted = self.asked + Counter(names)
        for name in names:
            if name not in self._rows:
                raise ReleaseError(f"query {name!r} is not among the {len(self._rows)} of the plan")
            if wanted[name] > allowed:
                raise ReleaseError(
                    f"query {name!r} was asked about {allowed} times, which is all that the plan "
                    "pays for; plan for more releases, or release once"
                )
        rows = [self._rows[name] for name in names]
        images = to_float(torch.from_numpy(np.asarray(self.queries.arrays.images[rows])))
        given = [
            self.mechanism.contribution(teacher.tap.features(images))
            for teacher in self.ensemble.teachers
        ]
        return torch.stack([self._answer(name, given, place) for place, name in enumerate(names)])

    def _answer(self, name: str, given: list[Clipped], place: int) -> Tensor:
        import torch

        total = np.sum([clipped.integers[place] for clipped in given], axis=0)
        self.asked[name] += 1
        # Paid for under a number of its own: noise is never used twice.
        times = self.asked[name].to_bytes(8, "big")
        content = bytes.fromhex(self.queries.contents[self._rows[name]])
        context = (b"per-iteration", self._context, name.encode(), content, times)
        noisy_sum = self.mechanism.noisy_sum
        stored = noisy_sum.store(noisy_sum.perturb(total, Stream(self.secret.key(*context))))
        scale = self.mechanism.scale.reshape(-1, *[1] * (stored.ndim - 1))
        return torch.from_numpy((stored * scale).astype(np.float32))

    def spent(self) -> Guarantee:
        """What the answers so far promise; a patient is in every one, an image in its own."""
        plan, promise = self.mechanism.calibrated.plan, self.mechanism.calibrated.guarantee
        if not self.asked:
            return Guarantee(tuple(e for e in promise.events if e.name != "features"))
        often = plan.participants.images_per_person * max(self.asked.values())
        total = self.asked.total()
        counts = {"patient": total, "membership": total, "image": often, "paper": often}
        exposures = {
            unit: Exposure(exposure.sensitivity, counts[unit])
            for unit, exposure in plan.participants.features(plan.diameter).items()
        }
        return Guarantee(
            tuple(
                GaussianEvent(event.name, event.sigma, exposures, event.draws)
                if event.name == "features"
                else event
                for event in promise.events
            )
        )
