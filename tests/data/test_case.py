"""A data set gives its cases by id, in the order that was asked for."""

from pathlib import Path

import pytest

from canal.data.case import Case, DataSet
from canal.errors import DataError


@pytest.fixture
def data():
    cases = tuple(Case(name, (Path(name),), (), patient=name) for name in "abc")
    return DataSet("images/ and masks/", Path("somewhere"), cases)


def test_cases_come_in_the_order_of_their_ids(data):
    assert [case.id for case in data.select(["c", "a"])] == ["c", "a"]


def test_an_unknown_id_is_an_error_with_a_way_out(data):
    with pytest.raises(DataError, match="z is not among the 3 cases of somewhere; give the folder"):
        data.select(["a", "z"])
