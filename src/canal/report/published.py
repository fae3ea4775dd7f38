"""Releases of a run, of features or of adapters: what a page says of either, in the same words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from canal.errors import ReleaseError
from canal.features.plan import Plan
from canal.features.store import Release
from canal.gradients.plan import AdapterPlan
from canal.gradients.store import AdapterRelease
from canal.privacy.units import Unit
from canal.release.digits import finite_or_none, number
from canal.release.plan import ReleasePlan
from canal.release.store import Folder, open_release
from canal.release.verification import check_statement

ALLOCATIONS = {"canal": "CANAL", "uniform": "Uniform", "reverse": "Reverse", "none": "No noise"}
SPREADS = {"flat": "", "ellipsoid": " (ellipsoid)", "channels": " (by channel)"}


@dataclass(frozen=True, eq=False)
class Published:
    """A release of the run.

    Args:
        where: its folder, within the run.
        release: as its reader opens it.
    """

    where: str
    release: Folder

    @staticmethod
    def open(folder: Path, where: str) -> Published:
        """Open a folder, and refuse a statement that does not follow from its plan."""
        opened = open_release(folder)
        found = PUBLISHED.get(opened.kind, Published)(where, opened)
        found.calibrated  # noqa: B018  # derived here, so that nobody shows what is forged
        return found

    @property
    def name(self) -> str:
        """What was asked for, in a few words."""
        plan, kind = self.plan, self.release.kind.capitalize()
        if not self.noisy:
            return f"{kind}, no noise"
        whose = "replaced patient’s " if self.patient != plan.unit else ""
        return f"{kind}, {whose}ε = {number(plan.epsilon)}"

    @property
    def units(self) -> tuple[Unit, ...]:
        """What it promises anything to."""
        return self.plan.units

    @property
    def patient(self) -> Unit:
        """Of those, what stands for a patient in one number: who is added or removed."""
        return "membership" if "membership" in self.units else "patient"

    @cached_property
    def calibrated(self) -> Any:
        """The calibrated plan: derived again, not believed.

        Raises:
            ReleaseError: something does not follow.
        """
        try:
            return check_statement(self.release.manifest)
        except ReleaseError as error:
            raise ReleaseError(
                f"{self.release.path}: {error}; see `canal release verify`"
            ) from error

    @property
    def plan(self) -> ReleasePlan:
        """What was asked for."""
        return self.release.plan

    @cached_property
    def digest(self) -> str:
        """Of its manifest."""
        return self.release.manifest.digest

    @property
    def noisy(self) -> bool:
        """Whether any noise was added."""
        return self.plan.allocation != "none"

    @property
    def stamp(self) -> str:
        """The warning on what protects nobody; empty otherwise."""
        return str(self.release.statement["stamp"])

    def promise(self, unit: Unit) -> dict[str, Any]:
        """What the statement says to one of its units."""
        found: dict[str, Any] = self.release.statement["guarantee"][unit]
        return found

    def epsilon(self, unit: Unit) -> float | None:
        """What is promised to one of its units; None for nothing."""
        found = self.promise(unit)["epsilon"]
        return None if found is None else float(found)

    def epsilon_if_secret(self, unit: Unit) -> float | None:
        """What would be promised, had the noise of a research run come from a secret."""
        plan = self.plan
        found = self.calibrated.guarantee.epsilon(plan.delta, unit, plan.conversion)
        return finite_or_none(found)


@dataclass(frozen=True, eq=False)
class PublishedFeatures(Published):
    """Features of the recipient's queries; a patient is added, removed or replaced at one cost."""

    release: Release

    @property
    def plan(self) -> Plan:
        """What was asked for."""
        return self.release.plan

    @property
    def name(self) -> str:
        """The allocation, and whose epsilon was asked for."""
        plan = self.plan
        if not self.noisy:
            return ALLOCATIONS["none"]
        return f"{ALLOCATIONS[plan.allocation]}, {plan.unit}’s ε = {number(plan.epsilon)}"

    def evenly(self, releases: Iterable[Published]) -> PublishedFeatures | None:
        """The release that spread the same budget evenly; None beside one that did so itself."""
        if self.plan.allocation == "uniform":
            return None
        even = replace(self.plan, allocation="uniform")
        return next(
            (
                each
                for each in releases
                if isinstance(each, PublishedFeatures) and each.plan == even
            ),
            None,
        )


@dataclass(frozen=True, eq=False)
class PublishedAdapters(Published):
    """Parameters that patients taught; one who is added or removed pays less than one replaced."""

    release: AdapterRelease

    @property
    def plan(self) -> AdapterPlan:
        """What was asked for."""
        return self.release.plan

    @property
    def name(self) -> str:
        """That they are adapters, and a patient's epsilon that was asked for."""
        plan = self.plan
        if not self.noisy:
            return "CANAL adapters, no noise"
        whose = "replaced patient’s " if plan.unit == "patient" else ""
        return f"CANAL adapters{SPREADS[plan.allocation]}, {whose}ε = {number(plan.epsilon)}"


PUBLISHED: dict[str, type[Published]] = {
    Release.kind: PublishedFeatures,
    AdapterRelease.kind: PublishedAdapters,
}


def names(releases: Sequence[Published]) -> dict[str, str]:
    """What to call each release, by its folder; two that were asked for alike have it added."""
    twice = Counter(each.name for each in releases)
    return {
        each.where: f"{each.name} ({each.where})" if twice[each.name] > 1 else each.name
        for each in releases
    }
