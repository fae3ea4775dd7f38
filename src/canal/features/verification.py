"""What is particular in checking a feature release (`canal.release.verification`).

The numbers of a manifest are derived again from its plan and the published statistics. The noise is
looked at by query, by channel, and by channel of a query. Caps and importance are computed again
where they are public.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from canal.data.arrays import Arrays
from canal.errors import MismatchError
from canal.features.mechanism import TeacherSum
from canal.features.plan import Plan, check_plan
from canal.features.queries import Queries
from canal.features.statistics import Name, Statistic, Statistics, Sum, refuse_broken, sum_up
from canal.features.store import Release
from canal.release.checks import Check, Checks, same
from canal.release.manifest import Manifest
from canal.release.noise_check import (
    COMPARED,
    Alike,
    Floats,
    Sums,
    Zeros,
    some,
    without_direction,
)
from canal.release.recompute import (
    PublicInputs,
    compared,
    initialisation,
    seen,
    word_of_makers,
)
from canal.release.verification import Derived, check_statement

if TYPE_CHECKING:
    from torch import nn

    from canal.learning.checkpoint import Checkpoint


# Queries that are in memory at once.
_ROWS = 32


def derive(manifest: Manifest) -> Derived:
    """The numbers of a feature release, from its plan and its published statistics."""
    plan = Plan.from_json(manifest.plan)
    check_plan(plan, tuple(str(name) for name in manifest.participants["cohorts"]))
    statistics = Statistics.from_json(manifest.statistics)
    calibrated = plan.calibrate(statistics.weights(plan))
    statistics.check(calibrated)
    mechanism = TeacherSum.of(calibrated, statistics)
    widths = mechanism.teachers * mechanism.sigma / mechanism.lattice.step
    return Derived(calibrated, mechanism.to_json(), widths)


def noise_looks(release: Release) -> tuple[list[Sums | Zeros], dict[str, list[Sums]]]:
    """What is to be seen of the noise in a folder: all looks, and those by what they see.

    Args:
        release: whose noise is not none; one shard at a time is held in memory.
    """
    plan, ids, channels = release.plan, release.ids, release.channels.tolist()
    order = _order(release)
    worth, sigma, slack = _worth(release)
    places, count = plan.positions, len(ids)
    shape = (count, len(channels))
    total, squares = np.zeros((2, len(channels), places))
    for values in _standard(release):
        total += values.sum(axis=0)
        squares += np.square(values).sum(axis=0)
    energy, apart = np.zeros((2, *shape))
    zeros, start = np.zeros(shape, np.int64), 0
    for values in _standard(release):
        rows = slice(start, start + len(values))
        energy[rows] = np.square(values).sum(axis=2)
        apart[rows] = without_direction(values, total - values)
        zeros[rows] = (values == 0).sum(axis=2)
        start += len(values)
    # Noise that comes in shares is rounded once for each; the narrowest density is one share's.
    interval = (worth + _step(release)) / sigma * math.sqrt(plan.shares)

    def query(at: tuple[int, ...]) -> str:
        return f"query {order[at[0]]!r}"

    def channel(at: tuple[int, ...]) -> str:
        return f"channel {channels[at[0]]}"

    def both(at: tuple[int, ...]) -> str:
        return f"channel {channels[at[1]]} of query {order[at[0]]!r}"

    def place(at: tuple[int, ...]) -> str:
        return f"value {at[1]} of channel {channels[at[0]]} over all queries"

    # A mean of clipped channels has length one at most, in units of its cap.
    far, size = 1 / sigma, len(channels) * places
    queries = [Sums(query, energy.sum(axis=1), size, slack.max(), math.sqrt(np.square(far).sum()))]
    of_both = [Sums(both, energy, places, slack, far)]
    over_all = [
        Sums(channel, squares.sum(axis=1), count * places, slack, math.sqrt(count) * far),
    ]
    looks: list[Sums | Zeros] = [
        Sums(place, squares, count, slack[:, None], math.sqrt(count) * far[:, None]),
        Zeros(query, zeros.sum(axis=1), size, interval.max()),
        Zeros(both, zeros, places, interval),
    ]
    if count > 1:
        rest = squares - np.square(total) / count
        over_all.append(Sums(channel, rest.sum(axis=1), (count - 1) * places, slack))
        looks.append(Sums(place, rest, count - 1, slack[:, None]))
    if count > 1 and places > 1:
        queries.append(Sums(query, apart.sum(axis=1), len(channels) * (places - 1), slack.max()))
        of_both.append(Sums(both, apart, places - 1, slack))
    stated = {"a query": queries, "a channel": over_all, "a channel of a query": of_both}
    return [*queries, *over_all, *of_both, *looks, *_statistic_looks(release)], stated


def _statistic_looks(release: Release) -> list[Sums | Zeros]:
    """What is to be seen of the noise on caps and importance, where they have any."""
    calibrated = check_statement(release.manifest)
    made, plan = Statistics.from_json(release.manifest.statistics), release.plan
    looks: list[Sums | Zeros] = []
    for name, statistic in (("caps", made.caps), ("importance", made.importance)):
        if not statistic.sigma:
            continue
        values = np.array(statistic.values) / statistic.sigma
        total = Sum(calibrated, "caps" if name == "caps" else "importance")
        unit = total.lattice.step * total.bound / total.terms / statistic.sigma
        every = np.square(values).sum(keepdims=True)
        reach = total.bound / statistic.sigma

        def named(_: tuple[int, ...], name: str = name) -> str:
            return f"the statistic {name}"

        looks.append(Sums(named, every, len(values), plan.shares * unit / 2, reach))
        zeros = np.array([(values == 0).sum()])
        looks.append(Zeros(named, zeros, len(values), unit * math.sqrt(plan.shares)))
    return looks


def alike(release: Release) -> list[Alike]:
    """What should have noise of its own: queries, and channels."""
    order, channels = _order(release), release.channels.tolist()
    every = max(1, len(order) * release.plan.positions // COMPARED)
    rows, across = [], []
    for values in _standard(release):
        flat = values.reshape(len(values), -1)
        rows.append(flat[:, some(flat.shape[1])])
        across.append(np.moveaxis(values, 1, 0).reshape(len(channels), -1)[:, ::every])
    return [
        Alike("queries", np.concatenate(rows), lambda row: f"query {order[row]!r}"),
        Alike("channels", np.concatenate(across, axis=1), lambda row: f"channel {channels[row]}"),
    ]


def _order(release: Release) -> list[str]:
    """Ids in the order of the rows in the shards."""
    where = release.manifest.rows
    return sorted(release.ids, key=lambda name: (where[name][0], where[name][1]))


def _step(release: Release) -> float:
    """One step of the lattice, as a part of the mean over teachers."""
    return float(release.manifest.mechanism["step"]) / release.plan.participants.teachers


def _worth(release: Release) -> tuple[Floats, Floats, Floats]:
    """Of every channel: a stored unit, sigma, and what rounding moves a value by, over sigma."""
    numbers = release.manifest.mechanism
    worth = np.ldexp(_step(release), np.array(numbers["shift"]))
    sigma = np.array(numbers["sigma"], dtype=np.float64)
    # To storage once, to the lattice for every share.
    return worth, sigma, (worth + release.plan.shares * _step(release)) / (2 * sigma)


def _standard(release: Release) -> Iterator[Floats]:
    """Published values over their deviation, `[rows, M, H·W]`, in the order of the shards."""
    worth, sigma, _ = _worth(release)
    for stored in release.shards():
        for start in range(0, len(stored), _ROWS):
            rows = stored[start : start + _ROWS]
            yield rows.reshape(*rows.shape[:2], -1) * (worth / sigma)[:, None]


# Of the root mean square of the recomputed vector. Over networks of 32 to 128 pixels, trained or
# not, one and two threads, other kernels and 64-bit floats moved caps by at most 3e-5 of it and
# importance by 8e-4. Those of a network after a single step on a hospital's images (Adam, 1e-4)
# were off by 7e-3 and 6e-2 at least, after fifty by 0.1 and 0.4.
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
