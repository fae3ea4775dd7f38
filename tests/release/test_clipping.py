"""Clipping: inside the unit ball, exactly and in integers, whatever a teacher returns."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from canal.errors import InvalidValueError
from canal.features.clipping import clip
from canal.privacy import Lattice

SMALLEST = math.ulp(0.0)
# What breaks naive code: zeros, subnormals, squares that under- or overflow, sums that overflow.
NASTY = [0.0, -0.0, SMALLEST, -SMALLEST, 1e-310, 1e-200, 1.0, -1.0, 3.0, 1e200, -1e308, 1.7e308]
BROKEN = [math.nan, math.inf, -math.inf]
finite = st.sampled_from(NASTY) | st.floats(allow_nan=False, allow_infinity=False)
steps = st.integers(4, 20).map(lambda power: 2.0**-power)
caps = st.sampled_from([0.0, SMALLEST, 1e-300, 1e-3, 1.0, 1e300, math.inf]) | st.floats(0, 10)


@st.composite
def spikes(draw, shape):
    """All mass in one pixel, and next to nothing elsewhere."""
    array = np.full(shape, draw(st.sampled_from([0.0, SMALLEST, 1e-9, 1e-5])))
    array.flat[draw(st.integers(0, array.size - 1))] = draw(finite)
    return array


@st.composite
def blocks(draw, elements=finite):
    shape = draw(st.sampled_from([(1, 2, 1), (2, 2, 3), (2, 1, 2, 3), (1, 2, 2, 2, 2)]))
    drawn = draw(hnp.arrays(np.float64, shape, elements=elements) | spikes(shape))
    if draw(st.booleans()):
        with np.errstate(over="ignore"):  # 1e308 is infinite in single precision
            return drawn.astype(np.float32)
    return drawn


def squares(integers):
    """Sum of squares of every block, in Python's integers: nothing can wrap or round."""
    rows = integers.reshape(*integers.shape[:2], -1).tolist()
    return [sum(n * n for n in block) for image in rows for block in image]


@settings(max_examples=400)
@given(blocks(finite | st.sampled_from(BROKEN)), steps, caps, caps, st.booleans())
def test_no_block_is_longer_than_one(values, step, one, other, nonnegative):
    lattice, limits = Lattice(step), [one, other][: values.shape[1]]
    clipped = clip(values, limits, lattice, nonnegative=nonnegative)
    assert clipped.integers.shape == values.shape
    assert clipped.integers.dtype == np.int64
    assert max(squares(clipped.integers)) <= round(1 / step) ** 2
    if nonnegative:
        assert clipped.integers.min() >= 0
    whole = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    np.testing.assert_array_equal(clipped.broken, ~whole)
    assert not clipped.integers[~whole].any()


@given(blocks(), steps, caps, st.booleans())
def test_the_direction_is_kept(values, step, cap, nonnegative):
    """Within one step of v / max(cap, norm), computed with sixty digits, on the side of zero."""
    assume(np.isfinite(values).all())
    limits = [cap] * values.shape[1]
    integers = clip(values, limits, Lattice(step), nonnegative=nonnegative).integers
    kept = np.maximum(values, 0) if nonnegative else values
    with mpmath.workdps(60):
        for got, block in zip(
            integers.reshape(-1, math.prod(values.shape[2:])).tolist(),
            kept.reshape(-1, math.prod(values.shape[2:])).tolist(),
            strict=True,
        ):
            exact = [mpmath.mpf(value) for value in block]
            norm = max(mpmath.mpf(cap), mpmath.sqrt(sum(value**2 for value in exact)))
            for n, value in zip(got, exact, strict=True):
                want = value / norm / step if norm else mpmath.mpf(0)
                assert n * want >= 0
                assert abs(n) <= abs(want) * (1 + mpmath.mpf(2) ** -45)
                assert abs(n - want) <= 1 + mpmath.mpf(2) ** -15


@given(blocks(st.floats(-1e3, 1e3)), steps, st.floats(1e-3, 1e3), st.integers(-60, 60))
def test_units_of_measurement_do_not_matter(values, step, cap, power):
    """Feature and cap in other units: the same integers, to the bit for a power of two."""
    values = np.where(np.abs(values) < 1e-200, 0.0, values.astype(np.float64))
    values = np.clip(values, -1e200, 1e200)  # what another unit still holds
    limits = np.full(values.shape[1], cap)
    here, there = (
        clip(values * factor, limits * factor, Lattice(step), nonnegative=False).integers
        for factor in (1.0, 2.0**power)
    )
    np.testing.assert_array_equal(here, there)


@given(blocks(st.floats(-1e3, 1e3)), steps, st.integers(0, 900))
def test_beyond_the_cap_only_the_direction_counts(values, step, power):
    """Without a cap any length gives the same; a whole block of zeros stays zero."""
    values = np.where(np.abs(values) < 1e-3, 0.0, values.astype(np.float64))
    none = [0.0] * values.shape[1]
    here, there = (
        clip(values * factor, none, Lattice(step), nonnegative=False).integers
        for factor in (1.0, 2.0**power)
    )
    np.testing.assert_array_equal(here, there)


@given(blocks(finite | st.sampled_from(BROKEN)), steps, caps)
def test_an_image_is_clipped_the_same_in_any_company(values, step, cap):
    limits = [cap] * values.shape[1]
    together = clip(values, limits, Lattice(step), nonnegative=False)
    for row in range(len(values)):
        alone = clip(values[row : row + 1], limits, Lattice(step), nonnegative=False)
        np.testing.assert_array_equal(alone.integers[0], together.integers[row])
        assert alone.broken[0] == together.broken[row]


@given(st.data(), steps, caps, st.booleans())
def test_two_blocks_are_at_most_a_diameter_apart(data, step, cap, nonnegative):
    """2 in the unit ball, the square root of 2 in its non-negative part; in integers."""
    pair = data.draw(hnp.arrays(np.float64, (2, 1, 4), elements=finite))
    integers = clip(pair, [cap], Lattice(step), nonnegative=nonnegative).integers
    apart = squares(integers[:1] - integers[1:])[0]
    assert apart <= (2 if nonnegative else 4) * round(1 / step) ** 2


@pytest.mark.parametrize("nonnegative", [True, False])
def test_the_diameter_is_reached(nonnegative):
    """So the sensitivity cannot be stated any lower."""
    far = [[[1.0, 0.0]], [[0.0, 1.0] if nonnegative else [-1.0, 0.0]]]
    integers = clip(far, [0.5], Lattice(2.0**-8), nonnegative=nonnegative).integers
    assert squares(integers[:1] - integers[1:]) == [(2 if nonnegative else 4) * 2**16]


@pytest.mark.parametrize("power", [28, 30])
def test_a_length_that_rounds_down_to_one_is_caught(power):
    """(1, tiny) has the floating-point length 1, but its lattice points would stick out."""
    tiny = 2.0**-power
    integers = clip([[[1.0, tiny]]], [0.0], Lattice(tiny), nonnegative=False).integers
    assert squares(integers)[0] <= 4**power
    assert integers[0, 0, 0] >= 2**power - 1


def test_one_pixel_that_is_not_a_number_silences_the_whole_image():
    values = np.ones((3, 4, 2, 2), dtype=np.float32)
    values[1, 3, 0, 1] = math.nan
    clipped = clip(values, [1.0] * 4, Lattice(2.0**-8), nonnegative=True)
    assert clipped.broken.tolist() == [False, True, False]
    assert clipped.integers[1].tolist() == np.zeros((4, 2, 2)).tolist()
    assert (clipped.integers[[0, 2]] == 128).all()  # 1 / norm 2, in 256 steps


def test_a_minus_infinity_is_broken_even_where_it_would_be_clamped():
    clipped = clip([[[-math.inf, 1.0]]], [1.0], Lattice(0.5), nonnegative=True)
    assert clipped.broken.all()
    assert not clipped.integers.any()


@pytest.mark.parametrize("cap", [-1e-12, -1.0, np.nan])
def test_a_cap_is_a_length(cap):
    """With a negative one nothing would be clipped."""
    with pytest.raises(InvalidValueError, match="cannot be negative"):
        clip(np.ones((1, 2, 3)), [1.0, cap], Lattice(2.0**-16), nonnegative=True)


def test_no_square_can_wrap():
    """Integers whose squares are beyond 64 bits are outside, not inside by accident."""
    from canal.features.clipping import _is_longer

    for large in (2**32, 2**33, 2**52, -(2**32)):
        blocks = np.array([[[large, 0]], [[3, 4]], [[3, 5]]])
        assert _is_longer(blocks, 5).tolist() == [[True], [False], [True]]


def test_a_zero_with_a_sign_is_a_zero():
    """Division would keep the sign, and what follows would depend on whether a channel is alive."""
    blocks = np.array([[[3.0, 4.0], [0.0, 0.0]]])
    plain, signed = (
        clip(blocks, caps, Lattice(2.0**-16), nonnegative=True).integers
        for caps in ([0.0, 0.0], [-0.0, -0.0])
    )
    np.testing.assert_array_equal(plain, signed)
