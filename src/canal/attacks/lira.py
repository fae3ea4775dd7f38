r"""Membership of patients: the likelihood-ratio attack (LiRA), from inner products alone.

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
without the patient, and widened by the noise.

*Gradients* (`exact_ratios`). The network of every round is public, so what each patient adds is
known, and the others are what is not: $b_q$ of unknown value, of known mean and variance. The
logarithm of the ratio is that of two Gaussians with the same covariance.

No shadow is scored by a filter that it, or its complement, had a part in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from canal.attacks.view import Floats
from canal.errors import InvalidValueError

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
