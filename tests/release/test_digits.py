"""Numbers for people: four digits, counts whole, an epsilon never rounded down."""

from hypothesis import given
from hypothesis import strategies as st

from canal.release.digits import number, upwards
from reading import near, value


@given(st.floats(1e-12, 1e12))
def test_a_number_is_read_back_to_four_digits(given_value):
    assert value(number(given_value)) == near(given_value)


@given(st.integers(0, 10**12))
def test_a_count_is_never_rounded(count):
    assert int(number(count).replace(",", "")) == count


@given(st.floats(1e-6, 1e6))
def test_an_epsilon_is_rounded_up(epsilon):
    shown = upwards(epsilon)
    assert epsilon * (1 - 1e-11) <= shown < epsilon * (1 + 1.001e-3)
    assert len(f"{shown:.12g}".replace(".", "").strip("0").partition("e")[0]) <= 4
    assert upwards(shown) == shown
