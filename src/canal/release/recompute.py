"""Public inputs, computed again from the public network and the public images.

What is published without noise must not come from a patient. A reader who has the initialisation
and the recipient's images need not believe that: caps and importance are computed again with the
code that publishes them, from that network alone, and held against the manifest.

The same machine gives the same bits. Another one, or another number of threads, adds up floats in
another order; so numbers that are not equal may differ by a tolerance. Over networks of 32 to 128
pixels, trained or not, one and two threads, other kernels and 64-bit floats moved caps by at most
3e-5 of their root mean square and importance by 8e-4. Caps and importance of a network after a
single step on a hospital's images (Adam, 1e-4) were off by 7e-3 and 6e-2 at least, after fifty by
0.1 and 0.4. What is within the tolerance is not excluded: low digits may hold anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from canal.data.arrays import Arrays
from canal.errors import MismatchError, ReleaseError
from canal.features.mechanism import TeacherSum
from canal.features.queries import Queries
from canal.features.statistics import Name, Statistic, Statistics, refuse_broken, sum_up
from canal.features.store import FEATURES, Release
from canal.release.checks import Check, Checks, same
from canal.release.manifest import Manifest

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import nn

    from canal.learning.checkpoint import Checkpoint

# Of the root mean square of the recomputed vector.
TOLERANCE: dict[Name, float] = {"caps": 2e-4, "importance": 5e-3}


@dataclass(frozen=True)
class PublicInputs:
    """What a reader holds, and everybody may.

    Args:
        init: folder of the shared initialisation.
        arrays: the recipient's images, as large as the initialisation wants them.
        progress: called with the number of images that passed through the network.
    """

    init: Path
    arrays: Arrays
    progress: Callable[[int], None] = field(default=lambda count: None, compare=False)


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


def not_recomputed(manifest: Manifest) -> Check:
    """What is to be said where the reader gave no public inputs: what is taken on trust.

    Args:
        manifest: of a release of any kind.
    """
    sources = [
        entry.get("source") for entry in manifest.statistics.values() if isinstance(entry, dict)
    ]
    if manifest.kind == FEATURES and "public" not in sources:
        return Check("public inputs", None, "none; caps and importance were read from the teachers")
    what = "caps and importance" if manifest.kind == FEATURES else "subspace and clip norms"
    return Check(
        "public inputs",
        None,
        f"not recomputed, so that {what} come from public data is the makers' word; give the "
        "public initialisation and the recipient's images with --init and --queries",
    )


def initialisation(
    checks: Checks,
    manifest: Manifest,
    init: Path,
    more: Callable[[Manifest, nn.Module, Checkpoint], str],
) -> tuple[nn.Module, bool]:
    """Load an initialisation, and see that it is the one that a release names.

    Args:
        checks: to which the comparison is added.
        manifest: of the release.
        init: folder of the initialisation.
        more: refuses what else does not fit; says what does.

    Returns:
        The network, and whether it is the right one.
    """
    from canal.learning.teacher import is_random, load_initialisation

    network, start = load_initialisation(init)

    def compare() -> str:
        stated = str(manifest.participants["initialisation"])
        if start.initialisation != stated:
            raise MismatchError(
                f"{init} is not the initialisation that the release names: digest "
                f"{stated[:16]}… expected, {start.initialisation[:16]}… found; give that one",
                expected=stated,
                found=start.initialisation,
            )
        if not start.notes.get("trained", True) and not is_random(start):
            raise ReleaseError(
                f"{init} says that it was never trained, and its weights are not those of its "
                "seed: what is read from it may be patients'"
            )
        return f"digest {stated[:16]}…{more(manifest, network, start)}"

    return network, checks.look("initialisation", compare)


def compared(stated: ArrayLike, found: ArrayLike, tolerance: float, of: str) -> Check:
    """Hold numbers as published against numbers as computed again.

    Args:
        stated: in the manifest.
        found: from public inputs.
        tolerance: of the largest difference, over the root mean square of what was found.
        of: whose numbers they should be, in words.

    Raises:
        MismatchError: they differ by more.
    """
    theirs, ours = np.asarray(stated, np.float64), np.asarray(found, np.float64)
    if theirs.shape != ours.shape:
        raise MismatchError(
            f"{theirs.size} numbers are published, {ours.size} are those {of}",
            expected=ours.size,
            found=theirs.size,
        )
    size = float(np.sqrt(np.square(ours).mean()))
    difference = float(np.abs(theirs - ours).max()) / size if size else np.inf
    numbers = {"difference": difference, "tolerance": tolerance}
    if np.array_equal(theirs, ours):
        return seen(f"those {of}, to the last bit", numbers | {"difference": 0.0})
    if difference <= tolerance:
        return seen(
            f"those {of}, up to {difference:.1e} (another machine may differ by {tolerance:g})",
            numbers,
        )
    raise MismatchError(
        f"are not those {of}: they differ by up to {difference:.3g} of their root mean square, and "
        f"another machine by {tolerance:g} at most; they were computed from something else, which "
        "may be patients, and nobody was charged for that",
        **numbers,
    )


def seen(detail: str, numbers: dict[str, float]) -> Check:
    """Something that is as it should be, with numbers for programs; `Checks.look` names it."""
    return Check("", True, detail, dict(numbers))


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
