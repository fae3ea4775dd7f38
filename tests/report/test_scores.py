"""Paired differences: held against another bootstrap, and honest where nothing can be told."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap

from canal.learning.evaluation import Score
from canal.report.benefit import points, verdict
from canal.report.forest import Scale
from canal.report.scores import Difference, difference


def by_image(values, people=None):
    names = [f"image {number}" for number in range(len(values))] if people is None else people
    return [
        Score(f"image {number}", float(value), 0.0, 0.0, name)
        for number, (value, name) in enumerate(zip(values, names, strict=True))
    ]


def named(**dice):
    return [Score(name, value, 0.0, 0.0) for name, value in dice.items()]


def test_the_interval_agrees_with_scipy():
    rng = np.random.default_rng(0)
    base = rng.uniform(0.3, 0.9, 80)
    better = base + rng.normal(0.02, 0.05, 80)
    found = difference(by_image(better), by_image(base))
    theirs = bootstrap(
        (better - base,), np.mean, method="percentile", n_resamples=20_000, rng=1
    ).confidence_interval
    assert found.mean == pytest.approx((better - base).mean())
    # The ends are means of ten thousand draws: their own error is a fiftieth of the width.
    room = 0.06 * (theirs.high - theirs.low)
    assert (found.low, found.high) == pytest.approx(theirs, abs=room)
    assert found.images == 80


def test_pairing_is_by_name_not_by_place():
    assert difference(named(a=0.9, b=0.1), named(b=0.1, a=0.9)) == Difference(0.0, 0.0, 0.0, 2)


def test_other_images_are_not_compared():
    assert difference(named(a=1.0), named(b=1.0)) is None
    assert difference(named(a=1.0), named(a=1.0, b=1.0)) is None


def test_images_of_one_person_are_one_witness():
    """Every image four times: as many people, as wide an interval; as images, half as wide."""
    rng = np.random.default_rng(1)
    base = rng.uniform(0.3, 0.9, 50)
    better = base + rng.normal(0.02, 0.05, 50)
    people = [f"person {number}" for number in range(50)]
    once = difference(by_image(better, people), by_image(base, people))
    often = difference(
        by_image(np.tile(better, 4), 4 * people), by_image(np.tile(base, 4), 4 * people)
    )
    strangers = difference(by_image(np.tile(better, 4)), by_image(np.tile(base, 4)))
    assert (often.low, often.high) == pytest.approx((once.low, once.high), abs=1e-9)
    width = (strangers.high - strangers.low) / (once.high - once.low)
    assert width == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Difference(0.02, 0.004, 0.03, 84), "+2.0 points (0.4 to 3.0): better on these 84 images."),
        (Difference(-0.02, -0.03, -0.01, 84), "−2.0 points (−3.0 to −1.0): worse on these"),
        (Difference(0.008, -0.004, 0.02, 84), "(−0.4 to 2.0): no difference can be told"),
        (Difference(0.5, 0.5, 0.5, 1), "no difference can be told from this one image."),
    ],
)
def test_verdicts(found, said):
    assert said in verdict("CANAL", "alone", found)


def test_points_never_say_minus_zero():
    assert points(-0.0001, signed=True) == points(0.0001) == "0.0"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_a_scale_holds_its_values_between_few_ticks(values):
    scale = Scale.around(values)
    assert all(-1e-9 <= scale.at(value) <= 100 + 1e-9 for value in values)
    assert 2 <= len(range(scale.low, scale.high + 1, scale.step)) <= 6
    assert scale.axis().count("<span") <= 6
