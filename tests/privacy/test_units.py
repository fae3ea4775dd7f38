"""Units: the table of the design, group privacy, and nothing unknown passing for zero."""

import math

import pytest

from canal.errors import InvalidValueError, UnknownUnitError
from canal.privacy import ALL_UNITS, NEIGHBOURS, Exposure, Participants
from canal.privacy.units import check_unit


def test_features_follow_the_table():
    got = Participants(teachers=3, queries=1000, images_per_person=4).features(diameter=2.0)
    assert got == {
        "patient": Exposure(2 / 3, 1000),
        "image": Exposure(2.0, 4),
        "paper": Exposure(2 / 3, 4),
        "membership": Exposure(2 / 3, 1000),
    }


def test_statistics_follow_the_design():
    got = Participants(teachers=3, queries=1000, images_per_person=4).statistic(bound=5.0)
    assert got["patient"].sensitivity == pytest.approx(math.sqrt(2) * 5 / 3)
    assert got["image"].sensitivity == pytest.approx(4 * math.sqrt(2) * 5 / 1000)
    assert {exposure.count for exposure in got.values()} == {1}
    assert all(e.sensitivity >= 0 for e in got.values())


def test_what_public_weights_read_in_the_clear_is_moved_by_images_alone():
    people = Participants(teachers=3, queries=1000, images_per_person=4)
    got = people.read_in_the_clear(bound=5.0)
    assert set(got) == set(ALL_UNITS)
    assert got["patient"].sensitivity == got["paper"].sensitivity == 0
    assert got["image"] == people.statistic(bound=5.0)["image"]
    assert got["image"].sensitivity == pytest.approx(4 * math.sqrt(2) * 5 / 1000)


def test_a_patients_part_does_not_depend_on_how_many_images_show_a_person():
    one, many = (Participants(3, 1000, m).features(2.0)["patient"] for m in (1, 50))
    assert one == many


def test_every_unit_says_what_its_neighbours_are():
    assert set(NEIGHBOURS) == set(ALL_UNITS)


@pytest.mark.parametrize("unit", ["", "Patient", "person", "pixel"])
def test_an_unknown_unit_is_an_error(unit):
    with pytest.raises(UnknownUnitError, match="choose one of patient, image, paper") as caught:
        check_unit(unit)
    assert not str(caught.value).startswith("'unit")  # a sentence, not the repr of a KeyError


@pytest.mark.parametrize(
    "arguments",
    [
        {"teachers": 0, "queries": 1},
        {"teachers": 1, "queries": 0},
        {"teachers": 1.5, "queries": 1},
        {"teachers": True, "queries": 1},
        {"teachers": 1, "queries": 3, "images_per_person": 4},
    ],
)
def test_participants_are_whole_and_positive(arguments):
    with pytest.raises(InvalidValueError):
        Participants(**arguments)


@pytest.mark.parametrize(
    ("sensitivity", "count"),
    [(-1, 1), (math.nan, 1), (math.inf, 1), ((), 1), ((1.0, -1.0), 1), (1, 0), (1, 2.5), (1, True)],
)
def test_an_exposure_has_a_price(sensitivity, count):
    with pytest.raises(InvalidValueError):
        Exposure(sensitivity, count)
