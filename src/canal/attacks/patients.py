"""Membership of patients, attacked in a real release: its site, its other teachers, its queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from canal.attacks.finding import Finding, features_mu
from canal.attacks.lira import Shadows, distances, likelihood_ratios
from canal.attacks.roc import Played, Roc
from canal.attacks.shadows import Pool
from canal.attacks.view import Floats, noiseless_rows, released_rows, spreads
from canal.errors import InvalidValueError
from canal.features.ensemble import Ensemble, load_ensemble
from canal.features.store import Release

if TYPE_CHECKING:
    from canal.data.arrays import Arrays


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
