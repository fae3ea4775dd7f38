r"""Membership attacks on a release: was this image among the queries, this patient in a cohort?

*Images* (`match`), with the true teachers. The strongest adversary there is: it holds every
teacher, knows caps and sigmas, and has images of the same kind for reference. For a candidate x it
computes the noiseless mean f(x) that a release of x would have had, and compares it with every
released row $r_j = f(x_j) + \text{noise}$. By Neyman and Pearson the best score is the likelihood
ratio
$$\Lambda(x) = \frac1N \sum_j \frac{p(r_j \mid f(x))}{p(r_j)},$$
where $p(\cdot \mid f)$ is the Gaussian of the release around f, and $p(\cdot)$ that of a row about
somebody else: the population, fitted to the references, and the noise. Without noise it is right
every time; this is what gives an AUC of 1.

*Patients of a feature release* (`attack_patients`, `attack_canaries`). All other teachers are taken
off the release, and LiRA is made on what is left of one site's.

*Patients of a gradient release* (`attack_rounds`). The network of every round follows from what was
published, so whoever has a patient's images knows what that patient adds to each sum if present:
integers $n_{t,p}$ in units of the lattice step $\gamma$. The published sums are then
$$s_t = \sum_p b_p n_{t,p} + \eta_t, \qquad \eta_t \sim \mathcal N(0, \sigma^2/\gamma^2),$$
and all that they say of the memberships b is in two inner products over all rounds, in units of the
noise: $G_{pq} = \sum_t \langle n_{t,p}, n_{t,q} \rangle$ and
$o_p = \sum_t \langle n_{t,p}, s_t \rangle$. No shadow is trained. An adversary who knows all others
projects the sums, less their part, on the patient's (`known_ratios`); one who knows nobody's
membership weighs the projection by what others, of either kind, do to it (`exact_ratios`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from canal.attacks.individual import parts_of_rounds
from canal.attacks.lira import Pool, Shadows, distances, exact_ratios, likelihood_ratios
from canal.attacks.roc import Finding, Played, Roc, features_mu
from canal.attacks.view import Floats, check_teachers, noiseless_rows, released_rows, spreads
from canal.errors import InvalidValueError
from canal.features.ensemble import Ensemble, load_ensemble
from canal.features.store import Release

if TYPE_CHECKING:
    from torch import nn

    from canal.data.arrays import Arrays
    from canal.gradients.patients import Patients
    from canal.gradients.store import AdapterRelease
    from canal.privacy.events import Guarantee


def match(
    release: Release,
    ensemble: Ensemble,
    members: Arrays,
    others: Arrays,
    progress: Callable[[int], None] = lambda count: None,
) -> Roc:
    """Attack a release with the teachers that made it.

    Args:
        release: any, with noise or without.
        ensemble: its teachers.
        members: images that were asked about.
        others: images of the same kind that were not. Every second one is a reference, so that no
            candidate is among its own.
        progress: called with the number of images that passed through a network.
    """
    check_scene(release, ensemble, members, others)
    spread = spreads(release)
    rows = released_rows(release) / spread
    true = {
        name: noiseless_rows(release, ensemble, arrays, progress) / spread
        for name, arrays in (("members", members), ("others", others))
    }
    references, candidates = true["others"][::2], true["others"][1::2]
    nobody = _log_population(rows, references)
    scores = [_score(rows, chosen, nobody) for chosen in (true["members"], candidates)]
    return Roc.of(*scores)


def check_scene(release: Release, ensemble: Ensemble, members: Arrays, others: Arrays) -> None:
    """Refuse other teachers than the release's, strangers for members, members for others.

    An image of the release for which nobody says that it is a member is no other either.
    """
    check_teachers(release, ensemble)
    missing = [name for name in members.ids if name not in release]
    if missing:
        raise InvalidValueError(
            f"{len(missing)} of the {len(members.ids)} members are not in {release.path} "
            f"({missing[0]}, …); give the images that it was asked about"
        )
    named = set(members.ids)
    released = [name for name in others.ids if name in release and name not in named]
    if released:
        raise InvalidValueError(
            f"{len(released)} of the {len(others.ids)} others are in {release.path} "
            f"({released[0]}, …), though not among the members given; give images that it was not "
            "asked about, or name them otherwise if they only share a name"
        )
    asked = {image.tobytes() for image in members.images}
    known = sum(image.tobytes() in asked for image in others.images)
    if known or len(others.ids) < 4:
        raise InvalidValueError(
            f"others must be at least 4 images that are not members; {known} of these "
            f"{len(others.ids)} are"
        )


def _score(rows: Floats, means: Floats, nobody: Floats) -> Floats:
    """The log of the likelihood ratio of each candidate, up to a constant; noise has variance 1."""
    found = np.empty(len(means))
    for index, mean in enumerate(means):
        ratios = -np.square(rows - mean).sum(axis=1) / 2 - nobody
        top = ratios.max()
        found[index] = top + np.log(np.exp(ratios - top).mean())
    return found


def _log_population(rows: Floats, references: Floats) -> Floats:
    r"""Log-density of rows about images like the references, up to a constant; noise included.

    A Gaussian whose covariance is that of the references along their first directions, and alike
    along all others (probabilistic PCA, Tipping and Bishop 1999); there are fewer references than
    dimensions.
    """
    mean = references.mean(axis=0)
    _, singular, directions = np.linalg.svd(references - mean, full_matrices=False)
    variances = singular**2 / (len(references) - 1)
    kept = max(1, len(references) // 4)
    rest = variances[kept:].sum() / max(1, references.shape[1] - kept)
    along = (rows - mean) @ directions[:kept].T
    excess = np.maximum(variances[:kept] - rest, 0)
    quadratic = np.square(rows - mean).sum(axis=1)
    quadratic -= np.square(along) @ (excess / (1 + rest + excess))
    density: Floats = -quadratic / (2 * (1 + rest))
    return density


PLAIN = "plain distance attack"
# Members are drawn again so often, to know what chance does.
CONTROLS = 19
Attack = Callable[[Floats, NDArray[np.bool_], Floats, Sequence[int]], Floats]


@dataclass(frozen=True)
class Target:
    """One site's part of a release, as an adversary who knows everybody else sees it.

    Args:
        release: the release.
        queries: what was asked, in the order of the release.
        noise: standard deviation on every value of one teacher's part, `[N·M·H·W]`.
    """

    release: Release
    queries: Arrays
    noise: Floats

    @classmethod
    def of(cls, release: Release, queries: Arrays) -> Target:
        """Of a release and the images that it was asked about."""
        if not len(spreads(release)):
            raise InvalidValueError(f"{release.path} has no channel to attack")
        # The release is a mean over K: one teacher's part is 1/K of it.
        one = release.plan.participants.teachers * spreads(release)
        return cls(release, queries.rows(release.ids), np.tile(one, len(release)))

    def part(
        self, ensemble: Ensemble, site: str, progress: Callable[[int], None] = lambda count: None
    ) -> Floats:
        """What the release says of one site's teacher, in units of the noise.

        Args:
            ensemble: all teachers; the site's own is not looked at.
            site: whose cohort is attacked.
            progress: called with the number of images that passed through a network.
        """
        others = tuple(t for t in ensemble.teachers if t.cohort != site)
        if len(others) != len(ensemble.teachers) - 1:
            raise InvalidValueError(
                f"no teacher of {site!r} is in the release; it has {', '.join(ensemble.cohorts)}"
            )
        teachers = len(ensemble.teachers)
        total = teachers * released_rows(self.release)
        if others:
            known = replace(ensemble, teachers=others, shared=None)
            total -= len(others) * noiseless_rows(self.release, known, self.queries, progress)
        return total.ravel() / self.noise

    def features(
        self, networks: Sequence[Path], progress: Callable[[int], None] = lambda count: None
    ) -> Floats:
        """The same without noise for networks of the adversary, `[S, N·M·H·W]`."""
        return np.stack(
            [
                noiseless_rows(
                    self.release, load_ensemble([network]), self.queries, progress
                ).ravel()
                / self.noise
                for network in networks
            ]
        )


def attack_patients(
    target: Target,
    ensemble: Ensemble,
    site: str,
    pool: Pool,
    shadows: Shadows,
    progress: Callable[[int], None] = lambda count: None,
    seed: int = 0,
) -> Finding:
    """Attack what was really released about one site.

    Args:
        target: the release, and what was asked.
        ensemble: all of its teachers.
        site: whose cohort.
        pool: patients who may be in it, and who really are.
        shadows: features of the shadows (`Target.features`), and who is in which.
        progress: called with the number of images that passed through a network.
        seed: of the members that are drawn again, for the control.
    """
    part = target.part(ensemble, site, progress)
    inside = np.isin(pool.patients, pool.members)

    def scored(attack: Attack, weights: Floats | None = None) -> Roc:
        observed = shadows.inner_products(part[None], weights)[0]
        scores = attack(shadows.inner_products(weights=weights), shadows.members, observed, ())
        return Roc.of(scores[inside], scores[~inside])

    lira, plain = scored(likelihood_ratios), scored(distances, target.noise**2)
    name = f"membership of patients of {site} (LiRA, {len(shadows.members)} shadows)"
    release = target.release
    mu = features_mu(release, "patient")
    control = attack_shadows(shadows, target.noise, seed, CONTROLS, noise=0)[0]
    return Finding(
        *(name, release.manifest.digest, lira, "patient", mu, (PLAIN, plain)),
        control=control,
        individual=True,
    )


def attack_canaries(target: Target, shadows: Shadows, seed: int = 0) -> Finding:
    """Attack what would have been released, had a site's teacher been one of the shadows.

    Args:
        target: the release, and what was asked.
        shadows: features of teachers with half of the canaries each, and with which.
        seed: of the noise that is played, and of members that are drawn again.
    """
    mu = features_mu(target.release, "patient")
    lira, plain = attack_shadows(shadows, target.noise, seed, CONTROLS, noise=mu is not None)
    control = attack_shadows(shadows, target.noise, seed, CONTROLS, noise=0)[0]
    count, canaries = shadows.members.shape
    return Finding(
        f"membership of {canaries} canaries (LiRA, {count} shadows)",
        *(target.release.manifest.digest, lira.roc, "patient", mu, (PLAIN, plain.roc)),
        control=control,
        interval=lira.auc_interval,
    )


def attack_shadows(
    shadows: Shadows, sigma: Floats, seed: int, redraws: int = 199, noise: float = 1.0
) -> tuple[Played, Played]:
    """Attack each shadow in turn as if it had been released, with the others as shadows.

    Args:
        shadows: pairs of complements (`Pool.halves`).
        sigma: the noise, in units of features.
        seed: of the noise that is played.
        redraws: of the members, to know what chance does.
        noise: what is played, in units of the noise of the release: 0 is the noiseless control.

    Returns:
        The likelihood ratio, and the plain distance.
    """
    rng = np.random.default_rng(seed)
    parts = shadows.features + noise * rng.standard_normal(shadows.features.shape)
    drawn = [shadows.members, *(_redrawn(shadows.members, rng) for _ in range(redraws))]
    played = []
    for attack, weights in ((partial(likelihood_ratios, noise=noise), None), (distances, sigma**2)):
        gram = shadows.inner_products(weights=weights)
        observed = shadows.inner_products(parts, weights)
        found, *others = (_play(attack, gram, members, observed) for members in drawn)
        chance = [Roc.of(s[m], s[~m]).auc for s, m in zip(others, drawn[1:], strict=True)]
        played.append(Played(found, shadows.members, np.array(chance), paired=True))
    return played[0], played[1]


def _play(attack: Attack, gram: Floats, members: NDArray[np.bool_], observed: Floats) -> Floats:
    """Scores of all shadows, `[S, P]`, by those that are neither it nor its complement."""
    half, scores = len(members) // 2, np.zeros(members.shape)
    for target in range(half):
        pair = (target, target + half)
        scores[list(pair)] = attack(gram, members, observed[list(pair)], pair)
    return scores


def _redrawn(members: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Other members, as many in every shadow."""
    first = rng.permuted(members[: len(members) // 2], axis=1)
    return np.concatenate([first, ~first])


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
