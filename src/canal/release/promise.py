"""What one unit of privacy is promised: the numbers, and a sentence that says what they mean."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from canal.features.calibration import finite_or_none
from canal.privacy.events import Guarantee
from canal.privacy.gaussian import Conversion
from canal.privacy.units import NEIGHBOURS, Unit
from canal.release.digits import short, upwards

FALSE_ALARMS = 0.01
# Found out of a hundred members, at one false alarm in a hundred, from which on we say so.
NO_PROTECTION = 0.9


def promise(
    guarantee: Guarantee,
    unit: Unit,
    delta: float,
    conversion: Conversion,
    *,
    private: bool,
    outsiders: bool = True,
) -> dict[str, Any]:
    """What is promised to one unit, in numbers and in words.

    Args:
        guarantee: of the release.
        unit: of privacy.
        delta: of every epsilon.
        conversion: between rho and epsilon.
        private: whether anything is promised.
        outsiders: whether neighbours differ by one who is there or not; else by which of two is.
    """
    if not private:
        nothing = dict.fromkeys(("epsilon", "epsilon_exact", "rho", "mu"))
        return nothing | {
            "neighbours": NEIGHBOURS[unit],
            "protects": False,
            "reading": "Nothing is promised.",
            "parts": {},
        }
    epsilon = guarantee.epsilon(delta, unit, conversion)
    rho, mu = guarantee.rho(unit), guarantee.mu(unit)
    return {
        "epsilon": finite_or_none(epsilon),
        "epsilon_exact": finite_or_none(guarantee.epsilon(delta, unit, "exact")),
        "rho": finite_or_none(rho),
        "mu": finite_or_none(mu),
        "neighbours": NEIGHBOURS[unit],
        "protects": unit != "paper" and detected(mu) <= NO_PROTECTION,
        "reading": _reading(unit, epsilon, mu, outsiders),
        "parts": {
            event.name: {
                "rho": finite_or_none(event.rho(unit)),
                "share": event.rho(unit) / rho if 0 < rho < math.inf else None,
            }
            for event in guarantee.events
        },
    }


def _reading(unit: Unit, epsilon: float, mu: float, outsiders: bool) -> str:
    if math.isinf(epsilon):
        return (
            "No guarantee. Query images count as public here: what was learned or read from them "
            "with public weights is published as it is."
        )
    if unit == "paper":
        return "The paper's accounting, to be compared with its tables; a guarantee for nobody."
    caught = detected(mu)
    whom = "query images" if unit == "image" else "patients of a training cohort"
    share = "nearly all" if caught > 0.995 else f"at most {short(upwards(100 * caught, 3))} in 100"
    sentence = (
        "Someone who reads this release and wrongly names 1 in 100 outsiders can rightly name "
        f"{share} {whom}."
    )
    if not outsiders:
        sentence = (
            "Someone who knows that one of two people was a patient here, and wrongly names the "
            f"one in 1 of 100 such cases, can rightly name the other in {share}."
        )
    return sentence + (" That is no protection." if caught > NO_PROTECTION else "")


def detected(mu: float) -> float:
    """Most true positives at 1 % false ones that Gaussian DP with this mu leaves."""
    normal = NormalDist()
    return normal.cdf(normal.inv_cdf(FALSE_ALARMS) + mu)
