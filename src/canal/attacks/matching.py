r"""Membership of images: is this image among the queries? Matching with the true teachers.

The strongest adversary there is: it holds every teacher, knows caps and sigmas, and has images of
the same kind for reference. For a candidate x it computes the noiseless mean f(x) that a release of
x would have had, and compares it with every released row $r_j = f(x_j) + \text{noise}$. By Neyman
and Pearson the best score is the likelihood ratio
$$\Lambda(x) = \frac1N \sum_j \frac{p(r_j \mid f(x))}{p(r_j)},$$
where $p(\cdot \mid f)$ is the Gaussian of the release around f, and $p(\cdot)$ that of a row about
somebody else: the population, fitted to the references, and the noise. Without noise it is right
every time; this is what gives an AUC of 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from canal.attacks.roc import Roc
from canal.attacks.view import Floats, check_teachers, noiseless_rows, released_rows, spreads
from canal.errors import InvalidValueError
from canal.features.ensemble import Ensemble
from canal.features.store import Release

if TYPE_CHECKING:
    from collections.abc import Callable

    from canal.data.arrays import Arrays


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
