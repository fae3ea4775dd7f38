r"""Membership of patients, attacked in a gradient release: every published sum is looked at.

The network of every round follows from what was published, so whoever has a patient's images knows
what that patient adds to each sum if present: integers $n_{t,p}$ in units of the lattice step
$\gamma$. The published sums are then
$$s_t = \sum_p b_p n_{t,p} + \eta_t, \qquad \eta_t \sim \mathcal N(0, \sigma^2/\gamma^2),$$
and all that they say of the memberships b is in two inner products over all rounds, in units of the
noise: $G_{pq} = \sum_t \langle n_{t,p}, n_{t,q} \rangle$ and
$o_p = \sum_t \langle n_{t,p}, s_t \rangle$. No shadow is trained. An adversary who knows all others
projects the sums, less their part, on the patient's (`known_ratios`); one who knows nobody's
membership weighs the projection by what others, of either kind, do to it (`exact_ratios`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from canal.attacks.finding import Finding
from canal.attacks.lira import exact_ratios
from canal.attacks.paid import parts_of_rounds
from canal.attacks.roc import Played, Roc
from canal.attacks.view import Floats
from canal.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import nn

    from canal.gradients.patients import Patients
    from canal.gradients.store import AdapterRelease
    from canal.privacy.events import Guarantee

# Draws of memberships and noise in a play; without noise there is less chance, and fewer do.
PLAYS = 200


@dataclass(frozen=True)
class Evidence:
    """What a gradient release says of some patients.

    Args:
        gram: inner products of their parts over all rounds, `[P, P]`, in units of the noise.
        observed: inner products of the published sums with each part, `[P]`.
        finer: how many times smaller the noise would be if it were one lattice step.
    """

    gram: Floats
    observed: Floats
    finer: float

    @property
    def mu(self) -> Floats:
        r"""How far each patient moves all sums, `[P]`: no AUC is above $\Phi(\mu/\sqrt2)$."""
        return np.sqrt(np.diag(self.gram))

    def without_noise(self) -> Evidence:
        """The same parts and sums, held against the noise of one lattice step."""
        much = self.finer**2
        return Evidence(self.gram * much, self.observed * much, 1.0)

    def play(
        self, whom: NDArray[np.bool_], seed: int, *, noise: bool = True, rate: float = 0.5
    ) -> Played:
        """Attack releases that might have been: other members and other noise, on the same way.

        The network of every round is the one of the release. Where the members of a run are drawn
        anew, noise is too.

        Args:
            whom: the patients whose scores count, `[P]`; all are drawn.
            seed: of members and noise.
            noise: False leaves it out, and the adversary knows.
            rate: share of the patients that are members.
        """
        rng = np.random.default_rng(seed)
        seen = self if noise else self.without_noise()
        members = rng.random((PLAYS, len(self.gram))) < rate
        observed = members @ seen.gram
        if noise:
            values, directions = np.linalg.eigh(seen.gram)
            spread = directions * np.sqrt(np.maximum(values, 0))
            observed = observed + rng.standard_normal(members.shape) @ spread.T
        scores = exact_ratios(seen.gram, observed, rate)
        return Played(scores[:, whom], members[:, whom])


def gather(
    release: AdapterRelease,
    network: nn.Module,
    people: Sequence[Patients],
    progress: Callable[[int], None] = lambda count: None,
) -> Evidence:
    """What a release says of patients, be they in it or not.

    Args:
        release: that they may have taken part in.
        network: the initialisation that its rounds started from; it is changed.
        people: of one site, or outsiders; in this order.
        progress: called with the number of images that passed through the network: all of them in
            every round.
    """
    mechanism, rounds = parts_of_rounds(release, network, people, progress)
    calibrated, plan = mechanism.calibrated, release.plan
    # Without noise, what is left is the lattice.
    noise = np.maximum(mechanism.sigma * plan.excess / calibrated.lattice.step, 1.0)
    count = sum(map(len, people))
    gram, observed = np.zeros((count, count)), np.zeros(count)
    for number, found in enumerate(rounds):
        parts = np.concatenate(list(found)) / noise
        gram += parts @ parts.T
        observed += parts @ (release.sums(number) / noise)
    if calibrated.count_sigma:
        # The number of patients is published as well, and each of them is one.
        wide = calibrated.count_sigma * plan.excess
        gram += 1 / wide**2
        observed += release.patients / wide**2
    return Evidence(gram, observed, float(noise.max()))


def attack_rounds(
    release: AdapterRelease,
    evidence: Evidence,
    members: NDArray[np.bool_],
    canaries: NDArray[np.bool_] | None = None,
    seed: int = 0,
) -> Finding:
    """Attack what was really released, or what would have been released of canaries.

    Args:
        release: of gradients.
        evidence: what it says of the pool.
        members: who of the pool really took part, `[P]`.
        canaries: who of the pool was put there by us, `[P]`; the attack is then on these, in
            releases that are played, and on nobody else.
        seed: of the plays.
    """
    rate = float(members.mean()) if canaries is None else 0.5
    if not 0 < rate < 1:
        raise InvalidValueError("an attack needs patients who took part, and patients who did not")
    whom = np.ones(len(members), dtype=bool) if canaries is None else canaries
    control = evidence.play(whom, seed, noise=False, rate=rate)
    plan, name = release.plan, "membership of patients in the sums of all rounds"
    mu = None if plan.allocation == "none" else _mu(release)
    if canaries is not None:
        played = evidence.play(whom, seed + 1, noise=mu is not None, rate=rate)
        name = f"membership of {int(canaries.sum())} canaries in the sums of all rounds"
        return Finding(
            *(name, release.manifest.digest, played.roc, "membership", mu),
            control=control,
            interval=played.auc_interval,
        )
    seen = evidence if mu is not None else evidence.without_noise()
    scores = exact_ratios(seen.gram, seen.observed, rate)
    roc = Roc.of(scores[members], scores[~members])
    return Finding(
        *(name, release.manifest.digest, roc, "membership", mu), control=control, individual=True
    )


def _mu(release: AdapterRelease) -> float:
    """Of one patient, added or removed, by the accounting."""
    from canal.release.verification import check_statement

    promise: Guarantee = check_statement(release.manifest).guarantee
    return promise.mu("membership")
