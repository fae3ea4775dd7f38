r"""The likelihood-ratio attack (LiRA): shadow teachers, canaries, and the test itself.

The attack of Carlini et al. (2022), for what CANAL publishes. Every published vector is, for the
patients that an adversary has in mind, a sum
$$r = c + \sum_p b_p v_p + \text{training} + \text{noise}, \qquad b_p \in \{0, 1\},$$
and the best test of $b_p$ is linear. There are two cases.

*Features* (`likelihood_ratios`). Nobody knows $v_p$, so the adversary trains *shadow* teachers with
random patients, in pairs of complements, so that each patient is in half of them. With F the
shadows' features less their mean, in units of the noise, $\nu$ the noise on what is attacked and
$y_p$ the memberships, $\pm 1$, the filter is that of ridge regression,
$$w_p = F^\top (F F^\top + n(\nu^2 + \tau) I)^{-1} y_p.$$
Noise on every feature is what a ridge of $n\nu^2$ stands for, so this is the linear discriminant
under the noise that there is: with much noise it is the matched filter
$\mu_\text{in} - \mu_\text{out}$, with little it ignores the directions in which other patients, or
chance, move a teacher. $\tau$ is a small part of the variance between shadows. The score of the
attacked vector is compared under two Gaussians, fitted to the scores of the shadows with and
without the patient, and widened by the noise. No shadow is scored by a filter that it, or its
complement, had a part in.

*Gradients* (`exact_ratios`). The network of every round is public, so what each patient adds is
known, and the others are what is not: $b_q$ of unknown value, of known mean and variance. The
logarithm of the ratio is that of two Gaussians with the same covariance.

An attack on ordinary patients averages over many who leave hardly a trace, and says little about
those whom it would find (Aerni et al. 2024). *Canaries* (`plant`) are real images that are made
unlike all others, so that whoever trains on them must learn each by heart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from canal.attacks.view import Floats
from canal.data.arrays import Arrays
from canal.data.patients import joined
from canal.errors import InvalidValueError
from canal.learning.settings import TrainingSettings
from canal.learning.teacher import train

if TYPE_CHECKING:
    from canal.learning.training import Progress


@dataclass(frozen=True)
class Pool:
    """Patients that a site's cohort may have been drawn from.

    Args:
        arrays: their images.
        patients: in a fixed order.
        members: those who really were in the cohort.
        always: others, who are in every shadow.
    """

    arrays: Arrays
    patients: tuple[str, ...]
    members: tuple[str, ...]
    always: tuple[str, ...] = ()

    @classmethod
    def of_both(cls, cohort: Arrays, outsiders: Arrays) -> Pool:
        """Everybody of a cohort, and others like them; all with labels, none in both.

        A patient is known by a name of the side too: two folders may both have a patient 1. Who
        have a near-identical image are one patient here: a twin in another shadow would hide both.
        """
        for arrays in (cohort, outsiders):
            if arrays.unlabelled:
                raise InvalidValueError(
                    f"shadows learn from labels, and {len(arrays.unlabelled)} images have none "
                    f"({min(arrays.unlabelled)}, …); label them, or leave them out"
                )
        known = {image.tobytes() for image in cohort.images}
        twins = sum(image.tobytes() in known for image in outsiders.images)
        if twins:
            raise InvalidValueError(
                f"{twins} of the outsiders' images are the cohort's own; give images of others"
            )
        sides = [
            replace(arrays, patients={n: f"{side} {one}" for n, one in _named(arrays)})
            for side, arrays in (("cohort", cohort), ("outside", outsiders))
        ]
        both = sides[0].beside(sides[1])
        patients = tuple(dict.fromkeys(both.patients[name] for name in both.ids))
        return cls(both, patients, tuple(p for p in patients if p.startswith("cohort ")))

    @classmethod
    def of_canaries(cls, cohort: Arrays, canaries: Arrays) -> Pool:
        """Canaries, each of whom was put into half of the shadows, beside the whole cohort.

        Args:
            cohort: a site's; it is in every shadow.
            canaries: see `canal.attacks.lira`.
        """
        both = cls.of_both(cohort, canaries)
        planted = tuple(p for p in both.patients if p.startswith("outside "))
        return cls(both.arrays, planted, (), both.members)

    def images(self, patients: Sequence[str]) -> tuple[str, ...]:
        """Ids of the images of some patients."""
        wanted = set(patients)
        return tuple(name for name in self.arrays.ids if self.arrays.patients[name] in wanted)

    def halves(self, count: int, seed: int) -> NDArray[np.bool_]:
        """Who is in which shadow, `[count, P]`: each patient in half of them, drawn at random.

        Shadows come in pairs of complements, so that the halves are even for everybody.
        """
        if count < 2 or count % 2:
            raise InvalidValueError(f"shadows = {count!r} must be even and at least 2")
        rng = np.random.default_rng([seed, len(self.patients)])
        half = np.arange(len(self.patients)) < len(self.patients) // 2
        first = np.array([rng.permutation(half) for _ in range(count // 2)])
        return np.concatenate([first, ~first])


def train_shadows(
    folder: Path,
    init: Path,
    pool: Pool,
    members: NDArray[np.bool_],
    settings: TrainingSettings,
    report: Callable[[int, Progress], None] = lambda number, progress: None,
) -> list[Path]:
    """Train a teacher on each half; those that are there already are not trained again.

    Args:
        folder: where they go, one folder each.
        init: the initialisation that the site's teacher started from.
        pool: all patients.
        members: as `Pool.halves` gives it.
        settings: of the site's own training, order of images included.
        report: of progress, with the number of the shadow.
    """
    made = []
    for number, row in enumerate(members):
        mine = [name for name, inside in zip(pool.patients, row, strict=True) if inside]
        mine += pool.always
        cohort = pool.arrays.rows(pool.images(mine))
        # Named by who is in it: another draw of halves never finds this one's weights.
        name = hashlib.sha256("\n".join(cohort.ids).encode()).hexdigest()[:16]
        place = folder / f"shadow-{name}"
        train(place, init, cohort, settings, name=name, report=lambda p, n=number: report(n, p))  # type: ignore[misc]
        made.append(place)
    return made


def _named(arrays: Arrays) -> Iterable[tuple[str, str]]:
    return zip(arrays.ids, joined(arrays), strict=True)


# Both kinds of shadows need a variance, whichever one is left out.
FEWEST = 3
# Of the variance between shadows, in one direction: what a filter ignores when there is no noise.
_RIDGE = 0.01


@dataclass(frozen=True)
class Shadows:
    """Shadow teachers as the attack sees them.

    Args:
        features: `[S, D]` of each on all queries, in units of the noise on them.
        members: `[S, P]`, whether shadow s was trained on patient p. The second half of the list
            are the complements of the first.
    """

    features: Floats
    members: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if len(self.features) != len(self.members):
            raise InvalidValueError(
                f"{len(self.features)} shadows have features, {len(self.members)} have patients"
            )
        half = len(self.members) // 2
        if not np.array_equal(self.members[:half], ~self.members[half:]):
            raise InvalidValueError("shadows must come in pairs of complements")
        if half < FEWEST:
            raise InvalidValueError(
                f"a patient is in, or out of, only {half} shadows; train enough that each is in "
                f"at least {FEWEST} and out of at least {FEWEST}"
            )

    def of(self, patients: NDArray[np.bool_]) -> Shadows:
        """The same shadows, asked about some of the patients only, `[P]`."""
        return Shadows(self.features, self.members[:, patients])

    def inner_products(self, others: Floats | None = None, weights: Floats | None = None) -> Floats:
        """Of every shadow with others, `[others, S]`; with all shadows if none are given.

        Args:
            others: `[others, D]`, in units of the noise.
            weights: of every value, `[D]`; 1 if not given.
        """
        rows = self.features if others is None else others
        found: Floats = (rows if weights is None else rows * weights) @ self.features.T
        return found


def likelihood_ratios(
    gram: Floats,
    members: NDArray[np.bool_],
    observed: Floats,
    left_out: Sequence[int] = (),
    noise: float = 1.0,
) -> Floats:
    """Log-likelihood ratio of every patient, `[P]` or `[R, P]`; the higher, the likelier a member.

    Args:
        gram: inner products of shadows, `[S, S]`, in units of the noise.
        members: `[S, P]`, pairs of complements half the list apart.
        observed: inner products of the released vector with every shadow, `[S]`, or of R of them.
        left_out: shadows to ignore, in pairs: the one that plays the released teacher, if one does,
            and its complement, without which the numbers of shadows would give the answer away.
        noise: on what was released; 0 for what has none.
    """
    keep = ~np.isin(np.arange(len(gram)), left_out)
    inside = members[keep]
    n, y = len(inside), np.where(inside, 1.0, -1.0)
    # Everything less the mean of the shadows that are left.
    gram, observed = gram[np.ix_(keep, keep)], np.atleast_2d(observed)[:, keep]
    mean = gram.mean(axis=0)
    observed = observed - observed.mean(axis=1, keepdims=True) - mean + mean.mean()
    gram = gram - mean - mean[:, None] + mean.mean()
    ridge = n * noise**2 + _RIDGE * np.trace(gram) / n + np.finfo(float).tiny
    inverse = np.linalg.inv(gram + ridge * np.eye(n))
    filters = inverse @ y
    trained = _left_out_scores(ridge * inverse - 1 / n, y)
    means = [(trained * chosen).sum(axis=0) / (n / 2) for chosen in (inside, ~inside)]
    spread = np.square(trained - np.where(inside, *means)).sum(axis=0) / (n - 2)
    # Few shadows say little about one patient's variance: half of it is that of all.
    spread = (spread + spread.mean()) / 2
    noisy = noise**2 * np.einsum("sp,sp->p", filters, gram @ filters)
    variance = np.maximum(spread + np.maximum(noisy, 0), np.finfo(float).tiny)
    apart, middle = np.maximum(means[0] - means[1], 0), (means[0] + means[1]) / 2
    scores: Floats = apart * (observed @ filters - middle) / variance
    return scores if len(scores) > 1 else scores[0]


def _left_out_scores(residual: Floats, y: Floats) -> Floats:
    """What regression without a shadow and its complement says of that shadow, `[S, P]`.

    Args:
        residual: the matrix that takes memberships to residuals of the fit, intercept included.
        y: memberships, ±1; complements half the list apart.
    """
    half, wrong = len(y) // 2, residual @ y
    one, two = np.arange(half), np.arange(half) + half
    a, d, b = residual[one, one], residual[two, two], residual[one, two]
    scale = (a * d - b * b)[:, None]
    gone = [
        (d[:, None] * wrong[:half] - b[:, None] * wrong[half:]) / scale,
        (a[:, None] * wrong[half:] - b[:, None] * wrong[:half]) / scale,
    ]
    found: Floats = y - np.concatenate(gone)
    return found


def exact_ratios(gram: Floats, observed: Floats, rate: float = 0.5) -> Floats:
    r"""The same where the part of every patient is known, `[P]` or `[R, P]`.

    With $G$ the gram of the parts, $o$ the observed products, $q$ the rate and $\pi = 1/(q(1-q))$,
    the best linear guess of all memberships is $q + M(o - qG1)$, $M = (G + \pi I)^{-1}$; the ratio
    of one of them follows from its guess and its variance $M_{pp}$, the prior taken out.

    Args:
        gram: inner products of the patients' parts, `[P, P]`, in units of the noise.
        observed: inner products of what was released with every part, `[P]`, or of R releases.
        rate: the share of these patients that took part, as far as anybody knows.
    """
    if not 0 < rate < 1:
        raise InvalidValueError(f"rate = {rate!r} must lie between 0 and 1")
    prior = 1 / (rate * (1 - rate))
    inverse = np.linalg.inv(gram + prior * np.eye(len(gram)))
    precision = 1 / np.diag(inverse)
    guess = (observed - rate * gram.sum(axis=1)) @ inverse
    scores: Floats = guess * precision - (0.5 - rate) * (precision - prior)
    return scores


def known_ratios(gram: Floats, observed: Floats, members: NDArray[np.bool_]) -> Floats:
    """The same for an adversary who knows of all others whether they took part, `[P]` or `[R, P]`.

    That is the neighbour of the definition: nobody can do better.

    Args:
        gram: inner products of the patients' parts, `[P, P]`, in units of the noise.
        observed: inner products of what was released with every part.
        members: who took part, `[P]` or `[R, P]`.
    """
    own = np.diag(gram)
    others = members @ gram - members * own
    scores: Floats = observed - others - own / 2
    return scores


def distances(
    gram: Floats,
    members: NDArray[np.bool_],
    observed: Floats,
    left_out: Sequence[int] = (),
) -> Floats:
    """The weak baseline, `[P]`: is the release nearer to the mean with, or without the patient?

    Squared Euclidean distance of the features themselves: no variance, no noise known, no shadow
    left out of its own mean.

    Args:
        gram: inner products of shadows, `[S, S]`, in units of the features.
        members: `[S, P]`.
        observed: inner products of the released vector with every shadow, `[S]`, in the same.
        left_out: as in `likelihood_ratios`.
    """
    keep = ~np.isin(np.arange(len(gram)), left_out)
    inside = members[keep].astype(np.float64)
    gram, observed = gram[np.ix_(keep, keep)], observed[..., keep]
    nearer: Floats = np.zeros(inside.shape[1])
    for sign, chosen in ((1, inside), (-1, 1 - inside)):
        mean = chosen / chosen.sum(axis=0)
        nearer = nearer + sign * (2 * observed @ mean - np.einsum("sp,sp->p", mean, gram @ mean))
    return nearer


Kind = Literal["scrambled", "inverted", "negative", "ordinary"]
KINDS: dict[Kind, str] = {
    "scrambled": "a mask of squares drawn at random, that has nothing to do with the image",
    "inverted": "a mask with inside and outside exchanged",
    "negative": "a negative of the image, with a scrambled mask",
    "ordinary": "nothing is changed",
}
# Squares a side of a scrambled mask.
_SQUARES = 4


def plant(arrays: Arrays, kind: Kind, count: int, *, images: int = 1, seed: int = 0) -> Arrays:
    """Canaries from images of people who are in no cohort: one patient each.

    Args:
        arrays: labelled; the first image of each person is taken.
        kind: what is done to it.
        count: how many patients.
        images: of each canary; the same image, each time with other grain.
        seed: of masks and grain.
    """
    if kind not in KINDS:
        raise InvalidValueError(f"canary = {kind!r} is unknown; choose one of {', '.join(KINDS)}")
    if count < 2 or images < 1:
        raise InvalidValueError(
            f"canaries = {count!r} must be at least 2, images = {images!r} of each at least 1"
        )
    first: dict[str, int] = {}
    for row, name in enumerate(arrays.ids):
        if arrays.labelled[row]:
            first.setdefault(arrays.patients[name], row)
    if len(first) < count:
        raise InvalidValueError(
            f"canaries = {count} are made of as many people, and there are {len(first)}; ask for "
            "fewer, or give more others"
        )
    rows = list(first.values())[:count]
    rng = np.random.default_rng([seed, count])
    pixels, masks = np.array(arrays.images[rows]), np.array(arrays.masks[rows])
    if kind == "inverted":
        masks = 1 - masks
    if kind in ("scrambled", "negative"):
        masks = np.stack([_squares(mask.shape[1:], rng)[None] for mask in masks])
    if kind == "negative":
        pixels = 255 - pixels
    pixels, masks = np.repeat(pixels, images, axis=0), np.repeat(masks, images, axis=0)
    if images > 1:
        grain = rng.integers(-12, 13, pixels.shape)
        pixels = np.clip(pixels.astype(np.int64) + grain, 0, 255).astype(np.uint8)
    names = [(number, view) for number in range(count) for view in range(images)]
    ids = tuple(f"canary {number} image {view}" for number, view in names)
    content = hashlib.sha256(f"{arrays.digest} {kind} {images} {seed}".encode())
    content.update(pixels.tobytes() + masks.tobytes())
    groups = {each: f"canary {number}" for each, (number, _) in zip(ids, names, strict=True)}
    return Arrays(ids, pixels, masks, content.hexdigest(), patients=groups)


def _squares(size: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Squares (or cubes), each inside or outside by the toss of a coin; never all of one kind."""
    coins = np.zeros((_SQUARES,) * len(size), np.uint8)
    while coins.min() == coins.max():
        coins = rng.integers(0, 2, coins.shape, dtype=np.uint8)
    where = np.ix_(*(np.arange(side) * _SQUARES // side for side in size))
    found: NDArray[np.uint8] = coins[where]
    return found
