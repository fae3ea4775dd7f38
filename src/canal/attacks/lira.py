r"""Membership of patients: was this patient in a site's training cohort? LiRA on released features.

The likelihood-ratio attack (Carlini et al. 2022), for a release. The adversary trains *shadow*
teachers on halves of a pool of patients, so that each patient is in half of them. It knows all
other teachers and takes their part off the release; what is left is one teacher's features on *all*
queries, under noise. For patient p, with $\mu_\text{in}$ and $\mu_\text{out}$ the mean features of
shadows with and without p, the released vector r is reduced to the matched filter
$$t = \langle \mu_\text{in} - \mu_\text{out},\, r \rangle_{1/\sigma^2},$$
and t is compared under two Gaussians, fitted to the shadows of either kind for this very patient
(of one variance, since there are few of each) and widened by the known noise. All of it needs inner
products of features only: one matrix of shadows against shadows, one row of the release against
them.

No shadow is scored by a filter that it had a part in: every sum leaves it out.
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


@dataclass(frozen=True)
class Shadows:
    """Shadow teachers as the attack sees them.

    Args:
        features: `[S, D]` of each on all queries, in units of the noise on them.
        members: `[S, P]`, whether shadow s was trained on patient p.
    """

    features: Floats
    members: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if len(self.features) != len(self.members):
            raise InvalidValueError(
                f"{len(self.features)} shadows have features, {len(self.members)} have patients"
            )
        fewest = min(self.members.sum(axis=0).min(), (~self.members).sum(axis=0).min())
        if fewest < FEWEST:
            raise InvalidValueError(
                f"a patient is in, or out of, only {fewest} shadows; train enough that each is in "
                f"at least {FEWEST} and out of at least {FEWEST}"
            )

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
) -> Floats:
    """Log-likelihood ratio of every patient, `[P]`; the higher, the more likely a member.

    Args:
        gram: inner products of shadows, `[S, S]`, in units of the noise.
        members: `[S, P]`.
        observed: inner products of the released vector with every shadow, `[S]`.
        left_out: shadows to ignore: the one that plays the released teacher, if one does, and its
            complement. With one of them alone the numbers of shadows would give the answer away.
    """
    keep = ~np.isin(np.arange(len(gram)), left_out)
    inside = members[keep].astype(np.float64)
    outside = 1 - inside
    gram, observed = gram[np.ix_(keep, keep)], observed[keep]
    filters = inside / inside.sum(axis=0) - outside / outside.sum(axis=0)
    seen = observed @ filters
    # The filter's own length is the variance of unit noise behind it.
    noise = np.einsum("sp,sp->p", filters, gram @ filters)
    trained = _left_out_scores(gram, inside, outside)
    means = [(trained * chosen).sum(axis=0) / chosen.sum(axis=0) for chosen in (inside, outside)]
    spread = np.square(trained - np.where(inside > 0, *means)).sum(axis=0) / (len(gram) - 2)
    variance = np.maximum(spread + np.maximum(noise, 0), np.finfo(float).tiny)
    scores: Floats = (np.square(seen - means[1]) - np.square(seen - means[0])) / (2 * variance)
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
    gram, observed = gram[np.ix_(keep, keep)], observed[keep]
    nearer: Floats = np.zeros(inside.shape[1])
    for sign, chosen in ((1, inside), (-1, 1 - inside)):
        mean = chosen / chosen.sum(axis=0)
        nearer += sign * (2 * observed @ mean - np.einsum("sp,sp->p", mean, gram @ mean))
    return nearer


def _left_out_scores(gram: Floats, inside: Floats, outside: Floats) -> Floats:
    """Each shadow under each patient's filter, `[S, P]`, the filter made without that shadow."""
    own = np.diag(gram)[:, None]
    scores = np.zeros_like(inside)
    for sign, chosen in ((1, inside), (-1, outside)):
        total, count = gram @ chosen, chosen.sum(axis=0)
        scores += sign * (total - own * chosen) / (count - chosen)
    return scores
