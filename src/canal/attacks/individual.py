r"""Individual privacy loss: what one release tells of one real patient. It stays at the hospital.

No sampling is needed: what a patient moved is known before noise, and so is the noise.

*Features* (`loss_of_patient`). A teacher is trained twice with the same seed, with one patient and
without. The whole release tells the two apart as one Gaussian with
$$\mu = \Bigl(\sum_i \sum_{c,h,w} \bigl((f_{1,i} - f_{0,i}) / \sigma_c\bigr)^2
    + \sum_{\text{statistics}} \lVert v_1 - v_0 \rVert^2 / \sigma^2\Bigr)^{1/2},$$
over all N queries, given the caps that were published.

*Gradients* (`losses_of_patients`). The network of every round follows from sums that were
published, so whoever has a patient's images computes again what that patient added to each of them,
$n_{t,b}$ lattice steps $\gamma$ in block b of round t (the accounting of individuals, Feldman and
Zrnic 2021):
$$\mu = \Bigl(\sum_t \sum_b \lVert \gamma n_{t,b} \rVert^2 / \sigma_b^2
    + [\text{patients are counted}] / \sigma_N^2\Bigr)^{1/2}.$$

It is what *this* patient lost in *this* release, which other noise would have led elsewhere; the
guarantee is for the worst patient and any release. The figures have no noise, and no epsilon covers
them. So they are in no file that is meant for others: they are shown to whoever sits at the
terminal, and kept in a file of their own where the hospital asks for it, which the report refuses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.attacks.verdict import exact_epsilon
from canal.attacks.view import (
    Floats,
    check_queries,
    check_teachers,
    noiseless_rows,
    noiseless_statistics,
)
from canal.errors import InvalidValueError
from canal.features.ensemble import Ensemble
from canal.features.queries import Queries
from canal.features.store import Release
from canal.files import replace_file
from canal.gradients.gradients import Gradients
from canal.gradients.patients import CHUNK, Patients
from canal.release.digits import finite_or_none, number, short
from canal.release.manifest import MANIFEST
from canal.release.verification import check_statement

if TYPE_CHECKING:
    from torch import nn

    from canal.data.arrays import Arrays
    from canal.gradients.mechanism import PatientSum
    from canal.gradients.store import AdapterRelease


FAMILY = "canal-individual/"
FORMAT = f"{FAMILY}1"
STAYS = "These figures are about patients and have no noise: they must not leave the hospital."
LOOKED_AT = "looked at with what a site keeps; the figures stay with those who hold it"


def check_place(path: Path, release: Path, out: Path | None = None) -> None:
    """Refuse a file where the public might find it: in a release, or in the folder of a run.

    Args:
        path: of the file for the hospital alone.
        release: folder of the release that was looked at.
        out: of the file for the public, if there is one.
    """
    place, published = path.resolve(), release.resolve()
    if path.is_dir() or not place.parent.is_dir():
        raise InvalidValueError(f"--private {path} must be a file in a folder that exists")
    if path.is_symlink():
        raise InvalidValueError(f"--private {path} is a link; give a file of its own")
    run = [published.parent] if out is None else [published.parent, out.resolve().parent]
    for folder in place.parents:
        if folder.name.endswith(".private") and published not in place.parents:
            return
        if folder in run or (folder / MANIFEST).exists():
            raise InvalidValueError(
                f"--private {path} would lie in {folder}, which holds what others may read; give a "
                "place outside of it, or a folder of its own whose name ends with .private"
            )


def write(path: Path, found: dict[str, Any]) -> None:
    """Write what was found where only its owner can read it."""
    content = {"format": FORMAT, "stays": STAYS} | found
    text = json.dumps(content, indent=1, allow_nan=False)
    replace_file(path, f"{text}\n".encode(), mode=0o600)


@dataclass(frozen=True)
class IndividualLoss:
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


def loss_of_patient(
    release: Release,
    with_: Ensemble,
    without: Ensemble,
    queries: Queries,
    progress: Callable[[int], None] = lambda count: None,
) -> IndividualLoss:
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
    return IndividualLoss(cohort, math.sqrt(total), calibrated.guarantee.mu("patient"), plan.delta)


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


@dataclass(frozen=True)
class CohortLosses(IndividualLoss):
    r"""What the patients of one site paid; $\mu$ is that of the one who moved most.

    Args:
        median: $\mu$ of one in the middle.
        longest: the length of the longest block of anybody in any round, of which 1 is the bound.
        patients: how many were looked at.
        among: how many there are.
        each: $\mu$ of every one that was looked at, by name.
    """

    median: float
    longest: float
    patients: int
    among: int
    each: dict[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the accounting covers it, and nobody was beyond the bound in any block."""
        return super().holds and self.longest <= 1 + 1e-12

    def words(self) -> str:
        """What it means."""
        who = f"{self.patients}" + (f" of {self.among}" if self.patients < self.among else "")
        said = f"Of {who} patients of {self.cohort}, the one that moved this release most paid "
        if math.isinf(self.mu):
            return f"{said}more than any epsilon; there is no noise."
        worst, middle = (exact_epsilon(mu, self.delta) for mu in (self.allowed, self.median))
        said += (
            f"epsilon {number(self.epsilon)} at delta {short(self.delta)} along its rounds, and "
            f"one in the middle {number(middle)}; "
        )
        if self.longest > 1 + 1e-12:
            said += f"somebody's part was {self.longest:.4g} bounds long, and 1 is stated."
        elif not self.holds:
            said += f"that is above the {number(worst)} that the accounting allows."
        else:
            said += f"the accounting allows the worst patient {number(worst)}."
        return f"{said} No noise is in these numbers: they are for the hospital alone."

    def to_json(self) -> dict[str, Any]:
        """As plain values; null is infinite."""
        return super().to_json() | {
            "median": {
                "mu": finite_or_none(self.median),
                "epsilon": finite_or_none(exact_epsilon(self.median, self.delta)),
            },
            "longest": self.longest,
            "patients": self.patients,
            "among": self.among,
            "each": {
                who: {
                    "mu": finite_or_none(mu),
                    "epsilon": finite_or_none(exact_epsilon(mu, self.delta)),
                }
                for who, mu in self.each.items()
            },
        }


def first_patients(
    release: AdapterRelease,
    cohort: str,
    arrays: Arrays,
    most: int | None,
    chunk: int = CHUNK,
) -> tuple[Patients, int]:
    """The first patients of a site, as they took part in a release, and how many it has.

    Args:
        release: says whether images are varied.
        cohort: name of the site's cohort.
        arrays: its images; private.
        most: how many; all if not given.
        chunk: images a pass, as the site had them: batches of another shape have other last bits.
    """
    if most is not None and most < 1:
        raise InvalidValueError(f"most = {most!r} must be at least 1")
    views = int(release.manifest.participants["views"])
    everybody = Patients(cohort, arrays, views=views, chunk=chunk)
    rows = [row for who in list(everybody.rows)[:most] for row in everybody.rows[who]]
    some = arrays.rows([arrays.ids[row] for row in rows])
    return Patients(cohort, some, views=views, chunk=chunk), len(everybody)


def parts_of_rounds(
    release: AdapterRelease,
    network: nn.Module,
    people: Sequence[Patients],
    progress: Callable[[int], None] = lambda count: None,
) -> tuple[PatientSum, Iterator[Iterator[Floats]]]:
    """What patients add to each round of a release, if they are there; private.

    Args:
        release: that they may have taken part in.
        network: the initialisation that its rounds started from; it is changed.
        people: of one site, or outsiders; in this order.
        progress: called with the number of images that passed through the network: all of them in
            every round.

    Returns:
        The mechanism; and for each round the integers, `[p, d]`, of some patients at a time.
    """
    coordinates = release.install(network)
    mechanism = release.mechanism(coordinates)
    clip, lattice = mechanism.clip, mechanism.calibrated.lattice
    gradients = Gradients(network, coordinates.names, basis=mechanism.basis)

    def rounds() -> Iterator[Iterator[Floats]]:
        for when, course in zip(range(len(release)), release.walk(coordinates), strict=False):
            coordinates.write(course.here.float())
            yield (
                clip.apply(rows, lattice).double().numpy()
                for each in people
                for rows in each.gradients(gradients, when, progress)
            )

    return mechanism, rounds()


def losses_of_patients(
    release: AdapterRelease,
    network: nn.Module,
    people: Patients,
    among: int | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> CohortLosses:
    """What every one of these patients paid.

    Args:
        release: that they took part in.
        network: the initialisation that its rounds started from; it is changed.
        people: some patients of one site; private.
        among: how many the site has; these, if not given.
        progress: called with the number of images that passed through the network: all of
            them in every round.
    """
    mechanism, rounds = parts_of_rounds(release, network, [people], progress)
    calibrated, blocks = mechanism.calibrated, mechanism.clip.blocks
    squares, longest = np.zeros(len(people)), 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.square(calibrated.lattice.step / calibrated.sigma)
        for parts in rounds:
            found = [
                np.bincount(blocks, np.square(part), len(calibrated.sigma))
                for rows in parts
                for part in rows
            ]
            squares += np.nansum(np.array(found) * worth, axis=1)
            longest = max(longest, float(np.max(found)) ** 0.5 * calibrated.lattice.step)
        if release.plan.count:
            squares += np.square(1 / np.float64(calibrated.count_sigma))
    paid = np.sqrt(squares)
    return CohortLosses(
        people.cohort,
        float(paid.max()),
        calibrated.guarantee.mu("membership"),
        release.plan.delta,
        float(np.median(paid)),
        longest,
        len(people),
        among or len(people),
        dict(zip(people.rows, paid.tolist(), strict=True)),
    )
