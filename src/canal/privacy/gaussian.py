r"""What a Gaussian mechanism costs: rho, mu and (epsilon, delta), and the way between them.

Everything that CANAL publishes is a Gaussian mechanism, so a whole release is *one* Gaussian with
$\mu^2 = \sum (\text{sensitivity}/\sigma)^2$ and $\rho = \mu^2/2$. Two conversions, each named:

`exact`
    The Gaussian's own trade-off (Balle & Wang 2018, Theorem 8), the default:
    $\delta(\varepsilon) = \Phi(-\varepsilon/\mu + \mu/2)
    - e^\varepsilon\,\Phi(-\varepsilon/\mu - \mu/2)$.
`paper`
    Prop. 1.3 of Bun & Steinke 2016 and its inverse, the paper's Eq. eps-to-rho. Valid for every
    zCDP mechanism, and so looser for a Gaussian.

How the exact curve is evaluated. With $x = \varepsilon/\mu - \mu/2$ and Mills' ratio
$R(x) = \Phi(-x)/\varphi(x)$, the identity $e^\varepsilon \varphi(x + \mu) = \varphi(x)$ turns the
difference of two tails, which under- or overflows, into
$$\delta(\varepsilon) = \varphi(x)\,\bigl(R(x) - R(x + \mu)\bigr),$$
which does not. For a small $\mu$ the two ratios still cancel; what that may cost is added to the
result (`_GAP_ERROR`).

Guarantees:
    Every number is rounded to the safe side: a reported epsilon or delta is never below the truth,
    an affordable rho never above it. The curve carries a bound on its own rounding error, and the
    root-finders return the end of the bracket that was *checked* to be safe.
    `epsilon_from_rho(rho_from_epsilon(e, d), d) <= e` holds without tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

from canal.errors import InvalidValueError

Conversion = Literal["exact", "paper"]
CONVERSIONS: tuple[Conversion, ...] = get_args(Conversion)

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_FRACTION_FROM = 5.0
_BISECTION_WIDTH = 2.0**-50
# Two ratios are subtracted, each good to 2^-47 (measured on a dense grid in tests/privacy).
_GAP_ERROR = 2 * 2.0**-47
# Far beyond anything with a meaning, and well inside of what a double can square.
_SMALLEST, _LARGEST = 1e-100, 1e100


def mills_ratio(x: float) -> float:
    r"""Mills' ratio of the standard normal, $R(x) = (1 - \Phi(x)) / \varphi(x)$.

    Guarantees:
        Relative error below $2^{-47}$ for $x \ge -9$ (and $2^{-43}$ for $x \ge -37$, below
        which it nears the largest double).

    >>> round(mills_ratio(0.0) ** 2, 12) == round(math.pi / 2, 12)
    True
    """
    if x < _FRACTION_FROM:
        return math.sqrt(math.pi / 2) * math.erfc(x / math.sqrt(2)) * math.exp(x * x / 2)
    # Beyond, erfc and exp would each lose x² units in the last place.
    return 1 / (x + mills_fraction(x))


def mills_fraction(x: float) -> float:
    r"""$1/R(x) - x$ for $x \ge 5$, by Laplace's continued fraction, which cancels nothing.

    $1/R(x) = x + 1/(x + 2/(x + 3/(x + \dots)))$.
    """
    tail = 0.0
    for n in range(60 if x < 12 else 20, 0, -1):
        tail = n / (x + tail)
    return tail


def _log_delta(epsilon: float, mu: float) -> float:
    """An upper bound on the logarithm of the exact delta, tight to about 1e-12."""
    x = epsilon / mu - mu / 2
    if x < -9.0:  # delta is above 1 - 1e-18
        return 0.0
    ratio = mills_ratio(x)
    gap = ratio - mills_ratio(x + mu) + _GAP_ERROR * ratio
    rounding = (1 + abs(x)) * (epsilon / mu + mu) * 2.0**-51 + 2.0**-48
    return min(0.0, -x * x / 2 - _LOG_SQRT_2PI + math.log(gap) + rounding)


def delta_from_rho(epsilon: float, rho: float) -> float:
    """The exact delta at which a Gaussian release of cost rho is (epsilon, delta)-private.

    Args:
        epsilon: at least 0.
        rho: zCDP cost, at least 0.

    >>> f"{delta_from_rho(1.0, 0.5):.6f}"
    '0.126937'
    """
    _check_epsilon(epsilon)
    rho = _check_rho(rho)
    if rho == 0 or math.isinf(epsilon):
        return 0.0
    if math.isinf(rho):
        return 1.0
    # nextafter: the exponential below the smallest double must not become a promise of zero.
    return min(1.0, math.nextafter(math.exp(_log_delta(epsilon, mu_from_rho(rho))), math.inf))


def epsilon_from_rho(rho: float, delta: float, conversion: Conversion = "exact") -> float:
    r"""The epsilon that a release of cost rho amounts to at this delta, rounded up.

    Args:
        rho: zCDP cost $\mu^2/2$ of everything that was released, at least 0.
        delta: in (0, 1).
        conversion: `exact` or `paper`.

    >>> round(epsilon_from_rho(0.5, 1e-5), 3), round(epsilon_from_rho(0.5, 1e-5, "paper"), 3)
    (4.377, 5.299)
    """
    check_conversion(conversion)
    rho = _check_rho(rho)
    _check_delta(delta)
    if rho == 0 or math.isinf(rho):
        return rho
    paper = (rho + 2 * math.sqrt(rho * -math.log(delta))) * (1 + 2.0**-50)
    if conversion == "paper":
        return paper

    mu, log_delta = mu_from_rho(rho), math.log(delta) - abs(math.log(delta)) * 2.0**-52

    def is_safe(epsilon: float) -> bool:
        return _log_delta(epsilon, mu) <= log_delta

    if is_safe(0.0):
        return 0.0
    unsafe, safe = 0.0, paper
    # Prop. 1.3 is an upper bound; the loop only matters where it is tight to the last bits.
    while not is_safe(safe):
        unsafe, safe = safe, 2 * safe
    while safe - unsafe > _BISECTION_WIDTH * safe:
        middle = unsafe + (safe - unsafe) / 2
        if is_safe(middle):
            safe = middle
        else:
            unsafe = middle
    return safe


def rho_from_epsilon(epsilon: float, delta: float, conversion: Conversion = "exact") -> float:
    r"""The largest rho that (epsilon, delta) can pay for, rounded down.

    `paper` is Eq. eps-to-rho, $\rho = (\sqrt{L + \varepsilon} - \sqrt{L})^2$ with
    $L = \log(1/\delta)$, written as $(\varepsilon / (\sqrt{L + \varepsilon} + \sqrt{L}))^2$ so
    that a small epsilon keeps its digits.

    >>> gain = rho_from_epsilon(8, 1e-5) / rho_from_epsilon(8, 1e-5, "paper")
    >>> round(gain, 3)  # how much more a Gaussian may spend than the paper's conversion allows
    1.323
    """
    check_conversion(conversion)
    _check_epsilon(epsilon)
    _check_delta(delta)
    if epsilon == 0 or math.isinf(epsilon):
        return epsilon
    log_inverse = -math.log(delta)
    root = epsilon / (math.sqrt(log_inverse + epsilon) + math.sqrt(log_inverse))
    rho = root * root
    if conversion == "exact":
        # The paper's rho is affordable; double from there until one is not.
        safe, unsafe = 0.0, rho
        while epsilon_from_rho(unsafe, delta) <= epsilon:
            safe, unsafe = unsafe, 2 * unsafe
        log_delta = math.log(delta)
        low, high = mu_from_rho(safe), mu_from_rho(unsafe)
        while high - low > _BISECTION_WIDTH * high:
            middle = low + (high - low) / 2
            if _log_delta(epsilon, middle) <= log_delta:
                low = middle
            else:
                high = middle
        rho = low * low / 2
    # The promise is kept by our own ruler too: what is afforded never reads back as more.
    return shrink_until(rho, lambda rho: epsilon_from_rho(rho, delta, conversion) <= epsilon)


def shrink_until(rho: float, is_affordable: Callable[[float], bool]) -> float:
    """The given rho, less as little as makes it affordable; 0 if nothing else does."""
    step = 2.0**-49
    while rho and not is_affordable(rho):
        rho *= max(0.0, 1 - step)
        step *= 2
    return rho


def mu_from_rho(rho: float) -> float:
    r"""The parameter of Gaussian DP, $\mu = \sqrt{2\rho}$, rounded up."""
    rho = _check_rho(rho)
    return math.nextafter(math.sqrt(2 * rho), math.inf) if rho else 0.0


def rho_from_mu(mu: float) -> float:
    r"""The zCDP cost $\rho = \mu^2/2$, rounded up."""
    if not mu >= 0:
        raise InvalidValueError(f"mu = {mu!r} must be at least 0")
    return math.nextafter(mu * mu / 2, math.inf) if mu else 0.0


def check_conversion(conversion: str) -> Conversion:
    """Give the conversion back if it is one that we know."""
    for known in CONVERSIONS:
        if conversion == known:
            return known
    raise InvalidValueError(
        f"conversion = {conversion!r} is unknown; choose one of {', '.join(CONVERSIONS)}"
    )


def _check_epsilon(epsilon: float) -> None:
    if not (epsilon in (0, math.inf) or _SMALLEST <= epsilon <= _LARGEST):
        raise InvalidValueError(
            f"epsilon = {epsilon!r} must be 0, infinite, or between {_SMALLEST} and {_LARGEST}"
        )


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InvalidValueError(
            f"delta = {delta!r} must lie between 0 and 1; 1e-5, or well below one over the number "
            "of patients, is usual"
        )


def _check_rho(rho: float) -> float:
    """Give rho back; what is too small to square is rounded up."""
    if not (0 <= rho <= _LARGEST or rho == math.inf):
        raise InvalidValueError(f"rho = {rho!r} must be infinite, or lie between 0 and {_LARGEST}")
    return max(rho, _SMALLEST**2) if rho else rho
