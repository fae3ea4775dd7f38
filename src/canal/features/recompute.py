"""Caps and importance of a feature release, computed again where they are public.

Over networks of 32 to 128 pixels, trained or not, one and two threads, other kernels and 64-bit
floats moved caps by at most 3e-5 of their root mean square and importance by 8e-4. Caps and
importance of a network after a single step on a hospital's images (Adam, 1e-4) were off by 7e-3 and
6e-2 at least, after fifty by 0.1 and 0.4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from canal.data.arrays import Arrays
from canal.errors import MismatchError
from canal.features.mechanism import TeacherSum
from canal.features.queries import Queries
from canal.features.statistics import Name, Statistic, Statistics, refuse_broken, sum_up
from canal.features.store import Release
from canal.release.checks import Check, Checks, same
from canal.release.manifest import Manifest
from canal.release.recompute import (
    PublicInputs,
    compared,
    initialisation,
    seen,
    word_of_makers,
)

if TYPE_CHECKING:
    from torch import nn

    from canal.learning.checkpoint import Checkpoint

# Of the root mean square of the recomputed vector.
TOLERANCE: dict[Name, float] = {"caps": 2e-4, "importance": 5e-3}


def not_recomputed(manifest: Manifest) -> str:
    """What is taken on trust without public inputs."""
    made = manifest.statistics
    entries = made.values() if isinstance(made, dict) else ()  # whatever a forger put there
    if "public" not in [entry.get("source") for entry in entries if isinstance(entry, dict)]:
        return "none; caps and importance were read from the teachers"
    return word_of_makers("caps and importance")


def recompute(checks: Checks, release: Release, known: PublicInputs) -> None:
    """Compute caps and importance again, where they are public, and what follows from them.

    Args:
        checks: to which every comparison is added.
        release: whose statement holds.
        known: initialisation and images.
    """
    plan, stated = release.plan, Statistics.from_json(release.manifest.statistics)
    found: dict[Name, Statistic] = {"caps": stated.caps, "importance": stated.importance}
    public: list[Name] = [name for name, source in plan.sources.items() if source == "public"]
    chosen: list[Queries] = []

    def queries() -> str:
        chosen.append(_queries(release, known.arrays))
        most = chosen[0].images_per_person
        return f"all {len(release)} are in the folder, with at most {most} of one person"

    def again(name: Name) -> Check:
        if made[name] is found[name]:
            found.update(_read(release, network, chosen[0], public, known.progress))
        ours = found[name].values
        return compared(made[name].values, ours, TOLERANCE[name], "of the public initialisation")

    made = dict(found)
    network, right = initialisation(checks, release.manifest, known.init, _layer)
    there = checks.look("queries", queries)
    why = "these are not the images of the release" if right else "this is another initialisation"
    holds = True
    for name in made:
        if name not in public:
            checks.skip(name, _paid(made[name]))
        elif right and there:
            holds &= checks.look(name, partial(again, name))
        else:
            checks.skip(name, f"not recomputed; {why}")
    if not public:
        checks.skip("allocation", "follows from caps and importance as published: `statement`")
    elif right and there:
        checks.look("allocation", lambda: _allocation(release, Statistics(**found), holds=holds))
    else:
        checks.skip("allocation", f"not recomputed; {why}")


def _layer(manifest: Manifest, _: nn.Module, start: Checkpoint) -> str:
    """The layer that is read, and whether the images are those that it was trained on."""
    layer = str(manifest.participants["tap"])
    if layer != start.tap:
        raise MismatchError(
            f"the release reads layer {layer!r}, and the initialisation names {start.tap!r}",
            expected=start.tap,
            found=layer,
        )
    if start.notes.get("trained", True) and not manifest.plan["trained_initialisation"]:
        raise MismatchError(
            "the initialisation was trained on the recipient's images, and the plan says that it "
            "was not: what is promised to an image does not hold"
        )
    return f", layer {layer}"


def _queries(release: Release, arrays: Arrays) -> Queries:
    """The images that the release is about, in its order."""
    missing = sorted(set(release.ids) - set(arrays.ids))
    if missing:
        raise MismatchError(
            f"{len(missing)} of the {len(release)} queries of the release are not in this folder "
            f"({missing[0]} …); give the images that it is about",
            missing=missing,
        )
    # In memory; a copy of all is not made where the folder holds just them.
    chosen = arrays if release.ids == arrays.ids else arrays.rows(release.ids)
    most = max(Counter(chosen.patients.values()).values())
    counted = release.plan.participants.images_per_person
    if most > counted:
        raise MismatchError(
            f"one person is on {most} of the images, and the plan counts {counted}: what is "
            "promised to such a person is too much",
            expected=counted,
            found=most,
        )
    return Queries(chosen, (), most)


def _read(
    release: Release,
    network: nn.Module,
    queries: Queries,
    public: list[Name],
    progress: Callable[[int], None],
) -> dict[Name, Statistic]:
    from canal.learning.networks import Tap

    tap = Tap(network, str(release.manifest.participants["tap"]))
    sums = sum_up(
        *(release.plan.calibrate(), public, queries, [("initialisation", tap)]),
        check=refuse_broken,
        progress=progress,
    )
    return {total.name: total.published("public") for total in sums}


def _paid(made: Statistic) -> str:
    """Why nobody can compute a statistic again that is private."""
    noise = f"with noise of {made.sigma:.3g} that was priced" if made.sigma else "without noise"
    return f"cannot be recomputed: read from the teachers, {noise}; for `noise` and `ledger` to see"


def _allocation(release: Release, found: Statistics, *, holds: bool) -> Check | str:
    """The channels that are published, and their noise, from the recomputed statistics."""
    plan = release.plan
    again = TeacherSum.of(plan.calibrate(found.weights(plan)), found).to_json()
    theirs, ours = (
        dict(zip(made["channels"], made["sigma"], strict=True))
        for made in (release.manifest.mechanism, again)
    )
    if same(release.manifest.mechanism, again):
        return f"{len(ours)} channels and their noise follow from what was recomputed"
    other = len(ours.keys() - theirs.keys())
    apart = max((abs(theirs[c] / ours[c] - 1) for c in ours.keys() & theirs.keys()), default=0.0)
    numbers = {"other_channels": other, "difference": apart}
    said = (
        f"{other} of {len(ours)} channels are others, and the noise of the same ones differs by up "
        f"to {100 * apart:.2g} %"
    )
    if holds:  # the manifest's own follow from its statistics, and those are within the tolerance
        return seen(f"follows up to the last bits of caps and importance: {said}", numbers)
    raise MismatchError(f"does not follow from public inputs: {said}", **numbers)
