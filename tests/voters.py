"""Invented patients for releases of statistics, and what is found wrong with such a release."""

import numpy as np

from canal.release.card import render
from canal.release.verification import verify
from canal.statistics.patients import Patients
from canal.statistics.plan import NO_LABEL, NO_LESION
from release.place import SITES
from release.place import Place as AnyPlace
from victim import Victim


def image(draw):
    """What one image shows."""
    area = [NO_LABEL, NO_LESION, float(draw.uniform(1e-4, 1))][draw.integers(3)]
    intensity, size = float(draw.uniform(0, 255)), int(draw.integers(40, 5000))
    return {"area": area, "intensity": intensity, "size": size}


def cohort(name, count):
    """Patients with one to three images each."""
    draw = np.random.default_rng([count, *name.encode()])
    images = {
        f"patient {number}": [image(draw) for _ in range(draw.integers(1, 4))]
        for number in range(count)
    }
    return Patients(name, images, tuple(frozenset({f"{name} {who}"}) for who in images))


def cohorts():
    return [cohort(name, 20 + 5 * number) for number, name in enumerate(SITES)]


class Place(AnyPlace):
    """A place whose ledger has a budget."""

    def __init__(self, folder):
        super().__init__(folder)
        self.ledger.set_budget(SITES, "membership", epsilon=8.0, delta=1e-5)


class Charged(Victim):
    """A release of statistics, and the ledger that was charged."""

    def __init__(self, place):
        super().__init__(place.out, render)
        self.ledger = place.ledger

    def failed(self, *, ledger=True):
        """What is found to be wrong."""
        found = verify(self.folder, self.ledger if ledger else None)
        assert not [check for check in found if "\n" in check.detail]
        return [check.what for check in found if check.passed is False]
