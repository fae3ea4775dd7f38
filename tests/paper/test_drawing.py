"""Figures with whiskers: valid SVG, everything inside, names that do not overlap."""

import re
from xml.etree import ElementTree as ET

import pytest

from paper.drawing import HEIGHT, WIDTH, whiskers
from paper.estimates import Estimate

SVG = "{http://www.w3.org/2000/svg}"


def drawn(low=70.0, high=80.0, count=4):
    names = ["the ensemble itself", "student, no noise", "student, uniform eps 8", "local only"]
    names = names[:count]
    middle = (low + high) / 2
    line = {str(size): Estimate(middle, low, high, 0.5) for size in (1, 2, 8)}
    return ET.fromstring(whiskers("A & B", "K", "Dice", dict.fromkeys(names, line)))  # noqa: S314


@pytest.mark.parametrize("ends", [(70, 80), (0, 100), (82.1, 82.4), (50, 50), (-0.2, 0.1)])
def test_everything_is_inside(ends):
    root = drawn(*map(float, ends))
    for circle in root.iter(f"{SVG}circle"):
        assert 0 <= float(circle.get("cx")) <= WIDTH
        assert 0 <= float(circle.get("cy")) <= HEIGHT
    for path in root.iter(f"{SVG}path"):
        x, y = map(float, re.match(r"M([-\d.]+) ([-\d.]+)", path.get("d")).groups())
        assert (0 <= x <= WIDTH, 0 <= y <= HEIGHT) == (True, True)


def test_points_without_an_order_are_not_joined():
    lines = {"local only": {name: Estimate(1.0, 0.0, 2.0, 0.5) for name in ("one", "other")}}
    joined, apart = (whiskers("A", "", "Dice", lines, joined=each) for each in (True, False))
    assert joined.count('<path class="line"') == apart.count('<path class="line"') + 1


def test_names_stand_apart_and_words_say_it_all():
    root = drawn()
    texts = [text for text in root.iter(f"{SVG}text") if text.get("class") == "name"]
    legend = {text.text: (float(text.get("x")), float(text.get("y"))) for text in texts}
    assert len({place for name, place in legend.items() if name not in ("K", "Dice")}) == 4
    for name, (x, y) in legend.items():
        beside = [other for n, other in legend.items() if n != name and other[1] == y]
        assert all(abs(other[0] - x) > 7 * len(name) for other in beside if other[0] > x)
    assert root.find(f"{SVG}title").text == "A & B"
    assert "student, no noise: 75.0 (70.0 to 80.0) at 1" in root.find(f"{SVG}desc").text
