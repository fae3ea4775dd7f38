r"""From scores of two worlds to a lower bound on epsilon.

Somebody who can tell world 1 from world 0 by a score refutes every $(\varepsilon, \delta)$ under
which that would be impossible. Two bounds, each one-sided, each below the truth with the confidence
that is asked for:

*Counted* (Clopper and Pearson). For every set S of scores
$P_1(S) \le e^\varepsilon P_0(S) + \delta$, so that
$$\varepsilon \ge \log\bigl((\underline{P_1}(S) - \delta) / \overline{P_0}(S)\bigr),$$
with exact binomial limits, each at half of the risk. S is chosen on one half of the draws and
counted on the other: no choice can spoil the limits. It assumes nothing of the scores, and n draws
never prove more than about $\log n$.

*Gaussian*. If scores are normal in both worlds with one variance, their distance in standard
deviations is at most $\mu$ of the mechanism, and Student's statistic is noncentral t with
$\mu\sqrt{n/2}$: exact limits of any $\mu$. What is assumed can be looked at: `normality`.

*Width*. Where the worlds are apart by a known distance, and the noise was seen, its variance is at
most what a chi-square limit says, and $\mu$ at least the distance over that. It is sharper, since
every value that was drawn counts.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError

_NORMAL = NormalDist()
_FEWEST = 100
_THRESHOLDS = 400

Floats = NDArray[np.float64]


def counted_epsilon(
    without: ArrayLike, with_: ArrayLike, delta: float, confidence: float = 0.95
) -> float:
    """The epsilon that counting proves, by Clopper and Pearson; 0 if nothing is proved.

    Guarantees:
        For scores of any distribution, above the true epsilon with a probability of at most
        `1 - confidence`.

    Args:
        without: scores in world 0; each an independent draw.
        with_: scores in world 1; the higher, the more it looks like that world.
        delta: of the guarantee that is tested.
        confidence: of the bound.
    """
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    first, second = _scores(without, with_)
    half = len(first) // 2, len(second) // 2
    risk = (1 - confidence) / 2

    def low(found: Floats, count: int) -> Floats:
        limit: Floats = betaincinv(np.maximum(found, 1), count - found + 1, risk)
        return np.where(found > 0, limit, 0.0)

    def high(found: Floats, count: int) -> Floats:
        limit: Floats = betaincinv(found + 1, np.maximum(count - found, 1), 1 - risk)
        return np.where(found < count, limit, 1.0)

    def proved(
        zero: Floats, one: Floats, thresholds: Floats
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Epsilon by the set above each threshold, and by the set below it."""
        zero, one = np.sort(zero), np.sort(one)
        n, m = len(zero), len(one)
        false = (n - np.searchsorted(zero, thresholds, "right")).astype(np.float64)
        true = (m - np.searchsorted(one, thresholds, "right")).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            above = np.log(np.maximum(low(true, m) - delta, 0) / high(false, n))
            below = np.log(np.maximum(low(n - false, n) - delta, 0) / high(m - true, m))
        return above, below

    grid = np.linspace(0, 1, _THRESHOLDS)
    # Both tails of both worlds, down to single scores.
    fine = np.r_[np.geomspace(1 / max(half), 0.5, 60), 1 - np.geomspace(1 / max(half), 0.5, 60)]
    pool = np.concatenate([first[: half[0]], second[: half[1]]])
    thresholds = np.unique(
        np.concatenate(
            [
                np.quantile(pool, grid),
                np.quantile(first[: half[0]], fine),
                np.quantile(second[: half[1]], fine),
            ]
        )
    )
    above, below = proved(first[: half[0]], second[: half[1]], thresholds)
    side = int(below.max() > above.max())
    chosen = thresholds[[int((above, below)[side].argmax())]]
    found = float(proved(first[half[0] :], second[half[1] :], chosen)[side][0])
    return max(0.0, found)


def gaussian_mu(without: ArrayLike, with_: ArrayLike, confidence: float = 0.95) -> float:
    r"""The distance of two normal worlds in standard deviations, at least; 0 if nothing is proved.

    With $T = (\bar s_1 - \bar s_0) / (s\sqrt{1/n + 1/m})$, the limit of its noncentrality. The
    chi distribution in it is taken as normal: at 200 degrees of freedom and more, the risk of 5 %
    is met to 0.1 % (`tests/attacks/test_bounds.py`).

    Guarantees:
        For normal scores of one variance, above the true distance, and so above $\mu$, with a
        probability of at most `1 - confidence`. Infinite where neither world varies and they
        differ: then one look is enough.

    Args:
        without: scores in world 0.
        with_: scores in world 1.
        confidence: of the bound.
    """
    first, second = _scores(without, with_)
    n, m = len(first), len(second)
    freedom = n + m - 2
    apart = float(second.mean() - first.mean())
    squares = float(first.var() * n + second.var() * m)
    # Sums of equal scores leave a rounding error, not a spread.
    if math.sqrt(squares / freedom) <= 1e-9 * abs(apart):
        return math.inf if apart > 0 else 0.0
    if squares == 0:
        return 0.0
    per_draw = math.sqrt(1 / n + 1 / m)
    t = apart / math.sqrt(squares / freedom) / per_draw
    quantile = _NORMAL.inv_cdf(confidence)
    mean, variance = 1 - 1 / (4 * freedom), 1 / (2 * freedom)
    return max(0.0, (t * mean - quantile * math.sqrt(1 + t * t * variance)) * per_draw)


def width_mu(
    apart: ArrayLike, ratios: ArrayLike, freedom: ArrayLike, confidence: float = 0.95
) -> float:
    r"""The distance of two worlds that are apart as far as was computed, under noise that was seen.

    $\mu^2 \ge \sum_j d_j^2 \chi^2_{\alpha}(f) / (f r_j)$: each variance is below its own limit with
    a risk of $\alpha$, the risk of all divided by their number.

    Guarantees:
        For normal noise, above the true $\mu$ with a probability of at most `1 - confidence`.

    Args:
        apart: of every place, in units of the deviation that is stated there.
        ratios: variance that was drawn there over the stated one, about the known mean.
        freedom: how many draws each of them is the mean of; one number, or one for each.
        confidence: of the bound.
    """
    from scipy.special import gammaincinv

    distances, seen, draws = np.broadcast_arrays(
        *(np.square(apart), np.asarray(ratios, dtype=np.float64)),
        np.asarray(freedom, dtype=np.float64),
    )
    moved = distances > 0
    if not moved.any():
        return 0.0
    distances, seen, draws = distances[moved], seen[moved], draws[moved]
    if not seen.all():
        return math.inf
    least = 2 * gammaincinv(draws / 2, (1 - confidence) / seen.size) / draws
    return math.sqrt(float((distances / seen * least).sum()))


def gaussian_epsilon(mu: float, delta: float, *, upwards: bool = False) -> float:
    r"""The epsilon of one Gaussian with this $\mu$, by SciPy's normal distribution.

    The root of $\Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu) =
    \delta$ (Balle and Wang 2018). Independent of `canal.privacy.gaussian` on purpose: an audit
    that converts by the code that it audits finds no mistake in it.

    Args:
        mu: distance of the two worlds in standard deviations.
        delta: above 0 and below 1.
        upwards: round to the other side: for what is stated, not for what is proven.
    """
    from scipy.optimize import brentq  # type: ignore[import-untyped]
    from scipy.special import log_ndtr

    if math.isinf(mu):
        return mu
    if mu <= 0:
        return 0.0

    def above(epsilon: float) -> float:
        first = float(log_ndtr(mu / 2 - epsilon / mu))
        second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
        gap = -math.expm1(min(second - first, 0.0))
        return first + math.log(gap) - math.log(delta) if gap else -math.inf

    if above(0.0) <= 0:
        return 0.0
    rho = mu * mu / 2
    # Bun and Steinke's conversion is never below it; twice that is far enough.
    most = 2 * (rho + 2 * math.sqrt(rho * -math.log(delta)))
    found = float(brentq(lambda epsilon: max(above(epsilon), -1e3), 0.0, most, xtol=1e-12))
    return found * (1 + 1e-7 if upwards else 1 - 1e-7)


def normality(without: ArrayLike, with_: ArrayLike) -> float:
    """The p-value of "normal in both worlds, with one variance"; small speaks against it.

    The least of five, times five: skewness (D'Agostino) and kurtosis (Anscombe and Glynn) in each
    world, and the ratio of the variances. 0 where a world does not vary at all.
    """
    from scipy import stats  # type: ignore[import-untyped]

    first, second = _scores(without, with_)
    # Sums of equal scores leave a rounding error, not a spread.
    if any(scores.std() <= 1e-9 * np.abs(scores).max() for scores in (first, second)):
        return 0.0
    found = [
        float(test(scores).pvalue)
        for scores in (first, second)
        for test in (stats.skewtest, stats.kurtosistest)
    ]
    ratio = float(second.var(ddof=1) / first.var(ddof=1))
    tails = stats.f(len(second) - 1, len(first) - 1)
    found.append(2 * float(min(tails.cdf(ratio), tails.sf(ratio))))
    return min(1.0, 5 * min(found))


def _scores(without: ArrayLike, with_: ArrayLike) -> tuple[Floats, Floats]:
    made = []
    for scores in (without, with_):
        values = np.asarray(scores, dtype=np.float64).ravel()
        if len(values) < _FEWEST or not np.isfinite(values).all():
            raise InvalidValueError(
                f"a bound needs at least {_FEWEST} finite scores of each world, not {len(values)}; "
                "ask for more --draws"
            )
        made.append(values)
    return made[0], made[1]
