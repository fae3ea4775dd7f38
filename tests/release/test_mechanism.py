"""The mechanism: what one teacher or one image can move, in integers; what becomes of the rest."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from canal.errors import InvalidValueError, LatticeOverflowError
from canal.features.mechanism import TeacherSum
from canal.features.plan import Plan
from canal.features.statistics import Statistic, Statistics
from canal.privacy import Lattice, Participants, Secret, Stream

CHANNELS, RELEASED = 6, 4
NASTY = [0.0, 1.0, -1.0, 5e-324, 1e-200, 1e30, -1e300, 1.7e308, math.nan, math.inf, -math.inf]
values = st.sampled_from(NASTY) | st.floats(-100, 100)


def make(teachers=3, grid=(2, 2), caps=None, importance=None, **choices):
    """A mechanism, with statistics that nobody had to compute."""
    plan = Plan.preset(
        choices.pop("preset", "honest"),
        epsilon=choices.pop("epsilon", 8.0),
        delta=1e-5,
        participants=Participants(teachers, queries=10),
        channels=CHANNELS,
        released=RELEASED,
        grid=grid,
        **choices,
    )
    given_caps = tuple(np.linspace(0.5, 3.0, CHANNELS) if caps is None else caps)
    scores = tuple(np.geomspace(1, 100, CHANNELS) if importance is None else importance)
    statistics = Statistics(Statistic("public", given_caps), Statistic("public", scores))
    return TeacherSum.of(plan.calibrate(statistics.weights(plan)), statistics)


def stream(name):
    return Stream(Secret.seeded(0).key(name.encode()))


def noisy(mechanism, total, stream):
    """What is stored of a sum."""
    return mechanism.noisy_sum.store(mechanism.noisy_sum.perturb(total, stream))


def add_up(mechanism, features):
    """The noiseless sum over teachers, `[B, M, *grid]`."""
    return sum(mechanism.contribution(torch.from_numpy(each)).integers for each in features)


def distances(one, other):
    """Squared distance of every channel, in Python's integers."""
    apart = (one - other).reshape(-1, math.prod(one.shape[2:])).tolist()
    return [sum(n * n for n in channel) for channel in apart]


@settings(max_examples=200)
@given(
    hnp.arrays(np.float64, (4, 2, CHANNELS, 2, 2), elements=values),
    st.booleans(),
    st.sampled_from([(0.5, 1, 2, 3, 4, 5), (0, 5e-324, 1e-300, 1e-3, 1, 1e300)]),
    st.sampled_from([1e-3, 8.0, 1e4]),
)
def test_one_teacher_moves_a_channel_by_at_most_the_sensitivity(features, clamp, caps, epsilon):
    """D / step in every channel of every query, D = 2 or the square root of 2."""
    mechanism = make(nonnegative=clamp, caps=caps, epsilon=epsilon, weight="importance")
    *ours, other = features
    before, after = add_up(mechanism, ours), add_up(mechanism, [*ours[:-1], other])
    unit = round(1 / mechanism.lattice.step)
    assert max(distances(before, after)) <= (2 if clamp else 4) * unit**2


@given(hnp.arrays(np.float64, (3, 2, CHANNELS, 2, 2), elements=values), st.booleans())
def test_one_image_moves_a_channel_by_at_most_k_times_that(features, clamp):
    """An image passes through all K teachers."""
    mechanism = make(nonnegative=clamp)
    total = add_up(mechanism, features)
    unit = round(1 / mechanism.lattice.step)
    assert max(distances(total[:1], total[1:])) <= 9 * (2 if clamp else 4) * unit**2


@pytest.mark.parametrize("clamp", [True, False])
def test_the_sensitivity_is_reached_by_a_hostile_teacher(clamp):
    """Otherwise it could be stated lower. The plan charges exactly D/K, rounded up."""
    mechanism = make(nonnegative=clamp)
    hostile = np.zeros((3, 1, CHANNELS, 2, 2))
    hostile[:2, ..., 0, 0] = 1e9
    hostile[2, ..., *((0, 1) if clamp else (0, 0))] = 1e9 if clamp else -1e9
    ours, theirs = add_up(mechanism, hostile[[0, 1]]), add_up(mechanism, hostile[[0, 2]])
    reach = math.sqrt(max(distances(ours, theirs))) * mechanism.lattice.step
    charged = 3 * mechanism.calibrated.guarantee.events[-1].exposure("patient").sensitivity
    assert reach == pytest.approx(math.sqrt(2) if clamp else 2.0, rel=1e-12)
    assert reach <= charged <= reach * (1 + 1e-12)


def plainly(mechanism, features, teachers):
    """Alg. precompute in floating point, teacher by teacher and channel by channel."""
    clipped = np.zeros((features.shape[1], len(mechanism.channels), *features.shape[3:]))
    for teacher in features:
        for image, feature in enumerate(teacher):
            for place, channel in enumerate(mechanism.channels):
                v = feature[channel]
                v = np.maximum(v, 0) if mechanism.calibrated.plan.nonnegative else v
                clipped[image, place] += v / max(mechanism.caps[place], np.linalg.norm(v))
    axes = (-1,) + (1,) * (features.ndim - 3)
    return clipped / teachers * mechanism.caps.reshape(axes)


@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("grid", [(5, 3), (2, 3, 4)])
def test_without_noise_it_is_the_mean_of_clipped_features(clamp, grid):
    mechanism = make(nonnegative=clamp, grid=grid, allocation="none")
    features = np.random.default_rng(0).normal(0, 1, (3, 4, CHANNELS, *grid))
    stored = noisy(mechanism, add_up(mechanism, features)[0], stream("unused"))
    scale = mechanism.scale.reshape(-1, *[1] * len(grid))
    assert stored.dtype == np.int16
    wrong = np.abs(stored * scale - plainly(mechanism, features, 3)[0])
    # Half a unit of storage, and one lattice step from each teacher.
    caps = mechanism.caps.reshape(scale.shape)
    assert (wrong <= scale / 2 + caps * mechanism.lattice.step).all()
    assert wrong.max() > 0


def test_a_broken_teacher_adds_zero_and_the_divisor_stays():
    mechanism = make(allocation="none")
    features = np.random.default_rng(1).normal(0, 1, (3, 2, CHANNELS, 2, 2))
    features[1, 0, 0, 0, 0] = math.nan  # a channel that is not even published
    features[1, 0, 5, 0, 0] = math.inf
    given = [mechanism.contribution(torch.from_numpy(each)) for each in features]
    assert [each.broken.tolist() for each in given] == [[False, False], [True, False], [False] * 2]
    assert not given[1].integers[0].any()
    stored = noisy(mechanism, sum(each.integers[0] for each in given), stream("unused"))
    want = plainly(mechanism, features[[0, 2]], teachers=3)[0]
    np.testing.assert_allclose(stored * mechanism.scale[:, None, None], want, atol=1e-3)


def test_a_channel_that_is_not_published_is_not_looked_at():
    """NaN in a channel outside of the top M neither breaks nor moves what is published."""
    mechanism = make()
    features = torch.ones(1, CHANNELS, 2, 2, dtype=torch.float64)
    clean = mechanism.contribution(features).integers
    hidden = next(c for c in range(CHANNELS) if c not in mechanism.channels)
    features[:, hidden] = math.nan
    touched = mechanism.contribution(features)
    assert not touched.broken.any()
    np.testing.assert_array_equal(touched.integers, clean)


def test_reverse_allocation_publishes_fewer_channels():
    everything = make(importance=np.geomspace(1, 1e9, CHANNELS), allocation="canal")
    fewer = make(importance=np.geomspace(1, 1e9, CHANNELS), allocation="reverse")
    assert len(everything.channels) == RELEASED
    assert 0 < len(fewer.channels) < RELEASED
    assert fewer.channels.tolist() == everything.channels[: len(fewer.channels)].tolist()
    assert np.isfinite(fewer.sigma).all()
    contributed = fewer.contribution(torch.ones(2, CHANNELS, 2, 2)).integers
    assert contributed.shape == (2, len(fewer.channels), 2, 2)
    assert noisy(fewer, contributed[0], stream("x")).shape == contributed.shape[1:]


def test_noise_is_added_once_with_the_planned_deviation_on_the_sum():
    """The very integers: one draw for the sum, K·sigma wide, on the lattice, then 16 bits."""
    mechanism = make(teachers=5)
    total = np.arange(RELEASED * 4).reshape(RELEASED, 2, 2)
    std = (5 * mechanism.sigma).reshape(-1, 1, 1)
    drawn = mechanism.lattice.perturb(total, std, stream("once"), bound=5.0, storage="int32")
    stored = noisy(mechanism, total, stream("once"))
    unit = 2.0 ** mechanism.shift.reshape(-1, 1, 1)
    np.testing.assert_array_equal(stored, np.rint(drawn / unit))


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 1e4])
def test_ten_sigma_fit_sixteen_bits_and_what_does_not_is_saturated(epsilon):
    mechanism = make(epsilon=epsilon)
    reach = 3 * (1 + 10 * mechanism.sigma) / mechanism.lattice.step
    assert (reach / 2.0**mechanism.shift <= 32767).all()
    assert ((mechanism.shift == 0) | (reach / 2.0**mechanism.shift > 32767 / 2)).all()
    far = np.full((RELEASED, 2, 2), 2**40)
    assert (noisy(mechanism, far, stream("far")) == 32767).all()
    assert (noisy(mechanism, -far, stream("far")) == -32767).all()


def test_a_dead_channel_is_worth_nothing_and_takes_no_noise_from_the_others():
    """Cap 0: left out by water-filling, under either weight."""
    for weight in ("matched", "importance"):
        mechanism = make(caps=(1.0, 0.0, 0.0, 0.0, 2.0, 3.0), weight=weight)
        assert sorted(mechanism.channels.tolist()) == [0, 4, 5]


class TestShares:
    """Each site's part of the noise."""

    @pytest.fixture
    def shared(self):
        return make(trust="secure-sum", colluding=1)

    def test_their_sum_has_the_noise_that_is_stated(self, shared):
        """Chi-square of 4 · 20,000 values, both tails 1e-9; and without one of them, less."""
        many = np.zeros((4, 20_000), dtype=np.int64)
        drawn = [shared.noisy_sum.share(many, stream(f"site {number}")) for number in range(3)]
        std = shared.teachers / shared.lattice.step
        low, high = stats.chi2.ppf([1e-9, 1 - 1e-9], many.size)
        for count, sigma in ((3, shared.noise), (2, shared.sigma)):
            total = np.sum(drawn[:count], axis=0) / (std * sigma[:, None])
            assert low < np.square(total).sum() < high
        assert np.square(np.sum(drawn[:2], axis=0) / (std * shared.noise[:, None])).sum() < low

    def test_what_would_not_fit_is_refused_before_anything_is_drawn(self, shared):
        fine = replace(shared, lattice=Lattice(shared.lattice.step / 2**20))
        with pytest.raises(LatticeOverflowError, match="int32 holds"):
            fine.noisy_sum.share(np.zeros((4, 4), dtype=np.int64), None)

    def test_a_share_that_is_too_narrow_is_refused(self, shared):
        coarse = replace(shared, lattice=Lattice(2.0**6))
        with pytest.raises(InvalidValueError, match="too narrow"):
            coarse.noisy_sum.share(np.zeros((4, 4), dtype=np.int64), None)
