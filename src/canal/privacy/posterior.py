r"""Positive estimates from noisy scores that may have come out negative.

A privatised score is $y = s + \mathcal N(0, \sigma^2)$ with $s \ge 0$ known. A tiny floor under a
negative y would let that one channel eat the whole objective ($s^{-1/4}$ explodes); the posterior
mean under a flat prior, the mean of $\mathcal N(y, \sigma^2)$ truncated to positive values, is
always positive and of a sensible size:
$$\hat s = y + \sigma\,\varphi(y/\sigma)/\Phi(y/\sigma) = \sigma\,\bigl(1/R(t) - t\bigr),
\quad t = -y/\sigma.$$
It reads only what was already released, so it is free.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError
from canal.privacy.gaussian import mills_fraction, mills_ratio


def posterior_mean(noisy: ArrayLike, sigma: float) -> NDArray[np.float64]:
    r"""Posterior mean of non-negative scores, given what the Gaussian mechanism made of them.

    Guarantees:
        Positive for every finite input; above the noisy score, and increasing with it up to
        rounding; tends to it where the score is far above the noise.

    Args:
        noisy: released scores, any shape.
        sigma: standard deviation of the noise in them, above 0; public.

    >>> posterior_mean([-1.0, 0.0, 50.0], sigma=1.0).round(3)
    array([ 0.525,  0.798, 50.   ])
    """
    scores = np.asarray(noisy, dtype=np.float64)
    if not 0 < sigma < math.inf:
        raise InvalidValueError(f"sigma = {sigma!r} must be above 0 and finite")
    if not np.isfinite(scores).all():
        raise InvalidValueError("the noisy scores must be finite")
    means = np.array([_truncated_mean(score, sigma) for score in scores.ravel().tolist()])
    return means.reshape(scores.shape)


def _truncated_mean(score: float, sigma: float) -> float:
    t = -score / sigma
    if t < -37:  # all of the normal is positive, to the last bit
        return score
    if t < 0:
        return score + sigma / mills_ratio(t)
    if t < 5:
        return sigma * (1 / mills_ratio(t) - t)
    # Positive even where the quotient underflows.
    return max(sigma * mills_fraction(t), sys.float_info.min)
