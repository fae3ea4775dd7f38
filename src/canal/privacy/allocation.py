r"""How noise is spread over channels at a fixed budget: uniform, water-filling, reverse.

All three take any shape of index set (channels, or channels × positions for registered data), and
minimise a distortion subject to Eq. rho-rel, $\sum_c \Delta_c^2/(2\sigma_c^2) \le \rho$.

Guarantees:
    `cost(sensitivity, sigma) <= rho` for every finite input, and equal to it within a few units in
    the last place. An infinite sigma means that the channel is not released: it costs nothing and
    carries nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError

Array = NDArray[np.float64]
# Far beyond anything with a meaning, and such that no square or quotient leaves the doubles.
_SMALLEST, _LARGEST = 1e-60, 1e60


def cost(sensitivity: ArrayLike, sigma: ArrayLike) -> float:
    r"""The zCDP cost $\sum_c \Delta_c^2/(2\sigma_c^2)$ of one release (Eq. rho-rel).

    >>> cost([2.0, 2.0], [2.0, np.inf])
    0.5
    """
    sigma = _noise(sigma)
    ratio = _sensitivities(sensitivity, sigma.shape) / sigma
    return math.fsum((ratio * ratio).ravel()) / 2


def distortion(importance: ArrayLike, sigma: ArrayLike) -> float:
    r"""The objective $\sum_c s_c \sigma_c^2$ of Eq. opt; zero importance distorts nothing."""
    sigma = _noise(sigma)
    score = _importances(importance, sigma.shape)
    felt = score > 0
    return math.fsum(score[felt] * np.square(sigma[felt]))


def uniform(sensitivity: ArrayLike, rho: float) -> Array:
    r"""The same noise everywhere: $\sigma = \sqrt{\sum_c \Delta_c^2 / (2\rho)}$."""
    _check_rho(rho)
    delta = _positive("sensitivity", sensitivity)
    sigma = math.sqrt(math.fsum(np.square(delta).ravel()) / (2 * rho))
    return _saturate(np.full(delta.shape, sigma), delta, rho)


def water_filling(importance: ArrayLike, sensitivity: ArrayLike, rho: float) -> Array:
    r"""CANAL's allocation, Eq. wf: $\sigma_c = \kappa\,\sqrt{\Delta_c}\,s_c^{-1/4}$.

    $\kappa^2 = \tfrac{1}{2\rho} \sum_c \Delta_c \sqrt{s_c}$ makes the budget binding. It is the
    unique minimiser of the distortion; only the proportions of the scores matter.

    Departs from the paper:
        Equality with uniform noise holds iff $s_c \propto \Delta_c^2$, not iff s is constant.
        A channel of importance zero (the theorem wants all positive) takes the limit, infinite
        noise; where all are zero every allocation is optimal and we return the uniform one.

    Args:
        importance: $s_c \ge 0$, public or already privatised.
        sensitivity: $\Delta_c > 0$, one for all or one each.
        rho: what one release may cost.

    >>> water_filling([1.0, 16.0], 1.0, rho=0.625)
    array([2., 1.])
    """
    _check_rho(rho)
    score = _importances(importance)
    delta = _sensitivities(sensitivity, score.shape)
    active = score > 0
    if not active.any():
        return uniform(delta, rho)
    # In logarithms: scores may span the whole range of a double.
    log_score, log_delta = np.log(score[active]), np.log(delta[active])
    exponent = log_delta + log_score / 2
    largest = exponent.max()
    log_kappa = (largest + math.log(math.fsum(np.exp(exponent - largest))) - math.log(2 * rho)) / 2
    sigma = np.full(score.shape, np.inf)
    with np.errstate(over="ignore"):
        sigma[active] = np.exp(log_kappa + log_delta / 2 - log_score / 4)
    return _saturate(sigma, delta, rho)


def reverse_water_filling(
    importance: ArrayLike, sensitivity: ArrayLike, signal_variance: ArrayLike, rho: float
) -> Array:
    r"""Noise-aware allocation: spend nothing on a channel whose signal drowns anyway.

    For a reader who shrinks channel c towards its known signal variance $\lambda_c$, what is lost
    is $s_c / (1/\lambda_c + 1/\sigma_c^2)$. Its minimiser is
    $$1/\sigma_c^2 = \max\bigl(0, \sqrt{2 s_c/(\theta \Delta_c^2)} - 1/\lambda_c\bigr)$$
    with $\theta$ set by the budget; `water_filling` is its limit $\lambda \to \infty$.
    The budget is piecewise linear in $1/\sqrt\theta$, so it is solved by sorting, not by search.

    Args:
        importance: $s_c \ge 0$, public or already privatised.
        sensitivity: $\Delta_c > 0$, one for all or one each.
        signal_variance: $\lambda_c > 0$, public; may be infinite.
        rho: what one release may cost.
    """
    _check_rho(rho)
    score = _importances(importance)
    delta = _sensitivities(sensitivity, score.shape)
    variance = np.broadcast_to(
        _positive("signal_variance", signal_variance, allow_infinite=True), score.shape
    )
    # Only proportions of the scores matter; the largest becomes one.
    slope = np.sqrt(2 * (score / (score.max() or 1.0))) / delta
    active = slope > 0
    if not active.any():
        return uniform(delta, rho)
    slope, floor = slope[active], 1 / variance[active]
    # Channel c gets a share once the level 1/sqrt(theta) is above its start. Levels are measured
    # from the lowest start, so that a small budget above high floors keeps its digits.
    start = floor / slope
    start = start - start.min()
    order = np.argsort(start, kind="stable")
    per_level = (np.square(delta[active]) / 2 * slope)[order]
    level = (rho + np.cumsum(per_level * start[order])) / np.cumsum(per_level)
    level = level[np.flatnonzero(level > start[order])[-1]]
    sigma = np.full(score.shape, np.inf)
    with np.errstate(divide="ignore"):
        sigma[active] = 1 / np.sqrt(slope * np.maximum(0.0, level - start))
    return _saturate(sigma, delta, rho)


def _saturate(sigma: Array, sensitivity: Array, rho: float) -> Array:
    """Rescale sigma so that its cost equals rho to the last bits, from below."""
    for _ in range(2):
        sigma = sigma * math.sqrt(cost(sensitivity, sigma) / rho)
    while cost(sensitivity, sigma) > rho:
        sigma = np.nextafter(sigma, np.inf)
    return sigma


def _importances(importance: ArrayLike, shape: tuple[int, ...] | None = None) -> Array:
    score = np.asarray(importance, dtype=np.float64)
    if score.size == 0:
        raise InvalidValueError("importance is empty; give one score for each channel")
    if not np.isfinite(score).all() or (score < 0).any():
        raise InvalidValueError(
            "importance must be finite and at least 0 everywhere; noisy scores go through "
            "`canal.privacy.posterior_mean` first"
        )
    if shape is not None and score.shape != shape:
        raise InvalidValueError(
            f"importance has shape {score.shape}, sigma {shape}; let them agree"
        )
    return score


def _sensitivities(sensitivity: ArrayLike, shape: tuple[int, ...]) -> Array:
    delta = _positive("sensitivity", sensitivity)
    if delta.ndim and delta.shape != shape:
        raise InvalidValueError(
            f"sensitivity has shape {delta.shape}, the channels {shape}; "
            "give one number for all, or one for each"
        )
    return np.broadcast_to(delta, shape)


def _noise(sigma: ArrayLike) -> Array:
    array = np.asarray(sigma, dtype=np.float64)
    if array.size == 0 or not (array > 0).all():
        raise InvalidValueError("sigma must be above 0 everywhere, infinite where not released")
    return array


def _positive(name: str, values: ArrayLike, *, allow_infinite: bool = False) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise InvalidValueError(f"{name} is empty; give one number for each channel")
    inside = (array >= _SMALLEST) & (array <= _LARGEST)
    if not (inside | (allow_infinite & (array == np.inf))).all():
        raise InvalidValueError(
            f"{name} must lie between {_SMALLEST} and {_LARGEST} everywhere"
            + (", or be infinite" if allow_infinite else "")
        )
    return array


def _check_rho(rho: float) -> None:
    if not _SMALLEST <= rho <= _LARGEST:
        raise InvalidValueError(f"rho = {rho!r} must lie between {_SMALLEST} and {_LARGEST}")
