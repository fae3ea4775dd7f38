"""Integer noise: its exact distribution with negative controls, its bits, and its limits."""

import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from canal.errors import InvalidValueError, LatticeOverflowError
from canal.privacy import Lattice, Secret, Stream, rounded_gaussian, ziggurat
from canal.privacy import lattice as lattice_module
from canal.privacy.lattice import FINEST_STEP, STORAGES, coarsen, fitting_shift

# False-alarm rate of each test below; the streams are fixed, so a pass stays a pass.
ALPHA = 1e-7
DRAWS = 2_000_000


def stream(name: str) -> Stream:
    return Stream(Secret.seeded(0).key(name.encode()))


def chi_square(draws, std):
    """p-value of the counts against the exact rounded Gaussian; every cell expects at least 50."""
    k = np.arange(math.ceil(6 * std))
    single = stats.norm.cdf((k + 0.5) / std) - stats.norm.cdf((k - 0.5) / std)
    reach = k[single * draws.size >= 60].max()
    edges = np.arange(-reach, reach) + 0.5
    want = np.diff(np.concatenate([[0.0], stats.norm.cdf(edges / std), [1.0]])) * draws.size
    assert want.min() >= 50
    seen = np.bincount(np.searchsorted(edges, draws), minlength=want.size)
    return stats.chisquare(seen, want).pvalue


def kolmogorov_smirnov(draws, std, seed=0):
    """p-value of the draws, spread evenly over their lattice cells, against the normal."""
    spread = draws + np.random.default_rng(seed).uniform(-0.5, 0.5, draws.size)
    return stats.kstest(spread / std, "norm").pvalue


def dependence(draws, std):
    """p-value of a chi-square on the octiles of successive pairs against independence."""
    octile = np.searchsorted(stats.norm.ppf(np.arange(1, 8) / 8) * std, draws)
    table = np.bincount(octile[:-1:2] * 8 + octile[1::2], minlength=64).reshape(8, 8)
    return stats.chi2_contingency(table).pvalue


@pytest.mark.parametrize("std", [0.7, 2.5, 31.0])
def test_chi_square_against_the_exact_probabilities(std):
    draws = rounded_gaussian(std, (DRAWS,), stream(f"chi {std}"))
    assert chi_square(draws, std) > ALPHA


@pytest.mark.parametrize("std", [2000.0, 2.0**20])
def test_kolmogorov_smirnov(std):
    draws = rounded_gaussian(std, (DRAWS,), stream(f"ks {std}"))
    assert kolmogorov_smirnov(draws, std) > ALPHA


def test_successive_draws_are_independent():
    draws = rounded_gaussian(50.0, (DRAWS,), stream("pairs"))
    assert dependence(draws, 50.0) > ALPHA


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_negative_control_scale(factor):
    draws = rounded_gaussian(2.5 * factor, (DRAWS,), stream("scale"))
    assert chi_square(draws, 2.5) < ALPHA
    draws = rounded_gaussian(2000.0 * factor, (DRAWS,), stream("scale"))
    assert kolmogorov_smirnov(draws, 2000.0) < ALPHA


def tail_counts(draws, std):
    """Least p-value of the counts beyond 3.5, 4 and 4.5 deviations, times how many these are."""
    found = []
    for cut in (3.5, 4.0, 4.5):
        # Of the integers above it, from the middle between two.
        least = math.floor(cut * std) + 1
        chance = 2 * stats.norm.sf((least - 0.5) / std)
        seen = int((np.abs(draws) >= least).sum())
        found.append(stats.binomtest(seen, draws.size, chance).pvalue)
    return min(found) * len(found)


@pytest.mark.parametrize("std", [40.0, 2.0**20])
def test_noise_reaches_as_far_out_as_it_should(std):
    """1e-5 of it lies beyond 4.4 deviations; a sampler that is cut off there is found."""
    draws = rounded_gaussian(std, (4 * DRAWS,), stream(f"far {std}"))
    assert tail_counts(draws, std) > ALPHA
    for cut in (3.5, 4.0, 4.5):
        far = np.abs(draws) > cut * std
        inside = rounded_gaussian(std, (2 * int(far.sum()) + 100,), stream("inside"))
        again = draws.copy()
        again[far] = inside[np.abs(inside) <= cut * std][: far.sum()]
        assert tail_counts(again, std) < ALPHA
        assert tail_counts(np.clip(draws, -int(cut * std), int(cut * std)), std) < ALPHA


def test_negative_control_rounding_off_by_a_half():
    draws = np.floor(2.5 * np.random.default_rng(1).standard_normal(DRAWS)).astype(int)
    assert chi_square(draws, 2.5) < ALPHA


def test_negative_control_correlated_stream():
    fresh = rounded_gaussian(50.0, (DRAWS,), stream("correlated")).astype(float)
    echo = np.rint(math.sqrt(1 - 0.05**2) * fresh + 0.05 * np.roll(fresh, 1)).astype(int)
    assert dependence(echo, 50.0) < ALPHA
    again = np.repeat(rounded_gaussian(50.0, (DRAWS // 2,), stream("repeated")), 2)
    assert dependence(again, 50.0) < ALPHA


KNOWN_FIRST = [21423, 10235, -7303, -12685, -18395, 19726]
KNOWN_DIGEST = "b9d763d894bf31c8e6834f4b87b8d89a2454c248446c70baccb2d30d57728522"


def test_known_answer():
    """The same key gives the same bits on every run, platform and version of NumPy."""
    draws = rounded_gaussian(12345.678, (300_000,), Stream(bytes(range(32))))
    assert draws[:6].tolist() == KNOWN_FIRST
    assert hashlib.sha256(draws.astype("<i8").tobytes()).hexdigest() == KNOWN_DIGEST


def test_known_answer_without_vector_units():
    """NumPy has other code for exp and log on a lesser processor; the bits must not care."""
    features = "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX X86_V3 X86_V4"
    program = (
        "import hashlib; from canal.privacy import Stream, rounded_gaussian; "
        "draws = rounded_gaussian(12345.678, (300_000,), Stream(bytes(range(32)))); "
        "print(hashlib.sha256(draws.astype('<i8').tobytes()).hexdigest())"
    )
    # NumPy warns on the way about features that this processor never had.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=os.environ | {"NPY_DISABLE_CPU_FEATURES": features},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == KNOWN_DIGEST


def test_another_context_gives_other_noise():
    secret = Secret.seeded(9)
    a, b, again = (
        rounded_gaussian(100.0, (100_000,), Stream(secret.key(b"plan", image)))
        for image in (b"image 1", b"image 2", b"image 1")
    )
    np.testing.assert_array_equal(a, again)
    # Correlation of unrelated streams is normal with deviation 1/sqrt(n).
    assert abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(a.size) < stats.norm.isf(ALPHA / 2)


def test_per_channel_noise():
    std = np.array([10.0, 100.0, 1000.0])[:, None, None]
    draws = rounded_gaussian(std, (3, 200, 200), stream("channels"))
    measured = np.square(draws / std).sum(axis=(1, 2))
    low, high = stats.chi2.isf([1 - ALPHA / 2, ALPHA / 2], 40_000)
    assert (low < measured).all()
    assert (measured < high).all()


@pytest.mark.parametrize(("word", "want"), [(2**64 - 1, 4), (0, 3)])
def test_a_rounding_in_doubt_is_settled_by_the_bits_left_out(monkeypatch, word, want):
    """std·g is 3.5 to the last bit of a double: only what the double left out can tell."""
    layer, odd = 10, 2**50 + 1
    value = odd * float(ziggurat._tables().scale[layer])
    normals = ziggurat.Normals(np.array([value]), np.array([layer], dtype=np.uint8), {})
    monkeypatch.setattr(lattice_module, "standard_normal", lambda stream, count: normals)
    monkeypatch.setattr(Stream, "words", lambda self, count: np.array([word] * count, np.uint64))
    std = 3.5 / value
    assert std * value == 3.5
    assert rounded_gaussian(std, (1,), Stream(bytes(32))).tolist() == [want]


def test_doubt_is_reached_as_often_as_it_should(monkeypatch):
    """At 2^38 steps a share of 2·2^38·2^-46 = 1/128 is in doubt; the noise stays Gaussian."""
    asked = []
    exact = ziggurat.Normals.exact
    monkeypatch.setattr(
        ziggurat.Normals, "exact", lambda *which: asked.append(which) or exact(*which)
    )
    std, count = 2.0**38, 200_000
    draws = rounded_gaussian(std, (count,), stream("doubt"))
    assert stats.binomtest(len(asked), count, 1 / 128).pvalue > ALPHA
    assert kolmogorov_smirnov(draws, std) > ALPHA


@given(
    hnp.arrays(np.float64, hnp.array_shapes(max_dims=3), elements=st.floats(-1e3, 1e3)),
    st.integers(-20, 3),
)
def test_truncation_never_grows(values, exponent):
    step = 2.0**exponent
    integers = Lattice(step).truncate(values)
    assert integers.dtype == np.int64
    assert (np.abs(integers) * step <= np.abs(values)).all()
    assert (np.abs(values - integers * step) < step).all()
    assert (integers * np.sign(values) >= 0).all()


@pytest.mark.parametrize("storage", STORAGES)
def test_perturb_is_integer_addition(storage):
    lattice = Lattice(2.0**-8)
    total = np.arange(-500, 500).reshape(10, 100)
    noisy = lattice.perturb(total, 0.5, stream("perturb"), bound=2.0, storage=storage)
    assert noisy.dtype == storage
    noise = rounded_gaussian(0.5 * 2**8, total.shape, stream("perturb"))
    np.testing.assert_array_equal(noisy, total + noise)


def test_overflow_is_refused_before_anything_is_drawn():
    class Untouched(Stream):
        def words(self, count):
            raise AssertionError("noise was drawn")

    lattice, total = Lattice(2.0**-12), np.zeros(4, dtype=np.int64)
    with pytest.raises(LatticeOverflowError, match="or int32") as caught:
        lattice.perturb(total, 5.0, Untouched(bytes(32)), bound=1.0, storage="int16")
    suggested = 2.0 ** int(str(caught.value).split("at least 2**")[1].split(",")[0])
    Lattice(suggested).check(1.0, 5.0, "int16")  # the way out is one
    with pytest.raises(LatticeOverflowError):
        Lattice(suggested / 2).check(1.0, 5.0, "int16")
    with pytest.raises(LatticeOverflowError):
        lattice.perturb(total, 1e6, Untouched(bytes(32)), bound=1.0, storage="int32")
    lattice.check(1.0, 5.0, "int32")


def test_what_lies_beyond_the_storage_is_saturated_not_wrapped(monkeypatch):
    far = ziggurat.Normals(np.array([30.0, -30.0]), np.zeros(2, dtype=np.uint8), {})
    monkeypatch.setattr(lattice_module, "standard_normal", lambda stream, count: far)
    noisy = Lattice(1.0).perturb(
        np.zeros(2, dtype=int), 3000.0, stream("unused"), bound=0.0, storage="int16"
    )
    assert noisy.tolist() == [32767, -32767]


@given(st.floats(1, 1e6), st.lists(st.floats(0, 1e9), min_size=1, max_size=4))
def test_the_finest_lattice_fits_and_a_finer_one_would_not(bound, sigma):
    lattice = Lattice.finest(bound, sigma)
    needed = bound + 10 * max(sigma)
    assert needed / lattice.step <= 2**31 - 1
    assert lattice.step == FINEST_STEP or needed / (lattice.step / 2) > 2**31 - 1
    assert math.frexp(lattice.step)[0] == 0.5
    if min(sigma) > 0:
        lattice.check(bound, sigma, "int32")


@given(st.lists(st.floats(1, 2**40), min_size=1, max_size=6), st.sampled_from(list(STORAGES)))
def test_a_shift_is_as_small_as_fits(magnitudes, storage):
    shift = fitting_shift(magnitudes, storage)
    limit = STORAGES[storage]
    for magnitude, halvings in zip(magnitudes, shift.tolist(), strict=True):
        assert magnitude / 2**halvings <= limit
        assert halvings == 0 or magnitude / 2 ** (halvings - 1) > limit


@given(hnp.arrays(np.int64, 20, elements=st.integers(-(2**31), 2**31)), st.integers(0, 20))
def test_coarsening_is_wrong_by_half_a_unit_at_most_and_never_wraps(noisy, shift):
    stored = coarsen(noisy, shift)
    assert stored.dtype == np.int16
    for exact, kept in zip(noisy.tolist(), stored.tolist(), strict=True):
        if abs(exact) <= 32767 << shift:
            assert 2 * abs((kept << shift) - exact) <= 1 << shift
        else:  # saturated, on the right side
            assert abs(kept) == 32767
            assert kept * exact > 0


def test_coarsening_takes_a_shift_for_every_channel():
    noisy = np.array([[1000, -1000], [1000, -1000]])
    assert coarsen(noisy, [[0], [3]]).tolist() == [[1000, -1000], [125, -125]]
    assert coarsen(noisy * 10**6, [[0], [3]], "int32").tolist() == [
        [10**9, -(10**9)],
        [125 * 10**6, -125 * 10**6],
    ]


@pytest.mark.parametrize("step", [0.0, -1.0, 0.3, math.nan, math.inf])
def test_step_is_a_power_of_two(step):
    with pytest.raises(InvalidValueError, match="power of two"):
        Lattice(step)


def test_errors():
    lattice = Lattice(0.5)
    for bad in (math.nan, math.inf, 1e300):
        with pytest.raises(InvalidValueError, match="finite"):
            lattice.truncate([bad])
    for bad in ([0.5], np.zeros(1, dtype=np.uint64)):
        with pytest.raises(InvalidValueError, match="signed integers"):
            lattice.perturb(bad, 1.0, stream("x"), bound=1.0, storage="int32")
    with pytest.raises(InvalidValueError, match="do not fit"):
        rounded_gaussian([1.0, 2.0], (3,), stream("x"))
    with pytest.raises(InvalidValueError, match="int16 or int32"):
        lattice.check(1.0, 1.0, "int8")
    with pytest.raises(InvalidValueError, match="bound"):
        lattice.check(-1.0, 1.0, "int16")
    for sigma in (0.0, -1.0, math.nan, math.inf, []):
        with pytest.raises(InvalidValueError, match="deviation"):
            lattice.perturb(np.zeros(1, int), sigma, stream("x"), bound=1.0, storage="int32")
    with pytest.raises(LatticeOverflowError, match="coarser"):
        rounded_gaussian(2.0**41, (1,), stream("x"))
