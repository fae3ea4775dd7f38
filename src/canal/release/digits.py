"""Numbers as people write them: four digits, no zeros in an exponent, epsilon never too small."""

from __future__ import annotations

import math
import re

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_EXPONENT_FORM = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?e[+-]?\d+(?![\w-])")
_POWER = re.compile(r"(?<![\w.-])(\d+)\^(-?\d+)")


def finite_or_none(value: float) -> float | None:
    """For JSON, which has no infinity: null says that there is no guarantee."""
    return value if math.isfinite(value) else None


def short(value: float | None) -> str:
    """Four digits for a terminal; no guarantee has no number.

    >>> short(1e-05), short(27.748), short(None)
    ('1e-5', '27.75', 'none')
    """
    if value is None or not math.isfinite(value):
        return "none"
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")


def upwards(value: float | None, digits: int = 4) -> float | None:
    """An epsilon to four digits, rounded up: what is signed is never below what is true.

    >>> upwards(27.7401), upwards(7.99999999), upwards(8.0)
    (27.75, 8.0, 8.0)
    """
    if value is None or not 0 < value < math.inf:
        return value
    place = digits - 1 - math.floor(math.log10(value))
    # As good as a whole number of units is one: the last bits of a double are not worth a digit.
    units = math.ceil(value * 10.0**place * (1 - 1e-12))
    return float(f"{units}e{-place}")


def downwards(value: float, digits: int = 4) -> float:
    """A lower bound to four digits, rounded down: what is shown was proved.

    >>> downwards(7.96559), downwards(0.0)
    (7.965, 0.0)
    """
    if not 0 < value < math.inf:
        return value
    place = digits - 1 - math.floor(math.log10(value))
    return float(f"{math.floor(value * 10.0**place * (1 + 1e-12))}e{-place}")


def number(value: float | None) -> str:
    """A number as a person writes it: counts in full, all else to four digits.

    >>> number(None), number(7.999999), number(3535.54), number(123456), number(1.52588e-05)
    ('none', '8', '3536', '123,456', '1.526 × 10⁻⁵')
    """
    if value is None or not math.isfinite(value):
        return "none"
    if isinstance(value, int):
        return _grouped(f"{value:,}")
    digits, exponent = f"{value:.3e}".split("e")
    power = int(exponent)
    if -4 < power < 9:
        return _grouped(_trimmed(f"{float(f'{value:.3e}'):,.{max(3 - power, 0)}f}"))
    raised = f"10{str(power).translate(_SUPERSCRIPT)}"
    return raised if _trimmed(digits) == "1" else f"{_trimmed(digits)} × {raised}"


def prose(words: str) -> str:
    """The same sentence with every number in exponent form as `number` writes it.

    >>> prose("delta 1e-05, step 2^-16, site-1e-05")
    'delta 10⁻⁵, step 2⁻¹⁶, site-1e-05'
    """
    words = _EXPONENT_FORM.sub(lambda found: number(float(found[0])), words)
    return _POWER.sub(lambda found: found[1] + found[2].translate(_SUPERSCRIPT), words)


def _trimmed(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _grouped(digits: str) -> str:
    """Four digits need no comma; more do."""
    return digits.replace(",", "") if len(digits.partition(".")[0]) <= len("1,000") else digits


def percent(share: float | None) -> str:
    """A share of 1 in hundredths, to one decimal."""
    return "none" if share is None else f"{_trimmed(f'{100 * share:.1f}')} %"
