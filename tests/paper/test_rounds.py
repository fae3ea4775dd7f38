"""Agreement of gradients without chance; and what allocation leaves of the harm of noise."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from canal.gradients.public import measure
from paper.rounds import ALLOCATIONS, agreement, harm, harm_in_theory, harm_left

SIX = arrays(np.float64, 6, elements=st.floats(0.5, 20))
CHANNELS = np.repeat(np.arange(6), 3)


def rows(count, size, common, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, size, generator=generator) / size**0.5
    shared = torch.zeros(size)
    shared[0] = common
    return noise + shared


def test_unanimous_patients_agree_whatever_the_lengths():
    one = torch.tensor([3.0, 4.0])
    found, length = agreement([one[None], torch.stack([2 * one, 5 * one])])
    assert found == pytest.approx(1)
    assert length == pytest.approx(10)


@pytest.mark.parametrize("common", [0.1, 0.3, 1.0])
def test_what_is_common_is_found(common):
    """A mean of 400 such draws has a standard error below 0.01; five of them are allowed."""
    found, _ = agreement(rows(400, 2000, common).split(32))
    assert found == pytest.approx(common / (1 + common**2) ** 0.5, abs=0.05)


def test_strangers_have_nothing_in_common():
    """Without the correction, 400 strangers would seem to agree by 1/20."""
    found, _ = agreement([rows(400, 2000, 0.0)])
    assert found < 0.02


def test_zero_gradients_count_for_nothing():
    some = rows(50, 200, 0.5)
    with_zeros = torch.cat([some, torch.zeros(10, 200)])
    assert agreement([with_zeros])[0] == pytest.approx(agreement([some])[0])
    assert agreement([torch.zeros(3, 4)]) == (0.0, 0.0)


def look(curvature, energy, lengths=(1.0,) * 8):
    """Gradients that have the same share of their energy in every channel, of these lengths."""
    rng = np.random.default_rng(0)

    def rows(each):
        signs = rng.choice([-1.0, 1.0], size=(len(lengths), len(CHANNELS)))
        return torch.from_numpy(signs * np.sqrt(each / 3)[CHANNELS])

    gradients, bent = rows(energy) * torch.tensor(lengths)[:, None], rows(curvature)
    return {each: measure(gradients, CHANNELS, each, curvature=bent) for each in ALLOCATIONS}


@given(SIX, SIX)
def test_where_gradients_are_alike_plans_leave_what_theory_says(curvature, energy):
    found = harm_left(look(curvature, energy))
    assert found["theory"] == pytest.approx(harm_in_theory(curvature, energy))
    assert found["ellipsoid"] == pytest.approx(found["theory"], rel=1e-3)
    assert found["channels"] == pytest.approx(found["theory"], rel=1e-3)


def test_a_few_long_gradients_change_nothing():
    """All clips are medians."""
    curvature, energy = np.array([4.0, 1, 1, 9, 1, 1]), np.array([1.0, 2, 3, 1, 2, 3])
    found, long = (harm_left(look(curvature, energy, (1.0,) * 7 + (last,))) for last in (1.0, 5.0))
    assert long == pytest.approx(found, rel=1e-2)


def test_gradients_that_differ_in_where_they_are_make_channels_cheaper():
    """Bounds by channel hold half of each channel's, and no more than one of them at a time."""
    rows = torch.eye(6, dtype=torch.float64).repeat(2, 1) + 0.1
    looked = {each: measure(rows, np.arange(6), each, curvature=rows) for each in ALLOCATIONS}
    found = harm_left(looked)
    assert found["channels"] == pytest.approx(6 * 0.01 / (1.21 + 5 * 0.01), rel=1e-3)
    assert found["ellipsoid"] == pytest.approx(found["theory"]) == pytest.approx(1)


def test_nothing_is_gained_where_curvature_is_energy():
    energy = np.array([1.0, 20.0, 0.3])
    assert harm_in_theory(7 * energy, energy) == pytest.approx(1)
    assert harm_in_theory(1 / energy, energy) < 0.6


def test_a_round_scales_back_what_it_publishes():
    """Noise falls on weights as it is counted here: less of it where the scale is large."""
    curvature, energy = np.array([4.0, 1, 1, 9, 1, 1]), np.array([1.0, 2, 3, 1, 2, 3])
    public = look(curvature, energy)["ellipsoid"]
    assert np.ptp(public.scales) > 0.1
    units = public.bounding.direction * public.length
    assert units == pytest.approx((public.bounds / public.scales)[CHANNELS])
    one = harm(public, "ellipsoid", np.eye(6)[0]), harm(public, "ellipsoid", np.eye(6)[1])
    assert one[0] / one[1] == pytest.approx((public.scales[1] / public.scales[0]) ** 2)
