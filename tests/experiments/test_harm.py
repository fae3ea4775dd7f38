"""The harm that theory leaves is the harm of the noise that plans really draw."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from canal.adapters.plan import AdapterPlan
from canal.experiments.harm import left

PLAN = AdapterPlan(8.0, 100, 60, sites=3, rounds=5)
SIX = arrays(np.float64, 6, elements=st.floats(1e-2, 1e2))


@given(SIX, SIX)
def test_channels_leave_what_is_said(harm, energy):
    """A bound of the root of its energy for every channel; flat, one of the root of all of it."""
    flat = PLAN.calibrate()
    channels = replace(PLAN, allocation="channels", blocks=6).calibrate(harm * energy)
    ours = (harm * energy * channels.sigma**2).sum()
    theirs = harm.sum() * energy.sum() * flat.sigma[0] ** 2
    assert ours / theirs == pytest.approx(left(harm, energy), rel=1e-3)


@given(SIX, SIX)
def test_ellipsoid_leaves_what_is_said(harm, energy):
    """Scaled back, even noise is as loud as the mean energy behind the scales asks."""
    scales = (harm / energy) ** 0.25
    ours = (harm / scales**2).sum() * (scales**2 * energy).sum()
    assert ours / (harm.sum() * energy.sum()) == pytest.approx(left(harm, energy))


def test_nothing_is_gained_where_harm_is_energy():
    energy = np.array([1.0, 20.0, 0.3])
    assert left(7 * energy, energy) == pytest.approx(1)
    assert left(1 / energy, energy) < 0.6
