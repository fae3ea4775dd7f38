"""The mechanism of a round: integer noise of the width that is stated, and sums that are bounded.

The tests of noise have a false-alarm rate of 1e-6 each; their streams are fixed.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from canal.errors import InvalidValueError
from canal.gradients.mechanism import COUNT, COUNT_STEP, PatientSum
from canal.gradients.plan import AdapterPlan
from canal.privacy import Secret, Stream
from canal.release.mechanism import Noise

ALPHA = 1e-6
CHANNELS, SIZE, ROUNDS = 4, 500, 20


def stream(*name):
    return Stream(Secret.seeded(1).key(*(str(part).encode() for part in name)))


@pytest.fixture(scope="module")
def make(make_public):
    """A mechanism of four channels: one block, or four with noise of their own."""

    def mechanism(allocation="flat", **choices):
        blocks = CHANNELS if allocation == "channels" else 1
        fitting = {"epsilon": 4.0, "patients": 50, "rounds": ROUNDS, "sites": 3}
        plan = AdapterPlan(
            **(fitting | choices),
            parameters=CHANNELS * SIZE,
            allocation=allocation,
            blocks=blocks,
        )
        bounds, weights = np.arange(1.0, blocks + 1), 10.0 ** np.arange(blocks)
        public = make_public(bounds, weights, channels=CHANNELS, size=SIZE, length=2.0)
        return PatientSum.of(plan.calibrate(public.weights), public)

    return mechanism


def fits(draws, std):
    """p-value of the squares of draws against a chi-square variable, on both sides."""
    squares = float(np.square(np.asarray(draws) / std).sum())
    below = stats.chi2.cdf(squares, np.size(draws))
    return 2 * min(below, 1 - below)


def stated(mechanism):
    """The noise of every coordinate in lattice steps, as a manifest says it."""
    numbers = mechanism.to_json()
    return np.array(numbers["sigma"])[mechanism.clip.blocks] / numbers["step"]


def noise_of_rounds(mechanism):
    nothing = np.zeros(CHANNELS * SIZE, dtype=np.int64)
    return np.array(
        [mechanism.noisy_sum.perturb(nothing, stream("round", number)) for number in range(ROUNDS)]
    )


@pytest.mark.parametrize("allocation", ["flat", "channels"])
def test_the_noise_is_as_wide_as_is_stated(allocation, make):
    mechanism = make(allocation)
    noise, std = noise_of_rounds(mechanism), stated(mechanism)
    for block in range(len(mechanism.clip.bounds)):
        mine = mechanism.clip.blocks == block
        assert fits(noise[:, mine], std[mine]) > ALPHA
    # And shaped like a Gaussian, not only as wide.
    assert stats.kstest((noise / std).ravel(), "norm").pvalue > ALPHA


@pytest.mark.parametrize("factor", [0.7, 1.3])
@pytest.mark.parametrize("allocation", ["flat", "channels"])
def test_negative_control_another_width(allocation, factor, make):
    mechanism = make(allocation)
    noise, std = noise_of_rounds(mechanism), stated(mechanism) * factor
    for block in range(len(mechanism.clip.bounds)):
        mine = mechanism.clip.blocks == block
        assert fits(noise[:, mine], std[mine]) < ALPHA


def test_negative_control_the_wrong_block(make):
    """Noise that is right in all, and lies in other channels than is stated."""
    mechanism = make("channels")
    noise, std = noise_of_rounds(mechanism), stated(mechanism)[::-1]
    assert fits(noise[:, :SIZE], std[:SIZE]) < ALPHA


def test_the_stated_width_is_the_accounted_one(make):
    """mu squared of the plan, from what the mechanism says of itself."""
    for allocation in ("flat", "channels"):
        mechanism = make(allocation)
        sigma = np.array(mechanism.to_json()["sigma"])
        mu = mechanism.calibrated.guarantee.mu("membership")
        assert math.sqrt(ROUNDS * (1 / sigma**2).sum()) == pytest.approx(mu, rel=1e-9)


def test_noise_is_added_and_nothing_else(make):
    mechanism = make()
    total = np.arange(-1000, 1000) * 7
    with_it, alone = (
        mechanism.noisy_sum.perturb(each, stream("same")) for each in (total, total * 0)
    )
    np.testing.assert_array_equal(with_it - alone, total)
    assert with_it.dtype == np.int32


def test_without_noise_the_sum_is_published_as_it_is(make):
    total = np.arange(-1000, 1000)
    mechanism = make("none")
    np.testing.assert_array_equal(mechanism.noisy_sum.perturb(total, stream("none")), total)
    assert mechanism.noisy_count.perturb(7 * 1024, stream("none")) == 7 * 1024


@pytest.mark.parametrize("colluding", [0, 1])
def test_shares_of_all_sites_add_up_to_the_noise(colluding, make):
    """Wider by the excess that covers those who may talk; with a control."""
    mechanism = make("channels", trust="secure-sum", colluding=colluding)
    nothing = np.zeros(CHANNELS * SIZE, dtype=np.int64)
    noise = np.array(
        [
            sum(mechanism.noisy_sum.share(nothing, stream(site, number)) for site in range(3))
            for number in range(ROUNDS)
        ]
    )
    accounted = mechanism.sigma / mechanism.calibrated.lattice.step
    excess = math.sqrt(3 / (3 - colluding))
    assert stated(mechanism) == pytest.approx(accounted * excess)
    assert fits(noise, stated(mechanism)) > ALPHA
    for factor in (0.7, 1.3):
        assert fits(noise, stated(mechanism) * factor) < ALPHA
    # Whoever knows the shares of t sites faces what is accounted for.
    left = np.array(
        [
            sum(
                mechanism.noisy_sum.share(nothing, stream(site, number))
                for site in range(colluding, 3)
            )
            for number in range(ROUNDS)
        ]
    )
    assert fits(left, accounted) > ALPHA


def counted(mechanism, patients, number):
    """How many, in parts of one, with one noise for all or a share of every site."""
    if mechanism.calibrated.plan.trust == "trusted":
        parts = sum(mechanism.count(each) for each in patients)
        once = Noise(Secret.seeded(number)).of_statistic(COUNT)
        return int(mechanism.noisy_count.perturb(parts, once))
    own = [Noise(Secret.seeded(number).at(str(site))) for site in range(len(patients))]
    return sum(
        int(mechanism.noisy_count.share(mechanism.count(each), noise.of_statistic(COUNT)))
        for each, noise in zip(patients, own, strict=True)
    )


@pytest.mark.parametrize("trust", ["trusted", "secure-sum"])
def test_patients_are_counted_with_noise_of_the_stated_width(trust, make):
    mechanism = make(count=0.02, trust=trust)
    parts = np.array([counted(mechanism, (20, 5, 7), number) for number in range(1500)])
    sigma = mechanism.to_json()["count_sigma"]
    assert sigma > 1
    noise = parts * COUNT_STEP - 32
    assert fits(noise, sigma) > ALPHA
    assert abs(noise.mean()) < stats.norm.isf(ALPHA / 2) * sigma / math.sqrt(len(parts))
    for factor in (0.7, 1.3):
        assert fits(noise, sigma * factor) < ALPHA


def test_a_patient_is_a_whole_number_of_parts(make):
    """So one more or less moves the count by exactly one."""
    mechanism = make(count=0.02)
    one = counted(mechanism, (20, 5, 8), 3) - counted(mechanism, (20, 5, 7), 3)
    assert one * COUNT_STEP == 1.0


integers = hnp.arrays(np.int64, 6, elements=st.integers(-(2**45), 2**45))


@given(integers, integers)
def test_sums_beyond_the_stated_number_of_patients_are_bounded(make, one, other):
    """Never further apart than they were, coordinate by coordinate; and within what is stated."""
    mechanism = make()
    near, far = mechanism.bounded(one), mechanism.bounded(other)
    assert (np.abs(near - far) <= np.abs(one - other)).all()
    most = 50 * round(1 / mechanism.calibrated.lattice.step)
    assert np.abs(near).max() <= most
    inside = np.abs(one) <= most
    np.testing.assert_array_equal(near[inside], one[inside])


def test_a_thousand_patients_where_fifty_were_stated(make):
    """With one noise and with shares: all that is beyond is cut off before noise is added."""
    for mechanism in (make(), make(trust="secure-sum")):
        step = mechanism.calibrated.lattice.step
        total = np.full(CHANNELS * SIZE, 1000 * round(1 / step))
        noisy_sum = mechanism.noisy_sum
        add = noisy_sum.perturb if noisy_sum.shares == 1 else noisy_sum.share
        noise = add(total * 0, stream("many"))
        for sums, most in ((total, 50), (-total, -50)):
            sent = add(mechanism.bounded(sums), stream("many"))
            np.testing.assert_array_equal(sent - noise, most * round(1 / step))


def test_what_does_not_fit_in_32_bits_is_saturated(make):
    stored = make().noisy_sum.store(np.array([2**40, -(2**40), 2**31 - 1, -7]))
    assert stored.dtype == np.int32
    assert stored.tolist() == [2**31 - 1, -(2**31 - 1), 2**31 - 1, -7]


def test_a_direction_by_hand(make):
    """A sum of one unit, over ten patients: bounds 1 to 4, in units of the clip of 2."""
    mechanism = make("channels")
    one = np.full(CHANNELS * SIZE, round(1 / mechanism.calibrated.lattice.step))
    direction = mechanism.direction(one, 10.0).reshape(CHANNELS, SIZE)
    assert direction[:, 0].tolist() == pytest.approx([0.05, 0.1, 0.15, 0.2])
    assert (direction == direction[:, :1]).all()


def test_unanimous_patients_move_by_one(make):
    """Where all of them are as long as is permitted and agree, the direction has length one."""
    mechanism = make()
    steps = round(1 / mechanism.calibrated.lattice.step)
    unit = np.full(CHANNELS * SIZE, 50 * steps / math.sqrt(CHANNELS * SIZE))
    length = float(mechanism.direction(np.rint(unit), 50.0).norm())
    assert length == pytest.approx(mechanism.clip.bounds[0] / 2.0, rel=1e-3)


def test_numbers_and_bounds_that_do_not_fit(make, make_public):
    calibrated = make("channels").calibrated
    with pytest.raises(InvalidValueError, match="each of the 4 blocks"):
        PatientSum.numbers(calibrated, np.ones(3))
    with pytest.raises(InvalidValueError, match="2000 numbers in 4 blocks"):
        PatientSum.of(calibrated, make_public())


def test_a_share_that_is_too_narrow_is_refused(make):
    """Few lattice steps wide, a sum of shares is no Gaussian any more."""
    with pytest.raises(InvalidValueError, match="too narrow"):
        make(trust="secure-sum", epsilon=1e6, patients=10**7)


def test_a_share_of_the_count_that_is_too_narrow_is_refused_before_anybody_pays(make):
    counted = {"epsilon": 40.0, "sites": 30, "count": 0.5}
    make(**counted)
    with pytest.raises(InvalidValueError, match="too narrow"):
        make(**counted, trust="secure-sum")
