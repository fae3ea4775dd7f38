"""Membership of patients, attacked in a real release: its site, its other teachers, its queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from canal.attacks.finding import Finding, features_mu
from canal.attacks.lira import Shadows, distances, likelihood_ratios
from canal.attacks.roc import Roc
from canal.attacks.shadows import Pool
from canal.attacks.view import Floats, noiseless_rows, released_rows, spreads
from canal.errors import InvalidValueError
from canal.release.ensemble import Ensemble, load_ensemble
from canal.release.store import Release

if TYPE_CHECKING:
    from canal.data.cache import Arrays


PLAIN = "plain distance attack"
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
) -> Finding:
    """Attack what was really released about one site.

    Args:
        target: the release, and what was asked.
        ensemble: all of its teachers.
        site: whose cohort.
        pool: patients who may be in it, and who really are.
        shadows: features of the shadows (`Target.features`), and who is in which.
        progress: called with the number of images that passed through a network.
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
    return Finding(name, release.manifest.digest, lira, "patient", mu, (PLAIN, plain))


@dataclass(frozen=True)
class Played:
    """An attack on shadows that play the released teacher in turn.

    Args:
        roc: members of every shadow against those who are not in it.
        by_chance: areas of the same attack on the same evidence, had the halves been drawn
            otherwise: features of nobody in particular.
    """

    roc: Roc
    by_chance: Floats

    @property
    def auc_interval(self) -> tuple[float, float]:
        """Of the area, at 95 %; as wide as halves drawn anew make it.

        Shadows are scored by each other, so their scores are not independent, and an interval that
        takes them so is too narrow.
        """
        wide = 1.96 * float(self.by_chance.std())
        return max(0.0, self.roc.auc - wide), min(1.0, self.roc.auc + wide)

    @property
    def p(self) -> float:
        """How often chance alone does as well: exact, whatever the features."""
        better = int((self.by_chance >= self.roc.auc).sum())
        return (1 + better) / (1 + len(self.by_chance))


def attack_shadows(
    shadows: Shadows, sigma: Floats, seed: int, redraws: int = 199
) -> tuple[Played, Played]:
    """Attack each shadow in turn as if it had been released, with the others as shadows.

    Args:
        shadows: halves of a pool, complements a half of the list apart (`Pool.halves`).
        sigma: the noise, in units of features.
        seed: of the noise that is played.
        redraws: of the halves, to know what chance does.

    Returns:
        The likelihood ratio, and the plain distance.
    """
    count = len(shadows.members)
    if not np.array_equal(shadows.members[: count // 2], ~shadows.members[count // 2 :]):
        raise InvalidValueError("shadows must come in pairs of complements")
    rng = np.random.default_rng(seed)
    parts = shadows.features + rng.standard_normal(shadows.features.shape)
    drawn = [shadows.members, *(_redrawn(shadows.members, rng) for _ in range(redraws))]
    played = []
    for attack, weights in ((likelihood_ratios, None), (distances, sigma**2)):
        gram = shadows.inner_products(weights=weights)
        observed = shadows.inner_products(parts, weights)
        found, *by_chance = (_play(attack, gram, members, observed) for members in drawn)
        played.append(Played(found, np.array([roc.auc for roc in by_chance])))
    return played[0], played[1]


def _play(attack: Attack, gram: Floats, members: NDArray[np.bool_], observed: Floats) -> Roc:
    count = len(members)
    scores = np.stack(
        [
            attack(gram, members, observed[target], (target, (target + count // 2) % count))
            for target in range(count)
        ]
    )
    return Roc.of(scores[members], scores[~members])


def _redrawn(members: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Other halves of the same sizes."""
    first = rng.permuted(members[: len(members) // 2], axis=1)
    return np.concatenate([first, ~first])
