"""What public gradients say: by hand on a small matrix, and that it never does harm."""

import json
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from canal.errors import InvalidValueError
from canal.gradients.plan import AdapterPlan
from canal.gradients.public import Public, measure
from canal.privacy.allocation import distortion, uniform

# Two images; a channel of two parameters, one of one, one of three.
CHANNELS = np.array([0, 0, 1, 2, 2, 2])
ROWS = torch.tensor([[3.0, 4.0, 6.0, 0.0, 2.0, 2.0], [0.0, 0.0, 8.0, 1.0, 0.0, 0.0]])
ENERGY = np.array([12.5, 50.0, 4.5])  # means of 25 and 0, 36 and 64, 8 and 1
SIZES = np.array([2.0, 1.0, 3.0])
NORMS = (math.sqrt(25 + 36 + 8), math.sqrt(64 + 1))


def gradients_with(energy, sizes):
    """One image whose gradient has this energy in each channel."""
    each = np.repeat(np.sqrt(energy / sizes), sizes)
    return torch.from_numpy(each)[None], np.repeat(np.arange(len(sizes)), sizes)


def curved(curvature, sizes=SIZES):
    """A row whose squares are this curvature of whole channels."""
    return gradients_with(curvature, np.asarray(sizes, int))[0]


def test_flat_is_one_clip_at_the_middle_norm():
    public = measure(ROWS, CHANNELS, "flat")
    assert public.scales.tolist() == [1.0, 1.0, 1.0]
    assert public.bounds.tolist() == pytest.approx([sum(NORMS) / 2])
    assert public.length == public.bounds[0]
    assert public.weights.tolist() == [1.0]
    assert public.blocks == 1


@pytest.mark.parametrize(("quantile", "norm"), [(0.0, NORMS[1]), (1.0, NORMS[0])])
def test_the_clip_is_a_quantile_of_the_norms(quantile, norm):
    assert measure(ROWS, CHANNELS, "flat", quantile=quantile).length == pytest.approx(norm)


def test_an_ellipsoid_by_hand():
    """a^2 as the root of s d / v, with s = 1 of every parameter; then of mean one."""
    public = measure(ROWS, CHANNELS, "ellipsoid")
    squares = np.sqrt(SIZES / ENERGY)
    squares /= (SIZES * squares).sum() / 6
    assert public.scales**2 == pytest.approx(squares)
    rescaled = ROWS.numpy() * np.sqrt(squares)[CHANNELS]
    norms = np.sqrt((rescaled**2).sum(axis=1))
    assert public.length == public.bounds[0] == pytest.approx(norms.mean())
    assert public.blocks == 1


def test_an_ellipsoid_with_a_curvature():
    """Given for a whole channel: nothing is multiplied by the number of its parameters again."""
    curvature = np.array([8.0, 2.0, 18.0])
    public = measure(ROWS, CHANNELS, "ellipsoid", curvature=curved(curvature))
    ratios = public.scales**2 / np.sqrt(curvature / ENERGY)
    assert ratios == pytest.approx(np.full(3, ratios[0]))


def test_nothing_is_gained_where_curvature_is_energy():
    """The equality case of Cauchy-Schwarz: as with the Fisher information of the same gradients."""
    public = measure(ROWS, CHANNELS, "ellipsoid", curvature=curved(3 * ENERGY))
    flat = measure(ROWS, CHANNELS, "flat")
    assert public.scales == pytest.approx(np.ones(3))
    assert public.length == pytest.approx(flat.length)
    assert harm(public.scales, 3 * ENERGY, ENERGY) == pytest.approx(
        harm(np.ones(3), 3 * ENERGY, ENERGY)
    )


def harm(scales, curvature, energy):
    """Of even noise behind these scales, at one rho, where the mean energy fills the clip."""
    return (curvature / scales**2).sum() * (scales**2 * energy).sum()


numbers = st.lists(st.floats(1e-6, 1e6), min_size=4, max_size=4).map(np.array)


@given(numbers, numbers, st.lists(st.integers(1, 5), min_size=4, max_size=4).map(np.array))
def test_an_ellipsoid_never_harms_more_than_flat_noise(energy, curvature, sizes):
    """At the same rho, whatever matters; and where nothing had to be raised, the least there is."""
    rows, channels = gradients_with(energy, sizes)
    scales = measure(rows, channels, "ellipsoid", curvature=curved(curvature, sizes)).scales
    flat, mine = harm(np.ones(4), curvature, energy), harm(scales, curvature, energy)
    least = np.sqrt(curvature * energy).sum() ** 2
    assert least * (1 - 1e-9) <= mine <= flat * (1 + 1e-9)
    share = sizes / sizes.sum()
    raised = [each < 1e-2 * each.sum() * share for each in (energy, curvature)]
    if not np.any(raised):
        assert mine == pytest.approx(least)


def test_channels_by_hand():
    """Bounds are medians in every channel; weights, what noise in units of the bound harms."""
    public = measure(ROWS, CHANNELS, "channels")
    middle = np.array([5.0 / 2, 14.0 / 2, (math.sqrt(8) + 1) / 2])
    assert public.bounds == pytest.approx(middle)
    assert public.weights == pytest.approx(SIZES * middle**2)
    assert public.length == pytest.approx(sum(NORMS) / 2)
    assert public.blocks == 3
    bent = measure(ROWS, CHANNELS, "channels", curvature=curved(np.array([8.0, 2.0, 18.0])))
    assert bent.weights == pytest.approx(np.array([8.0, 2.0, 18.0]) * middle**2)
    longest = measure(ROWS, CHANNELS, "channels", quantile=1.0)
    assert longest.bounds == pytest.approx([5.0, 8.0, math.sqrt(8)])


@given(numbers, numbers)
def test_channels_never_harm_more_than_even_noise_in_units_of_the_bounds(energy, curvature):
    rows, channels = gradients_with(energy, np.ones(4, dtype=int))
    public = measure(rows, channels, "channels", curvature=curved(curvature, np.ones(4)))
    plan = AdapterPlan(8.0, 100, 4, blocks=4, allocation="channels", rounds=1)
    made = plan.calibrate(public.weights)
    even = uniform(np.ones(4), made.guarantee.rho("membership"))
    assert distortion(public.weights, made.sigma) <= distortion(public.weights, even) * (1 + 1e-9)


def test_a_channel_that_no_public_image_moves_is_not_closed():
    """A patient may move it: it keeps a hundredth of what an average one has."""
    rows = ROWS.clone()
    rows[:, 2] = 0.0
    for allocation in ("ellipsoid", "channels"):
        public = measure(rows, CHANNELS, allocation)
        assert np.isfinite(public.scales).all()
        assert (public.bounds > 0).all()
    floor = 1e-2 * (12.5 + 4.5) * 1 / 6
    assert measure(rows, CHANNELS, "channels").bounds[1] == pytest.approx(math.sqrt(floor))


@pytest.mark.parametrize("rows", [torch.zeros(2, 6), ROWS * math.nan, ROWS * math.inf])
def test_gradients_that_say_nothing_are_refused(rows):
    with pytest.raises(InvalidValueError, match="no gradient that could be measured"):
        measure(rows, CHANNELS, "flat")


def test_public_numbers_written_down_are_the_same():
    for allocation in ("flat", "ellipsoid", "channels"):
        public = measure(ROWS, CHANNELS, allocation)
        again = Public.from_json(json.loads(json.dumps(public.to_json())), CHANNELS)
        assert again.to_json() == public.to_json()
        np.testing.assert_array_equal(again.channels, CHANNELS)


def test_numbers_of_another_network_are_refused():
    public = measure(ROWS, CHANNELS, "channels")
    with pytest.raises(InvalidValueError, match="another network"):
        Public.from_json(public.to_json(), CHANNELS + 1)
    with pytest.raises(InvalidValueError, match="one block, or of every channel"):
        replace(public, bounds=np.ones(2), weights=np.ones(2))
    with pytest.raises(InvalidValueError, match="one block, or of every channel"):
        replace(public, weights=np.ones(2))


def test_a_plan_is_fitted_to_what_was_found():
    plan = AdapterPlan(8.0, 100, 6, directions=5)
    assert measure(ROWS, CHANNELS, "flat").fit(plan) == replace(plan, directions=0)
    found = measure(ROWS, CHANNELS, "channels").fit(replace(plan, allocation="channels"))
    assert (found.directions, found.blocks) == (0, 3)
    with pytest.raises(InvalidValueError, match="several blocks"):
        measure(ROWS, CHANNELS, "channels").fit(plan)


def test_the_clip_of_a_plan():
    """Whole under flat and ellipsoid, by channels under channels; scales go to coordinates."""
    plan = AdapterPlan(8.0, 100, 6)
    for allocation, blocks in (("flat", 1), ("ellipsoid", 1), ("channels", 3)):
        public = measure(ROWS, CHANNELS, allocation)
        clip = public.clip(replace(plan, allocation=allocation, blocks=blocks))
        assert clip.blocks.tolist() == (CHANNELS if blocks == 3 else 0 * CHANNELS).tolist()
        assert clip.scale.tolist() == public.scales[CHANNELS].tolist()
        assert clip.length == public.length
    with pytest.raises(InvalidValueError, match="6 numbers in 1 blocks, but there are 6 in 3"):
        public.clip(plan)
    with pytest.raises(InvalidValueError, match="7 numbers in 3 blocks"):
        public.clip(replace(plan, allocation="channels", blocks=3, parameters=7))


@pytest.mark.parametrize("allocation", ["flat", "ellipsoid", "channels"])
def test_rows_are_looked_at_and_let_go(allocation):
    """In parts of any size, with the same numbers; none is kept but the latest."""
    kept, many = [], ROWS.repeat(3, 1)

    def parts(rows):
        for start in range(0, len(rows), 2):
            assert sum(each() is not None for each in kept) <= 1
            part = rows[start : start + 2].clone()
            kept.append(weakref.ref(part))
            yield part
            del part

    want = measure(many, CHANNELS, allocation, curvature=2 * many)
    found = measure(parts(many), CHANNELS, allocation, curvature=parts(2 * many))
    assert found.to_json() == want.to_json()
    assert len(kept) == 6
