"""One patient's part: in the unit ball in every block, in integers, whatever the gradient is."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from canal.errors import InvalidValueError
from canal.gradients.clip import Clip
from canal.privacy import Lattice

SMALLEST = math.ulp(0.0)
# What breaks naive code: zeros, subnormals, squares that under- or overflow, sums that overflow.
NASTY = [0.0, -0.0, SMALLEST, -SMALLEST, 1e-310, 1e-200, 1.0, -1.0, 3.0, 1e200, -1e308, 1.7e308]
BROKEN = [math.nan, math.inf, -math.inf]
anything = st.sampled_from(NASTY + BROKEN) | st.floats()
single = st.floats(-3.0000000054977558e38, 3.0000000054977558e38, width=32)
sensible = single | st.floats(-4, 4, width=32)
steps = st.integers(4, 20).map(lambda power: 2.0**-power)
positive = st.floats(1e-3, 1e3)
nearly_any = st.sampled_from([1e-60, 1e-30, 1.0, 1e30, 1e60]) | positive


@st.composite
def clips(draw, numbers=positive):
    """One block or three, of four coordinates in any order, each with its scale."""
    count = draw(st.sampled_from([1, 3]))
    blocks = [*range(count), *draw(st.lists(st.integers(0, count - 1), min_size=4, max_size=4))]
    return Clip(
        np.array(draw(st.lists(numbers, min_size=len(blocks), max_size=len(blocks)))),
        np.array(draw(st.permutations(blocks))),
        np.array(draw(st.lists(numbers, min_size=count, max_size=count))),
        1.0,
    )


def rows(clip, data, elements, count=2):
    shape = (count, len(clip.scale))
    return data.draw(hnp.arrays(np.float64, shape, elements=elements))


def blocks_of(clip, integers):
    """Integers of every block of every patient, as Python's own: nothing can wrap or round."""
    return [
        [n for n, at in zip(row, clip.blocks.tolist(), strict=True) if at == block]
        for row in integers.tolist()
        for block in range(len(clip.bounds))
    ]


@settings(max_examples=200)
@given(st.data(), clips(nearly_any), steps, st.booleans())
def test_no_block_is_longer_than_one(data, clip, step, narrow):
    gradients = torch.from_numpy(rows(clip, data, anything))
    gradients = gradients.float() if narrow else gradients
    integers = clip.apply(gradients, Lattice(step))
    assert integers.dtype == torch.int64
    assert integers.shape == gradients.shape
    longest = round(1 / step) ** 2
    assert max(sum(n * n for n in block) for block in blocks_of(clip, integers)) <= longest
    whole = torch.isfinite(gradients).all(dim=1)
    assert not integers[~whole].any()


def exact(clip, row, step):
    """The formula with sixty digits, in units of the lattice."""
    scaled = [mpmath.mpf(a) * mpmath.mpf(g) for a, g in zip(clip.scale.tolist(), row, strict=True)]
    norms = [
        mpmath.sqrt(sum(v**2 for v, at in zip(scaled, clip.blocks, strict=True) if at == block))
        for block in range(len(clip.bounds))
    ]
    bounds = [mpmath.mpf(bound) for bound in clip.bounds.tolist()]
    return [
        value / max(bounds[at], norms[at]) / step
        for value, at in zip(scaled, clip.blocks.tolist(), strict=True)
    ]


@given(st.data(), clips(), steps)
def test_it_is_the_formula_to_one_step_towards_zero(data, clip, step):
    """Block by block, with every scale; beyond the bound only the direction is left."""
    gradients = rows(clip, data, sensible)
    integers = clip.apply(torch.from_numpy(gradients).float(), Lattice(step)).tolist()
    with mpmath.workdps(60):
        for got, row in zip(integers, gradients.tolist(), strict=True):
            for n, want in zip(got, exact(clip, row, step), strict=True):
                assert n * want >= 0
                assert abs(n) <= abs(want)
                # A millionth less than all of it: what takes up the rounding of floats.
                assert abs(n) >= abs(want) * (1 - 2**-19) - 1


@given(st.data(), clips(), steps)
def test_beyond_the_bound_it_has_length_one(data, clip, step):
    gradients = rows(clip, data, st.floats(1e3, 1e30) | st.floats(-1e30, -1e3)) * 1e10
    integers = clip.apply(torch.from_numpy(gradients), Lattice(step))
    for block in blocks_of(clip, integers):
        least = (1 - 2**-19) / step - math.sqrt(len(block))
        assert math.sqrt(sum(n * n for n in block)) >= least


@given(st.data(), clips())
def test_blocks_know_nothing_of_each_other(data, clip):
    """What happens in the first, other than NaN and infinity, does not show in the rest."""
    gradients = rows(clip, data, sensible)
    other = np.where(clip.blocks == 0, rows(clip, data, sensible), gradients)
    found, changed = (
        clip.apply(torch.from_numpy(each), Lattice(2.0**-16)).numpy() for each in (gradients, other)
    )
    rest = clip.blocks != 0
    np.testing.assert_array_equal(found[:, rest], changed[:, rest])


@pytest.mark.parametrize("bad", BROKEN)
def test_one_number_that_is_none_silences_the_patient_and_nobody_else(bad):
    clip = Clip(np.ones(4), np.array([0, 0, 1, 1]), np.ones(2), 1.0)
    gradients = torch.ones(3, 4)
    gradients[1, 3] = bad
    integers = clip.apply(gradients, Lattice(2.0**-16))
    assert integers[1].tolist() == [0, 0, 0, 0]
    assert (integers[[0, 2]] == integers[0, 0]).all()
    assert integers[0, 0] > 46_000  # one over root two, in 65,536 steps


@given(st.data(), clips(nearly_any), steps)
def test_a_patient_is_clipped_the_same_in_any_company(data, clip, step):
    gradients = torch.from_numpy(rows(clip, data, anything, count=4))
    together = clip.apply(gradients, Lattice(step))
    for at in range(len(gradients)):
        alone = clip.apply(gradients[at : at + 1], Lattice(step))
        assert torch.equal(alone[0], together[at])


def test_many_coordinates_are_added_up_the_same_in_any_company():
    """On two threads torch splits one long sum, and not several: it shows in the last bits.

    Some coordinates are laid on the edge between two integers, so that the last bits matter.
    """
    torch.set_num_threads(2)
    count, steps = 70_000, 2**16
    gradients = torch.randn(8, count, generator=torch.Generator().manual_seed(5)).double()
    for _ in range(6):
        lengths = (gradients * steps).square().sum(dim=1, keepdim=True).sqrt()
        factor = steps / lengths * (1 - 2.0**-20)
        edge = (gradients[:, :500] * steps * factor).round()
        gradients[:, :500] = edge / factor / steps
    clip = Clip(np.ones(count), np.zeros(count, dtype=np.int64), np.ones(1), 1.0)
    together = clip.apply(gradients, Lattice(1 / steps))
    for at in range(len(gradients)):
        alone = clip.apply(gradients[at : at + 1], Lattice(1 / steps))
        assert torch.equal(alone[0], together[at])


def test_what_sticks_out_all_the_same_is_drawn_in(monkeypatch):
    """Were a length ever taken too short: integers decide in the end, not floats."""
    clip = Clip(np.ones(6), np.array([0, 0, 0, 1, 1, 1]), np.ones(2), 1.0)
    squares, calls = Clip._squares, []

    def too_short(self, values):
        calls.append(len(values))
        return squares(self, values) * (0.9998 if len(calls) == 1 else 1.0)

    monkeypatch.setattr(Clip, "_squares", too_short)
    gradients = torch.randn(3, 6, generator=torch.Generator().manual_seed(2)) * 10
    integers = clip.apply(gradients, Lattice(2.0**-16))
    assert len(calls) > 10
    for block in blocks_of(clip, integers):
        assert 0.999 * 2**32 < sum(n * n for n in block) <= 2**32


def test_a_gradient_by_hand():
    """3 and 4 in a block of bound 10: half as long as permitted. Scaled by two, it is all of it."""
    lattice, gradient = Lattice(2.0**-16), torch.tensor([[3.0, 4.0, 8.0]])
    one = Clip(np.ones(3), np.array([0, 0, 1]), np.array([10.0, 2.0]), 5.0)
    found = clip_in_units(one, gradient, lattice)
    assert found == pytest.approx([0.3, 0.4, 1.0], abs=1e-4)
    two = Clip(np.array([2.0, 2.0, 0.125]), one.blocks, one.bounds, 5.0)
    assert clip_in_units(two, gradient, lattice) == pytest.approx([0.6, 0.8, 0.5], abs=1e-4)
    # What a unit is worth: as a gradient, C / a; as a step, the same over the whole clip.
    assert two.unit.tolist() == [5.0, 5.0, 16.0]
    assert two.direction.tolist() == [1.0, 1.0, 3.2]


def clip_in_units(clip, gradient, lattice):
    return (clip.apply(gradient, lattice)[0].double() * lattice.step).tolist()


GOOD = {
    "scale": np.ones(3),
    "blocks": np.array([0, 1, 0]),
    "bounds": np.ones(2),
    "length": 1.0,
}


@pytest.mark.parametrize("name", ["scale", "bounds"])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_scales_and_bounds_are_lengths(name, bad):
    with pytest.raises(InvalidValueError, match=f"{name} of a clip must be above 0"):
        Clip(**GOOD | {name: np.where(np.arange(len(GOOD[name])) == 1, bad, GOOD[name])})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scale": np.ones(2)}, "for every coordinate"),
        ({"blocks": np.array([0, -1, 0])}, "for every coordinate"),
        ({"bounds": np.ones(1)}, "a bound for every block"),
        ({"scale": np.ones(0), "blocks": np.zeros(0, dtype=int)}, "scale of a clip"),
        ({"length": 0.0}, "length = 0.0"),
        ({"length": math.nan}, "length = nan"),
    ],
)
def test_what_does_not_fit_is_refused(change, says):
    Clip(**GOOD)
    with pytest.raises(InvalidValueError, match=says):
        Clip(**GOOD | change)


def test_a_lattice_coarser_than_a_patient_is_refused():
    """On it, a patient would be nothing at all, and nothing divided by nothing."""
    clip, gradients = Clip(**GOOD), torch.ones(1, 3)
    assert not clip.apply(gradients, Lattice(1.0)).any()
    with pytest.raises(InvalidValueError, match="at most 1"):
        clip.apply(gradients, Lattice(2.0))
