"""From published sums to the next network: three rounds by hand, averages, rates."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from canal.errors import InvalidValueError
from canal.gradients.update import Trajectory, UpdateSettings

DIRECTIONS = ([1.0, 0.0], [1.0, 2.0], [-4.0, 2.0])


def walk(rounds=3, directions=DIRECTIONS, **settings):
    """Where it is after each round, and the adapter in the end."""
    course = Trajectory(torch.tensor([10.0, 20.0]), UpdateSettings(**settings), rounds)
    here = []
    for direction in directions:
        course.move(torch.tensor(direction))
        here.append(course.here.tolist())
    return here, course.adapter.tolist()


def test_three_rounds_by_hand():
    """m = (1, 0), (1.5, 2), (-3.25, 3); each step is twice that, downhill."""
    here, adapter = walk(step=2.0, momentum=0.5, averaged=0.5)
    assert here == [[8.0, 20.0], [5.0, 16.0], [11.5, 10.0]]
    assert adapter == [8.25, 13.0]  # of the last two: half of three, rounded up


@pytest.mark.parametrize(
    ("averaged", "adapter"),
    [(0.0, [11.5, 10.0]), (1 / 3, [11.5, 10.0]), (2 / 3, [8.25, 13.0]), (1.0, [24.5 / 3, 46 / 3])],
)
def test_the_last_rounds_are_averaged(averaged, adapter):
    assert walk(step=2.0, momentum=0.5, averaged=averaged)[1] == pytest.approx(adapter)


@pytest.mark.parametrize("rounds", [10, 40, 100])
@pytest.mark.parametrize("tenths", range(11))
def test_a_share_of_the_rounds_is_that_share(tenths, rounds):
    """Not one more for the rounding of tenths: every position is its own number."""
    course = Trajectory(torch.zeros(1), UpdateSettings(1.0, 0.0, tenths / 10), rounds)
    for _ in range(rounds):
        course.move(torch.tensor([-1.0]))
    first = rounds - rounds * tenths // 10 + 1
    mean = (first + rounds) / 2 if tenths else rounds
    assert float(course.adapter) == pytest.approx(mean)


def test_before_anything_is_averaged_it_is_where_it_is():
    course = Trajectory(torch.tensor([1.0]), UpdateSettings(step=1.0, momentum=0.0), 10)
    assert course.adapter.tolist() == [1.0]
    course.move(torch.tensor([3.0]))
    assert course.adapter.tolist() == course.here.tolist() == [-2.0]


def test_a_cosine_comes_down_to_zero():
    settings = UpdateSettings(step=2.0, decay="cosine")
    rates = [settings.rate(number, 4) for number in range(5)]
    assert rates == pytest.approx([2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0])
    assert [UpdateSettings(step=2.0).rate(number, 4) for number in range(5)] == [2.0] * 5


def test_a_cosine_by_hand():
    """Three rounds of one and the same direction, without momentum: rates 2, 1.5 and 0.5."""
    directions = [[1.0, 0.0]] * 3
    here, _ = walk(directions=directions, step=2.0, momentum=0.0, decay="cosine")
    assert [row[0] for row in here] == pytest.approx([8.0, 6.5, 6.0])


@given(st.floats(0.01, 1), st.floats(0, 0.99), st.integers(1, 6))
def test_the_start_is_left_alone(step, momentum, rounds):
    """Whoever repeats it begins from the same numbers."""
    start = torch.tensor([1.0, -1.0])
    course = Trajectory(start, UpdateSettings(step, momentum), rounds)
    for _ in range(rounds):
        course.move(torch.tensor([1.0, 2.0]))
    assert start.tolist() == [1.0, -1.0]
    assert course.number == rounds
    assert course.here.dtype == torch.float64


@pytest.mark.parametrize(
    "bad",
    [
        {"step": 0.0},
        {"step": math.inf},
        {"step": math.nan},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"momentum": math.nan},
        {"averaged": 1.1},
        {"averaged": math.nan},
        {"decay": "linear"},
    ],
)
def test_what_cannot_be_is_refused(bad):
    (name,) = bad
    with pytest.raises(InvalidValueError, match=f"{name} = "):
        UpdateSettings(**bad)


def test_settings_written_down_are_the_same_settings():
    settings = UpdateSettings(0.1, 0.5, 0.25, "cosine")
    assert UpdateSettings(**settings.to_json()) == settings
