"""The ziggurat: its tables against 50-digit arithmetic, its draws against the normal."""

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from canal.privacy import Stream
from canal.privacy.ziggurat import LAYER_AREA, LAYERS, TAIL_START, _tables, standard_normal

MP = mp.MPContext()
MP.dps = 50
# False-alarm rate of each statistical test here (streams are fixed, so a pass stays a pass).
ALPHA = 1e-7


def f(x):
    return MP.exp(-(MP.mpf(x) ** 2) / 2)


def test_constants_close_the_ziggurat():
    r, area = MP.mpf(str(TAIL_START)), MP.mpf(str(LAYER_AREA))
    base = r * f(r) + MP.sqrt(MP.pi / 2) * MP.erfc(r / MP.sqrt(2))
    assert abs(base / area - 1) < 1e-40
    x = r
    for _ in range(LAYERS - 2):
        x = MP.sqrt(-2 * MP.log(area / x + f(x)))
    assert abs(area / x + f(x) - 1) < 1e-38  # the top layer ends at f(0) = 1


def test_tables_are_correctly_rounded():
    table = _tables()
    area = MP.mpf(str(LAYER_AREA))
    width = [MP.mpf(float(w)) * 2**53 for w in table.scale]
    for layer in range(1, LAYERS):
        height = f(table.edge[layer]) - f(table.edge[layer - 1])
        # Each width and edge is within half a unit in the last place (2^-53) of the truth; a
        # thin layer's height magnifies an edge's error by x²·f/height, at most 2^9.
        assert abs(width[layer] * height / area - 1) < 2.0**-43
        assert abs(MP.mpf(float(table.height[layer])) / height - 1) < 2.0**-43
    np.testing.assert_array_equal(table.scale[1:] * 2.0**53, table.edge[:-1])


def moments(draws):
    """Standardised deviations of the first six moments from the normal's."""
    want = np.array([0, 1, 0, 3, 0, 15])
    variance = np.array([1, 3, 15, 105, 945, 10395]) - want**2
    powers = np.array([np.mean(draws**k) for k in range(1, 7)])
    return (powers - want) / np.sqrt(variance / draws.size)


def test_moments_and_distribution():
    draws = standard_normal(Stream(bytes(31) + b"\x05"), 4_000_000)
    assert np.abs(moments(draws)).max() < stats.norm.isf(ALPHA / 12)
    assert stats.kstest(draws, "norm").pvalue > ALPHA


def test_moments_negative_control():
    draws = standard_normal(Stream(bytes(31) + b"\x05"), 4_000_000)
    assert np.abs(moments(1.01 * draws)).max() > stats.norm.isf(ALPHA / 12)
    assert stats.kstest(1.01 * draws, "norm").pvalue < ALPHA


def test_tail_and_every_layer_edge():
    """Counts between the layers' edges, and beyond r, where only the tail's code is at work."""
    n = 8_000_000
    draws = np.abs(standard_normal(Stream(bytes(31) + b"\x06"), n))
    edges = np.concatenate([[0], np.sort(_tables().edge[:-1]), [3.8, 4.0, 4.3, 4.6, np.inf]])
    seen = np.histogram(draws, edges)[0]
    want = np.diff(stats.halfnorm.cdf(edges)) * n
    assert want.min() > 5
    assert stats.chisquare(seen, want * seen.sum() / want.sum()).pvalue > ALPHA


@pytest.mark.parametrize("count", [0, 1, 2, 65_535, 65_536, 65_537])
def test_any_count(count):
    assert standard_normal(Stream(bytes(32)), count).shape == (count,)
