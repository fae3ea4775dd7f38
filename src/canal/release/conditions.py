"""What must hold before a release is made; a reader asks the same of a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from canal.errors import ReleaseError
from canal.features.plan import Plan
from canal.features.queries import Queries
from canal.privacy.randomness import SAMPLER, Secret
from canal.release.registry import AnyPlan

if TYPE_CHECKING:
    from canal.features.sites import Sites

NO_NOISE = "none"


def check_cohorts(cohorts: Sequence[str], count: int, who: str = "sites") -> None:
    """Refuse other cohorts than so many different ones.

    One that is named twice counts twice where noise comes in shares, and adds its share once: the
    others' would be too small.
    """
    different = len(set(cohorts))
    if not len(cohorts) == different == count:
        raise ReleaseError(
            f"the plan is for {count} {who} of different cohorts, but there are {different}"
        )


def check_plan(plan: Plan, cohorts: Sequence[str]) -> None:
    """Refuse a plan that has no release, or none with the guarantee that it names."""
    check_cohorts(cohorts, plan.participants.teachers, "teachers")
    if plan.releases != 1:
        raise ReleaseError("a release is made once; a plan with fresh noise has no folder")
    if plan.unit != "image":
        return
    if "public" in plan.sources.values():
        raise ReleaseError(
            "a plan whose unit is the image cannot read public caps or importance from the images "
            "that it protects; take --caps-source private and --importance-source private"
        )
    if plan.trained_initialisation:
        raise ReleaseError(
            "the shared initialisation was trained on the recipient's images and is public, so "
            "they cannot be protected; start from random weights, or take another --unit"
        )


def check_fit(plan: Plan, sites: Sites, queries: Queries) -> None:
    """Refuse teachers and queries that are not those of the plan."""
    people = plan.participants
    if people.queries != len(queries.ids):
        raise ReleaseError(
            f"the plan is for {people.queries} queries, but there are {len(queries.ids)}"
        )
    if people.images_per_person < queries.images_per_person:
        raise ReleaseError(
            f"the plan counts {people.images_per_person} images of one person, but one person has "
            f"{queries.images_per_person} among the queries; give --images-per-person"
        )
    if sites.trained_initialisation and not plan.trained_initialisation:
        raise ReleaseError(
            "the shared initialisation was, or may have been, trained on the queries; the plan "
            "must say so (trained_initialisation)"
        )
    if not queries.arrays.labelled.any():
        raise ReleaseError(
            "no query has a label, and importance is the gradient of a loss; label a few of them"
        )
    shape = sites.shape(queries.arrays.images.shape[1], queries.arrays.images.shape[2:])
    if shape != (plan.channels, plan.grid):
        raise ReleaseError(
            f"the plan is for {plan.channels} channels of {plan.grid}, the teachers have "
            f"{shape[0]} of {shape[1]}"
        )
    if "public" in plan.sources.values() and sites.shared is None:
        raise ReleaseError(
            "public caps or importance are read from the shared initialisation; give it with "
            "--init, or take --caps-source private and --importance-source private"
        )


def noise_source(plan: AnyPlan, *, private: bool) -> str:
    """What a statement says about where the noise came from."""
    if plan.allocation == "none":
        return NO_NOISE
    source = Secret(b"x" * 32, private=private).source
    return f"a share of every site, each: {source}" if plan.trust == "secure-sum" else source


def check_noise(plan: AnyPlan, source: str, sampler: str) -> bool:
    """Refuse noise of unknown origin; say whether what is known of it protects anybody."""
    known = {noise_source(plan, private=private): private for private in (False, True)}
    if source not in known or sampler != SAMPLER.decode():
        raise ReleaseError(f"noise of the source {source!r}, sampler {sampler!r}, is not ours")
    return known[source] and plan.allocation != "none"
