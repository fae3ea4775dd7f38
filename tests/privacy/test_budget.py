"""The split: shares, public sources, and rounding that makes no budget."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canal.errors import InvalidValueError
from canal.privacy import BudgetSplit


def test_the_papers_split():
    assert BudgetSplit() == BudgetSplit(caps=0.10, importance=0.05, release=0.85)


@pytest.mark.parametrize(
    ("caps", "importance", "want"),
    [
        ("private", "private", (0.10, 0.05, 0.85)),
        ("public", "private", (0.0, 0.05, 0.95)),
        ("private", "public", (0.10, 0.0, 0.90)),
        ("public", "public", (0.0, 0.0, 1.0)),
    ],
)
def test_what_is_public_leaves_its_share_to_the_release(caps, importance, want):
    split = BudgetSplit().with_sources(caps, importance)
    assert (split.caps, split.importance, split.release) == pytest.approx(want)


@given(st.floats(0, 0.5), st.floats(0, 0.49), st.floats(1e-300, 1e300))
def test_parts_never_sum_to_more_than_the_whole(caps, importance, total):
    parts = BudgetSplit(caps, importance, 1 - caps - importance).rho(total)
    assert math.fsum(parts.values()) <= total
    assert math.fsum(parts.values()) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize(
    "shares",
    [(0.5, 0.5, 0.5), (-0.1, 0.1, 1.0), (0.5, 0.5, 0.0), (math.nan, 0.5, 0.5), (1.5, 0, -0.5)],
)
def test_shares_that_make_no_sense_are_refused(shares):
    with pytest.raises(InvalidValueError, match="split"):
        BudgetSplit(*shares)


def test_a_source_is_private_or_public():
    with pytest.raises(InvalidValueError, match="private or public"):
        BudgetSplit().with_sources("secret", "public")
