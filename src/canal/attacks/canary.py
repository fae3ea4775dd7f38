r"""The canary: what one real patient moved, exactly.

A teacher is trained twice with the same seed, with one patient and without. What the two would
have had released is known before noise, and so is the noise; so the whole release tells the two
teachers apart as one Gaussian with
$$\mu = \Bigl(\sum_i \sum_{c,h,w} \bigl((f_{1,i} - f_{0,i}) / \sigma_c\bigr)^2
    + \sum_{\text{statistics}} \lVert v_1 - v_0 \rVert^2 / \sigma^2\Bigr)^{1/2},$$
over all N queries. No sampling is needed, and no adversary gets more. It is what *this* patient
paid, given the caps that were published; the guarantee is for the worst patient there could be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from canal.attacks.outcome import exact_epsilon
from canal.attacks.view import (
    check_queries,
    check_teachers,
    noiseless_rows,
    noiseless_statistics,
)
from canal.errors import InvalidValueError
from canal.features.ensemble import Ensemble
from canal.features.queries import Queries
from canal.features.store import Release
from canal.release.digits import finite_or_none, number, short
from canal.release.verification import check_statement


@dataclass(frozen=True)
class Canary:
    r"""What one patient moved.

    Args:
        cohort: whose patient.
        mu: exact, of the whole release.
        allowed: what the accounting allows the worst patient.
        delta: of every epsilon here.
    """

    cohort: str
    mu: float
    allowed: float
    delta: float

    @property
    def holds(self) -> bool:
        """Whether the accounting covers it; no rounding of ours counts against it."""
        return self.mu <= self.allowed * (1 + 1e-12)

    @property
    def epsilon(self) -> float:
        """By the exact curve."""
        return exact_epsilon(self.mu, self.delta)

    @property
    def verdict(self) -> str:
        """What the public may know: whether it is covered, and by what, in words."""
        if math.isinf(self.allowed):
            return "What real patients lost was looked at; nothing is promised that it could break."
        worst = number(exact_epsilon(self.allowed, self.delta))
        if not self.holds:
            return (
                "What real patients lost was looked at, and it is above what the accounting allows "
                f"the worst patient, epsilon {worst}."
            )
        return (
            "What real patients lost was looked at, and the accounting covers it: the worst "
            f"patient is allowed epsilon {worst}. The figures stay with those who hold the data."
        )

    def public(self) -> dict[str, Any]:
        """Everything about it that is no figure of a patient's, as plain values."""
        return {"allowed": self._allowed(), "holds": self.holds, "words": self.verdict}

    def _allowed(self) -> dict[str, float | None]:
        return {
            "mu": finite_or_none(self.allowed),
            "epsilon": finite_or_none(exact_epsilon(self.allowed, self.delta)),
        }

    def words(self) -> str:
        """What it means, in figures without noise: not for the public."""
        said = (
            f"Trained with and without one patient, the teacher of {self.cohort} moves this "
            f"release by epsilon {number(self.epsilon)} at delta {short(self.delta)}, exactly"
        )
        if math.isinf(self.mu):
            return said.replace("epsilon none", "more than any epsilon") + "; there is no noise."
        worst = exact_epsilon(self.allowed, self.delta)
        if not self.holds:
            return f"{said}; that is above the {number(worst)} that the accounting allows."
        return f"{said}; the accounting allows the worst patient {number(worst)}."

    def to_json(self) -> dict[str, Any]:
        """As plain values; null is infinite. Not for the public."""
        return {
            "cohort": self.cohort,
            "mu": finite_or_none(self.mu),
            "epsilon": finite_or_none(self.epsilon),
            "allowed": self._allowed(),
            "holds": self.holds,
            "words": self.words(),
        }


def measure(
    release: Release,
    with_: Ensemble,
    without: Ensemble,
    queries: Queries,
    progress: Callable[[int], None] = lambda count: None,
) -> Canary:
    """What a release tells of one patient of one cohort.

    Args:
        release: of the first ensemble.
        with_: the teachers.
        without: the same, but for one that was trained without the patient.
        queries: all that were asked.
        progress: called with the number of images that passed through a network, which is twice
            `view.passes` in all.
    """
    cohort = _changed(release, with_, without)
    check_queries(release, queries.ids)
    calibrated = check_statement(release.manifest)
    plan, sigma = release.plan, calibrated.published_sigma
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = (
            noiseless_rows(release, ensemble, queries.arrays, progress)
            for ensemble in (with_, without)
        )
        moved = np.square((first - second) / np.repeat(sigma, plan.positions))
        total = float(np.nansum(moved))
        one, other = (
            noiseless_statistics(release, ensemble, queries.arrays, progress)
            for ensemble in (with_, without)
        )
        for name in one:
            apart = (one[name] - other[name]) / calibrated.sigma(name)[0]
            total += float(np.nansum(np.square(apart)))
    return Canary(cohort, math.sqrt(total), calibrated.guarantee.mu("patient"), plan.delta)


def exchange(ensemble: Ensemble, other: Ensemble) -> Ensemble:
    """The same teachers, but for the one of this cohort.

    Args:
        ensemble: the teachers.
        other: one teacher, of one of the same cohorts and from the same initialisation.
    """
    (teacher,) = other.teachers
    if teacher.cohort not in ensemble.cohorts or other.initialisation != ensemble.initialisation:
        raise InvalidValueError(
            f"the teacher without the patient is of {teacher.cohort!r}, and starts from "
            f"{other.initialisation[:12]}; it must be of one of {', '.join(ensemble.cohorts)}, and "
            f"start from {ensemble.initialisation[:12]}"
        )
    teachers = [teacher if each.cohort == teacher.cohort else each for each in ensemble.teachers]
    return replace(ensemble, teachers=tuple(teachers))


def _changed(release: Release, with_: Ensemble, without: Ensemble) -> str:
    """The cohort whose teacher is another one, if all else is as it should be."""
    for ensemble in (with_, without):
        check_teachers(release, ensemble)
    pairs = zip(with_.teachers, without.teachers, strict=True)
    other = [one.cohort for one, two in pairs if one.digest != two.digest]
    if len(other) != 1:
        raise InvalidValueError(
            f"the two ensembles differ in {len(other)} teachers; one patient is in one cohort, so "
            "they must differ in one"
        )
    return other[0]
