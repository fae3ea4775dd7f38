r"""Noise in shares: n sites each round a Gaussian of their own, and only the sum is ever seen.

A sum of rounded Gaussians is no rounded Gaussian. But it is, but for a gap that vanishes, a
*post-processing* of the Gaussian that we account for. In units of the lattice let
$g_1, \dots, g_n \sim \mathcal N(0, s^2)$. By Poisson's sum, $\mathrm{round}(g)$ has the
characteristic function $\sum_m F(\theta + 2\pi m)$ with
$F(\omega) = e^{-s^2\omega^2/2}\,\mathrm{sinc}(\omega/2)$. The product of n of them is
$$\prod_k \sum_{m_k} F(\theta + 2\pi m_k) = \sum_m F(\theta + 2\pi m)^n + D(\theta).$$
The first sum belongs to $\mathrm{round}(G + u_2 + \dots + u_n)$, where
$G \sim \mathcal N(0, n s^2)$ and the u are uniform on $[-\frac12, \frac12]$: G with independent
noise added, then rounded. D holds the products of unlike terms, in each of which some
$|\theta + 2\pi m_k| \ge \pi$. With $r = 2e^{-s^2\pi^2/2}/(1 - e^{-4 s^2\pi^2})$ above all but the
largest term, $|D| \le n\,r\,(1+r)^{n-1}$ for $|\theta| \le \pi$.

So the probability of any integer is off by at most that; over integers up to
$R = n/2 + 40 s \sqrt n$ by $(2R + 1)$ times as much, and beyond them lie, of both, no more than
$4e^{-800}$. Half of the sum bounds the distance in total variation.

A share is at least 64 lattice steps wide, so the gap is below $e^{-790}$ a value. At epsilon it
adds at most $(1 + e^\varepsilon)$ times that to delta, which is less than what the tail's charge
was rounded up by (`canal.privacy.precision`, $4 \cdot 10^{-34}$ a draw), for every epsilon up to
700. And each share counts as a draw of its own there: our sampler is right to a factor
$1 \pm \eta$ within 16 of a share's own deviations, so a convolution of n of them is right to
$(1 \pm \eta)^n$ but for a mass of $n \cdot 1.3 \cdot 10^{-57}$ beyond, which the same rounding
pays for up to an epsilon of 50. Above that, the number is the ideal Gaussian's, as it is there.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.errors import InvalidValueError

# Below this many lattice steps a share is refused: the gap is paid for from here on.
LEAST_STD = 64.0


def share_std(sigma: ArrayLike, sites: int, colluding: int) -> NDArray[np.float64]:
    r"""Standard deviation of each share, $\sigma/\sqrt{K - t}$, rounded up.

    Whoever knows the shares of t sites still faces noise of the whole sigma.

    Args:
        sigma: of the noise that is accounted for; of several values, if so.
        sites: K, each of which adds a share.
        colluding: t, those who may tell their shares; the site that is attacked is none of them.

    >>> float(share_std(2.0, sites=5, colluding=1))
    1.0000000000000002
    """
    if not 0 <= colluding < sites:
        raise InvalidValueError(
            f"colluding = {colluding!r} must be at least 0 and below sites = {sites!r}: with all "
            "of them against one there is no share left that protects it"
        )
    return np.asarray(np.nextafter(np.asarray(sigma) / math.sqrt(sites - colluding), np.inf))


def check_share(std: ArrayLike) -> None:
    """Refuse a share whose gap is not paid for.

    Args:
        std: of one share, in lattice steps; of several, if so.
    """
    least = float(np.min(std))
    if not least >= LEAST_STD:
        raise InvalidValueError(
            f"a share of {least:.3g} lattice steps is too narrow, it must have {LEAST_STD:g}; ask "
            "for a smaller epsilon"
        )


def log_gap(std: float, shares: int) -> float:
    """How far a sum of shares is from a post-processing of its Gaussian: log of total variation.

    Args:
        std: of one share, in lattice steps.
        shares: n, that nobody else knows.

    >>> log_gap(4.0, 3) < math.log(1e-29), round(log_gap(64.0, 3))
    (True, -799)
    """
    if shares < 1:
        raise InvalidValueError(f"shares = {shares!r} must be at least 1")
    if shares == 1:
        return -math.inf
    exponent = (std * math.pi) ** 2 / 2
    unlike = math.log(2) - exponent - math.log1p(-math.exp(-8 * exponent))
    each = math.log(shares) + unlike + (shares - 1) * math.log1p(math.exp(unlike))
    reach = shares / 2 + 40 * std * math.sqrt(shares)
    # Two terms, of which one is far below the other: their logarithms are added up.
    terms = [math.log(2 * reach + 1) + each, math.log(4) - 800]
    largest = max(terms)
    total = largest + math.log(math.fsum(math.exp(term - largest) for term in terms))
    return total - math.log(2) + 1e-9
