"""The ziggurat: its tables against 50-digit arithmetic, its draws against the normal."""

from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from canal.privacy import Stream
from canal.privacy.ziggurat import (
    LAYER_AREA,
    LAYERS,
    TAIL_START,
    UNCERTAINTY,
    Normals,
    _tables,
    _tail,
    standard_normal,
)

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
    draws = standard_normal(Stream(bytes(31) + b"\x05"), 4_000_000).values
    assert np.abs(moments(draws)).max() < stats.norm.isf(ALPHA / 12)
    assert stats.kstest(draws, "norm").pvalue > ALPHA


def test_moments_negative_control():
    draws = standard_normal(Stream(bytes(31) + b"\x05"), 4_000_000).values
    assert np.abs(moments(1.01 * draws)).max() > stats.norm.isf(ALPHA / 12)
    assert stats.kstest(1.01 * draws, "norm").pvalue < ALPHA


def edge_counts(draws):
    """p-value of the counts between the layers' edges, and beyond r."""
    edges = np.concatenate([[0], np.sort(_tables().edge[:-1]), [3.8, 4.0, 4.3, 4.6, np.inf]])
    seen = np.histogram(np.abs(draws), edges)[0]
    want = np.diff(stats.halfnorm.cdf(edges)) * draws.size
    assert want.min() > 25
    return stats.chisquare(seen, want * seen.sum() / want.sum()).pvalue


def test_tail_and_every_layer_edge():
    assert edge_counts(standard_normal(Stream(bytes(31) + b"\x06"), 8_000_000).values) > ALPHA


def test_negative_control_edges():
    """A tail that is too thin, and a layer that takes what lies above the curve, are both seen."""
    draws = standard_normal(Stream(bytes(31) + b"\x06"), 8_000_000).values
    beyond = np.abs(draws) > float(TAIL_START)
    thin = np.where(beyond, float(TAIL_START) + (np.abs(draws) - float(TAIL_START)) * 0.5, draws)
    assert edge_counts(thin) < ALPHA
    edge = _tables().edge[100]
    wedge = (np.abs(draws) > edge) & (np.abs(draws) < _tables().edge[99])
    moved = np.where(wedge & (np.arange(draws.size) % 3 == 0), 0.9 * edge, draws)
    assert edge_counts(moved) < ALPHA


def test_exact_numbers_lie_where_their_doubles_say():
    """The bits left out are within the stated uncertainty, and uniform over the interval."""
    normals = standard_normal(Stream(bytes(31) + b"\x07"), 200_000)
    words = Stream(bytes(31) + b"\x08").words(200_000).tolist()
    assert len(normals.tail) > 20
    chosen = [*range(0, 200_000, 40), *normals.tail]
    offset = []
    for index in chosen:
        exact = normals.exact(index, words[index])
        assert abs(exact - Fraction(float(normals.values[index]))) < UNCERTAINTY
        if index not in normals.tail:
            scale = Fraction(float(_tables().scale[normals.layers[index]]))
            low, high = normals.exact(index, 0), normals.exact(index, 2**64 - 1)
            assert float((high - low) / scale) == pytest.approx(2.0)
            offset.append(float((exact - low) / (high - low)))
    assert stats.kstest(offset, "uniform").pvalue > ALPHA


def test_exact_tail_is_the_logarithm_itself():
    normals = standard_normal(Stream(bytes(31) + b"\x07"), 200_000)
    start = MP.mpf(str(TAIL_START))
    for index, bits in normals.tail.items():
        want = start - MP.log((MP.mpf(bits) + 0.5) / MP.mpf(2) ** 128) / start
        got = abs(normals.exact(index, 0))
        assert abs(MP.mpf(got.numerator) / MP.mpf(got.denominator) - want) < 1e-40


def test_intervals_of_a_layer_meet():
    """One double's interval ends where the next one's begins: no gap, no overlap."""
    layer, odd = 37, 2**52 + 12345
    scale = float(_tables().scale[layer])
    values = np.array([odd, odd + 2]) * scale
    normals = Normals(values, np.full(2, layer, dtype=np.uint8), {})
    end, begin = normals.exact(0, 2**64 - 1), normals.exact(1, 0)
    assert 0 < begin - end <= Fraction(scale) * Fraction(2, 2**64)


@pytest.mark.parametrize("count", [0, 1, 2, 65_535, 65_536, 65_537])
def test_any_count(count):
    assert standard_normal(Stream(bytes(32)), count).values.shape == (count,)


# Beyond these many deviations are 4.7e-4, 6.3e-5, 6.8e-6 and 1.6e-6 of a normal's draws.
FAR = (3.5, 4.0, 4.5, 4.8)
MANY = 8_000_000
# Of the tail alone: a normal's draws beyond r, of which 2.2e-3 to 7.6e-6 are beyond these.
FARTHER = (5.0, 5.5, 6.0)


def tail_counts(draws):
    """Least p-value of the counts further out than each, times how many these are."""
    found = [
        stats.binomtest(int(np.sum(side * draws > cut)), draws.size, stats.norm.sf(cut)).pvalue
        for cut in FAR
        for side in (1, -1)
    ]
    return min(found) * len(found)


def cut_off(draws, cut, how):
    """What a sampler would have given that knows no numbers further out."""
    if how == "clipped":
        return np.clip(draws, -cut, cut)
    out = np.abs(draws) > cut
    fresh = standard_normal(Stream(bytes(31) + b"\x0a"), 2 * int(out.sum()) + 100).values
    made = draws.copy()
    made[out] = fresh[np.abs(fresh) <= cut][: out.sum()]
    return made


@pytest.fixture(scope="module")
def many():
    return standard_normal(Stream(bytes(31) + b"\x09"), MANY).values


def test_as_many_draws_are_far_out_as_should_be(many):
    """To 1e-6 of the draws, each side by itself."""
    assert tail_counts(many) > ALPHA


@pytest.mark.parametrize("how", ["clipped", "drawn again"])
@pytest.mark.parametrize("cut", [3.5, 4.0, 4.5])
def test_negative_control_a_sampler_that_is_cut_off(many, cut, how):
    assert tail_counts(cut_off(many, cut, how)) < ALPHA


def test_the_tail_by_itself():
    """Drawn alone, 300,000 times: as many as one would see in 1.2e9 draws of the whole."""
    start, count = float(TAIL_START), 300_000
    drawn = _tail(Stream(bytes(31) + b"\x0b"), np.arange(count), {})
    assert drawn.min() > start
    p = stats.kstest(stats.norm.sf(drawn) / stats.norm.sf(start), "uniform").pvalue
    assert p > ALPHA
    # The sign is another's: the counts of one side are of both.
    counts = [
        stats.binomtest(
            int((drawn > cut).sum()), count, stats.norm.sf(cut) / stats.norm.sf(start)
        ).pvalue
        for cut in FARTHER
    ]
    assert min(counts) * len(counts) > ALPHA
    # Negative controls: cut at 5, and the excess a twentieth too short.
    for wrong in (np.minimum(drawn, 5.0), start + 0.95 * (drawn - start)):
        shares = stats.norm.sf(wrong) / stats.norm.sf(start)
        beyond = stats.norm.sf(5.0) / stats.norm.sf(start)
        found = stats.binomtest(int((wrong > 5.0).sum()), count, beyond).pvalue
        assert min(stats.kstest(shares, "uniform").pvalue, found) < ALPHA
