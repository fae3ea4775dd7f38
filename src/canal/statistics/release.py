"""A statistics release: making it, reading it, and what is particular in checking it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canal.data.overlap import ABSENT, compare
from canal.privacy.ledger import Ledger
from canal.release.manifest import Manifest
from canal.release.mechanism import LocalFederation, noise_of
from canal.release.noise_check import Sums, Zeros
from canal.release.plan import check_cohorts
from canal.release.publish import check_protection, publish
from canal.release.record import About
from canal.release.store import Folder
from canal.release.verification import Derived
from canal.statistics.mechanism import StatisticsMechanism, StatisticsSpec, check_statistics
from canal.statistics.patients import Patients
from canal.statistics.plan import COUNT, STATISTICS, StatisticsPlan

# What other kinds of release have, and could share images with a cohort.
ABSENT_HERE = dict.fromkeys(("queries", "initialisation"), ABSENT)


def create(
    out: Path | str,
    sites: Sequence[Patients],
    plan: StatisticsPlan,
    *,
    ledger: Ledger | Path | str | None = None,
    seed: int | None = None,
    not_private: bool = False,
    about: About | None = None,
) -> StatisticsRelease:
    """Make a statistics release of sites in this process, or finish one that was stopped.

    Args:
        out: folder to publish it in.
        sites: their patients; private.
        plan: what is asked for.
        ledger: is charged before anything is summed; one that is there already.
        seed: of the noise of a research run, which protects nobody and is not charged.
        not_private: must be said to release without noise (allocation `none`).
        about: what its makers say about the release: purpose, contact.
    """
    if isinstance(ledger, Path | str):
        ledger = Ledger(ledger, must_exist=True)
    federation = LocalFederation(sites)
    check_cohorts(federation.cohorts, plan.sites)
    check_protection(plan, federation.cohorts, seed=seed, ledger=ledger, not_private=not_private)
    mechanism = StatisticsMechanism(StatisticsSpec(plan, federation.cohorts, noise_of(seed)))
    made = publish(out, mechanism, federation, ledger=ledger, about=about, overlap=overlap(sites))
    return StatisticsRelease.open(made)


def overlap(sites: Sequence[Patients]) -> dict[str, str]:
    """Refuse an image of two cohorts; say for the record which images were compared."""
    known = {
        site.cohort: None if site.people is None else frozenset[str]().union(*site.people)
        for site in sites
    }
    return compare(known, frozenset(), frozenset()) | ABSENT_HERE


@dataclass(frozen=True, eq=False)
class Estimate:
    """One statistic, as far as its noise lets see it.

    Args:
        bins: what each number is of.
        patients: how many; unbiased but for the truncation of votes, so they may be below 0.
        error: standard deviation of the noise on each.
    """

    bins: tuple[str, ...]
    patients: NDArray[np.float64]
    error: float

    @property
    def possible(self) -> NDArray[np.float64]:
        """The numbers of patients that are nearest and not below 0."""
        return np.maximum(self.patients, 0.0)

    @property
    def shares(self) -> NDArray[np.float64]:
        """The same as shares of all; equal ones where nothing is above 0."""
        total = float(self.possible.sum())
        if not total:
            return np.full(len(self.bins), 1 / len(self.bins))
        return self.possible / total


def estimates(manifest: Manifest) -> dict[str, Estimate]:
    """All statistics of a manifest, by name.

    Raises:
        ReleaseError: they are not those of its plan.
    """
    plan = StatisticsPlan.from_json(manifest.plan)
    check_statistics(plan, manifest.statistics)
    made = plan.calibrate().to_json()
    bins = {COUNT: (COUNT,)} | {name: each.bins for name, each in plan.histograms.items()}
    return {
        name: Estimate(bins[name], np.array(values) * made["step"], made["sigma"][name])
        for name, values in manifest.statistics.items()
    }


class StatisticsRelease(Folder):
    """Numbers of patients: in all, and in the bins of three histograms.

    Args:
        path: the folder.
        manifest: of the same, with all numbers in it.
    """

    kind = STATISTICS
    shards_are, rows_are = "shards", "statistics"
    plan: StatisticsPlan

    def read(self, manifest: Manifest) -> None:
        """See `Folder`."""
        self.plan = StatisticsPlan.from_json(manifest.plan)
        self.estimates = estimates(manifest)

    def __len__(self) -> int:
        return len(self.estimates)

    @property
    def content(self) -> dict[str, Any]:
        """See `Folder`."""
        return {
            name: {
                "bins": list(each.bins),
                "patients": each.patients.tolist(),
                "error": each.error,
            }
            for name, each in self.estimates.items()
        }

    @property
    def words(self) -> tuple[str, str]:
        """See `Folder`."""
        count, sites = self.estimates[COUNT], self.plan.sites
        return (
            f"{count.patients[0]:.1f} ± {count.error:.2g} patients",
            f" of {sites} site{'s' * (sites > 1)}, in histograms of "
            f"{', '.join(self.plan.histograms)}",
        )


def derive(manifest: Manifest) -> Derived:
    """The numbers of a statistics release, from its plan alone."""
    calibrated = StatisticsPlan.from_json(manifest.plan).calibrate()
    check_cohorts(list(map(str, manifest.participants["cohorts"])), calibrated.plan.sites)
    estimates(manifest)
    widths = np.array(list(calibrated.sigma.values())) / calibrated.lattice.step
    return Derived(calibrated, calibrated.to_json(), widths)


def noise_looks(release: StatisticsRelease) -> tuple[list[Sums | Zeros], dict[str, list[Sums]]]:
    """What is to be seen of the noise: in each statistic. An empty bin without noise is zero."""
    shares, step = release.plan.shares, float(release.manifest.mechanism["step"])
    energies: list[Sums] = []
    zeros: list[Sums | Zeros] = []
    for name, each in release.estimates.items():

        def named(_: tuple[int, ...], name: str = name) -> str:
            return f"the statistic {name}"

        unit, count = step / each.error, len(each.patients)
        energy = np.square(each.patients / each.error).sum(keepdims=True)
        energies.append(Sums(named, energy, count, shares * unit / 2))
        none = np.array([(each.patients == 0).sum()])
        zeros.append(Zeros(named, none, count, unit * math.sqrt(shares)))
    return [*energies, *zeros], {"a statistic": energies}
