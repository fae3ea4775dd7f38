"""Axes of drawings."""

from hypothesis import given
from hypothesis import strategies as st

from canal.release.chart import Axis


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=5))
def test_an_axis_holds_its_values_between_few_ticks(values):
    axis = Axis.around(values, 1.1)
    assert all(0 < axis.at(each) < 1 for each in values)
    assert 2 <= len(axis.ticks) <= 6
    assert all(-1e-9 <= axis.at(tick) <= 1 + 1e-9 for tick in axis.ticks)
