r"""What real patients paid for a release of adapters: every one of them a canary.

The network of every round follows from sums that were published, so whoever has a patient's images
computes again what that patient added to each of them, $n_{t,b}$ lattice steps $\gamma$ in block b
of round t. Along the rounds as they went, that part moves the sums as far as one Gaussian with
$$\mu = \Bigl(\sum_t \sum_b \lVert \gamma n_{t,b} \rVert^2 / \sigma_b^2
    + [\text{patients are counted}] / \sigma_N^2\Bigr)^{1/2}.$$
tells apart (the accounting of individuals, Feldman and Zrnic 2021). No sampling is needed. It is
what *this* patient paid on *this* way, which other noise would have led elsewhere; the guarantee
is for the worst patient and any way. These numbers have no noise in them: they are for the
hospital, not for the public (`canal.attacks.individual`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.attacks.canary import Canary
from canal.attacks.outcome import exact_epsilon
from canal.attacks.view import Floats
from canal.errors import InvalidValueError
from canal.gradients.gradients import Gradients
from canal.gradients.patients import CHUNK, Patients
from canal.release.digits import finite_or_none, number, short

if TYPE_CHECKING:
    from torch import nn

    from canal.data.arrays import Arrays
    from canal.gradients.mechanism import PatientSum
    from canal.gradients.store import AdapterRelease


@dataclass(frozen=True)
class Paid(Canary):
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


def chosen(
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


def measure(
    release: AdapterRelease,
    network: nn.Module,
    people: Patients,
    among: int | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> Paid:
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
    return Paid(
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
