r"""Whose privacy: the unit that one guarantee speaks of, and what one unit can move.

The paper mixes two units, and the difference is orders of magnitude. Every event therefore states,
for each unit, a *sensitivity* (how far one unit can move what is published) and a *count* (how
often that is published with fresh noise):

========= ===================================================== ============= =================
unit      neighbours                                            weight        times released
========= ===================================================== ============= =================
patient   one patient of one site's training cohort replaced:   1/K           N (every query)
          that teacher may change arbitrarily, on every query
image     one query image replaced, teachers fixed and public   1             1 (m of a person)
paper     the paper's accounting: weight of the first, count    1/K           1 (m of a person)
          of the second; a joint guarantee for neither
========= ===================================================== ============= =================

A fourth unit, `membership`, is a patient who is added to a cohort or removed from it. For features
of arbitrary teachers that costs what replacing one costs; where every patient has a part of their
own in what is published (`canal.gradients`), it is half of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from canal.errors import InvalidValueError, UnknownUnitError

Unit = Literal["patient", "image", "paper", "membership"]
# Of features; then all that a ledger can count in.
UNITS: tuple[Unit, ...] = ("patient", "image", "paper")
ALL_UNITS: tuple[Unit, ...] = get_args(Unit)

# Neighbour relations, as the literature calls them, and the units that they are here.
Relation = Literal["add-remove", "replace"]
RELATIONS: dict[str, Unit] = {"add-remove": "membership", "replace": "patient"}

NEIGHBOURS: dict[Unit, str] = {
    "patient": "one patient of one site's training cohort is added, removed or replaced; "
    "that site's teacher may change arbitrarily, on every query",
    "image": "one query image is replaced (with all images of that person); "
    "the teachers are fixed and public",
    "paper": "the paper's accounting: one teacher changes, but on one query only; "
    "a guarantee for neither a patient nor an image",
    "membership": "one patient is added to one site's training cohort, or removed from it",
}


def check_unit(unit: str) -> Unit:
    """Give the unit back if it is one that we know."""
    for known in ALL_UNITS:
        if unit == known:
            return known
    raise UnknownUnitError(f"unit = {unit!r} is unknown; choose one of {', '.join(ALL_UNITS)}")


@dataclass(frozen=True)
class Exposure:
    """What one unit of privacy can do to one event.

    Args:
        sensitivity: the largest L2 distance that one unit can move one block of what is
            published; one number for all blocks, or one for each.
        count: how many times, each with fresh noise, one unit takes part.
    """

    sensitivity: float | tuple[float, ...]
    count: int = 1

    def __post_init__(self) -> None:
        values = (
            self.sensitivity if isinstance(self.sensitivity, tuple) else (float(self.sensitivity),)
        )
        if not values or not all(0 <= value < math.inf for value in values):
            raise InvalidValueError(
                f"sensitivity = {self.sensitivity!r} must be finite and at least 0"
            )
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise InvalidValueError(f"count = {self.count!r} must be a whole number of at least 1")


@dataclass(frozen=True)
class Participants:
    r"""How many take part; all of it public, and all that a sensitivity depends on.

    Args:
        teachers: K, one for each site.
        queries: N images that the recipient asks about.
        images_per_person: m, the most query images that show one person (group privacy).
    """

    teachers: int
    queries: int
    images_per_person: int = 1

    def __post_init__(self) -> None:
        for name in ("teachers", "queries", "images_per_person"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidValueError(f"{name} = {value!r} must be a whole number of at least 1")
        if self.images_per_person > self.queries:
            raise InvalidValueError(
                f"images_per_person = {self.images_per_person} cannot exceed "
                f"queries = {self.queries}"
            )

    def features(self, diameter: float) -> dict[Unit, Exposure]:
        r"""Exposure of the released mean of K clipped bottlenecks, channel by channel.

        Args:
            diameter: D, the largest distance between two clipped channels: 2 in the unit ball,
                $\sqrt 2$ in its non-negative part.

        >>> Participants(teachers=4, queries=100).features(2.0)["patient"]
        Exposure(sensitivity=0.5, count=100)
        """
        weight = diameter / self.teachers
        patient = Exposure(weight, self.queries)
        return {
            "patient": patient,
            "image": Exposure(diameter, self.images_per_person),
            "paper": Exposure(weight, self.images_per_person),
            "membership": patient,
        }

    def statistic(self, bound: float) -> dict[Unit, Exposure]:
        r"""Exposure of a mean over teachers and queries of non-negative vectors of norm at most B.

        Two such vectors are at most $\sqrt 2\,B$ apart. A patient changes one teacher, on all
        queries: weight 1/K. An image changes all teachers, on itself: weight 1/N.

        Departs from the paper:
            which does not state this sensitivity. It calls its caps and scores dataset-level
            aggregates "of low replace-one sensitivity" with one training image as the user, so
            the `paper` unit takes the image's 1/N.

        Args:
            bound: B, public.
        """
        diameter = math.nextafter(math.sqrt(2), math.inf) * bound
        image = Exposure(diameter * self.images_per_person / self.queries)
        patient = Exposure(diameter / self.teachers)
        return {"patient": patient, "image": image, "paper": image, "membership": patient}

    def read_in_the_clear(self, bound: float) -> dict[Unit, Exposure]:
        """Exposure of such a mean when public weights make it of the query images themselves.

        No teacher has a part in it, so no patient moves it; a query image does.
        """
        image = self.statistic(bound)["image"]
        nothing = Exposure(0.0)
        return {"patient": nothing, "image": image, "paper": nothing, "membership": nothing}
