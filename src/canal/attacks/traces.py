"""Traces: what noise must not leave behind, in what the code draws and in a folder that is there.

Each check states how often it cries wolf. None of them can prove that all is well; each finds a
mistake that was made before, by others.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from canal.attacks.game import FEATURES, Floats, Game, Played
from canal.attacks.view import released_rows, spreads
from canal.privacy.randomness import Secret, Stream
from canal.release.calibration import CalibratedPlan, statistic_lattice
from canal.release.mechanism import Mechanism
from canal.release.statistics import Name, Statistics
from canal.release.store import Release

RARE = 1e-9
_BLOCK = 512


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        what: it was.
        passed: None if it could not be looked at.
        detail: what was found, in words.
        false_alarm: how often it fails although all is well, at most.
        folder: whether it is about the folder itself, not about code that was played now.
    """

    what: str
    passed: bool | None
    detail: str
    false_alarm: float = 0.0
    folder: bool = False

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def distances(game: Game) -> Check:
    """See that the worlds of a game are no further apart before noise than was stated, anywhere.

    No draw is needed for that. Part by part and channel by channel: what is a little too far in one
    of many does not show in a game about all of them.
    """
    what = f"distance of a{'n' if game.unit == 'image' else ''} {game.unit}"
    mechanism = game.mechanism
    promise = {event.name: event for event in mechanism.calibrated.guarantee.events}
    stated = promise[FEATURES].exposure(game.unit).sensitivity
    reach = np.asarray(stated) * mechanism.teachers * (1 + 1e-12)
    for query in range(min(2, game.queries)):
        before, after = game.moved_features(query)
        apart = np.sqrt(np.square(after - before).sum(axis=1)) * mechanism.lattice.step
        if (apart > reach).any():
            channel = int(mechanism.channels[int((apart - reach).argmax())])
            detail = f"{apart.max():.4g} in channel {channel}, and {float(reach):.4g} is stated"
            return Check(what, False, detail)
    for moved in game.moved_statistics:
        limit = float(np.max(promise[moved.name].exposure(game.unit).sensitivity)) * (1 + 1e-12)
        if moved.reach > limit:
            detail = f"{moved.reach:.4g} of the {moved.name}, and {limit:.4g} is stated"
            return Check(what, False, detail)
    return Check(what, True, "before noise, nothing is moved further than is stated")


def noise_is_wide(played: Played, what: str) -> Check:
    """See that the noise of every channel and statistic is as wide as was stated.

    The variance that was drawn is chi-square about the stated one, or more where it was rounded to
    16 bits.
    """
    count = sum(len(ratios) for ratios in played.spread.values())
    least = _least_chi_square(played.freedom, 1 / count) / played.freedom
    for name, ratios in played.spread.items():
        if ratios.min() < least:
            detail = f"{name} have {math.sqrt(ratios.min()):.4g} of the deviation that is stated"
            return Check(what, False, detail, RARE)
    smallest = min(float(ratios.min()) for ratios in played.spread.values())
    detail = f"at least {math.sqrt(smallest):.4g} of the stated deviation in {count} places"
    return Check(what, True, detail, RARE)


def whole_numbers(game: Game, secret: Secret) -> Check:
    """See that noise is integers, added to integers, and the same whatever it is added to.

    A float sum of data and noise has low-order bits that depend on the data (Mironov 2012).
    """
    mechanism, calibrated = game.mechanism, game.mechanism.calibrated
    what = "whole numbers"
    if calibrated.plan.allocation == "none":
        return Check(what, None, "no noise was added")
    total = np.arange(64 * len(mechanism.channels)).reshape(len(mechanism.channels), 64)
    std = (mechanism.teachers * mechanism.sigma)[:, None]
    drawn = [
        mechanism.lattice.perturb(
            total * factor,
            std,
            Stream(secret.key(b"audit whole numbers")),
            bound=float(mechanism.teachers),
            storage="int32",
        )
        for factor in (0, 1)
    ]
    if not all(np.issubdtype(values.dtype, np.signedinteger) for values in drawn):
        return Check(what, False, f"noise on features is {drawn[0].dtype}, not integers")
    if not np.array_equal(drawn[1] - total, drawn[0]):
        return Check(what, False, "noise on features depends on what it is added to")
    for moved in game.moved_statistics:
        stream = Stream(secret.key(b"audit whole numbers", moved.name.encode()))
        found = off_lattice(moved.draw(0, 1000, stream), calibrated, moved.name)
        if found:
            return Check(what, False, f"{found:.1%} of the noisy {moved.name} are off the lattice")
    return Check(what, True, "noise is integers, whatever it is added to")


def on_lattice(release: Release, calibrated: CalibratedPlan) -> Check:
    """See that the published statistics are on the lattice; features are stored as integers."""
    statistics = Statistics.from_json(release.manifest.statistics)
    what = "published statistics"
    private = [name for name, source in calibrated.plan.sources.items() if source == "private"]
    if not private:
        return Check(what, None, "caps and importance are public", folder=True)
    for name in private:
        made = statistics.caps if name == "caps" else statistics.importance
        values = np.array(made.values)
        found = off_lattice(values, calibrated, name)
        if found:
            detail = f"{found:.1%} of the published {name} are off the lattice"
            return Check(what, False, detail, folder=True)
        # Signal can only add to the sum of squares.
        if made.sigma and np.square(values / made.sigma).sum() < _least_chi_square(values.size):
            detail = f"{name} vary less than their noise alone would"
            return Check(what, False, detail, RARE, folder=True)
    detail = "on the lattice, and vary as much as their noise"
    return Check(what, True, detail, 2 * RARE, folder=True)


def off_lattice(values: Floats, calibrated: CalibratedPlan, name: Name) -> float:
    """The share of a statistic's published values that are no whole number of lattice steps."""
    plan = calibrated.plan
    terms = plan.participants.teachers * plan.participants.queries
    bound = plan.bound if name == "caps" else 1.0
    steps = values / (statistic_lattice(calibrated, name).step * bound / terms)
    # The published double is the nearest to its product; 32 bits of 53 are left for it.
    return float((np.abs(steps - np.rint(steps)) > 1e-5).mean())


def own_noise(mechanism: Mechanism, stored: tuple[Floats, Floats]) -> Check:
    """See that no two rows that the aggregator made have the same noise.

    Args:
        mechanism: that made them.
        stored: rows of both worlds, of queries of two kinds in turns, `[n, M, places]`.
    """
    what = "noise of its own for every query"
    if mechanism.calibrated.plan.allocation == "none":
        return Check(what, None, "no noise was added")
    std = mechanism.teachers * mechanism.sigma / mechanism.lattice.step
    # Two draws of a normal that is rounded to units agree with this probability.
    agree = np.minimum(1.0, np.ldexp(1.0, mechanism.shift) / (2 * math.sqrt(math.pi) * std))
    count = len(stored[0])
    alarm = count**2 * float(np.exp(np.log(agree).sum() * stored[0].shape[2]))
    if alarm > RARE:
        return Check(what, None, "too few values in a row to tell")
    for rows in stored:
        for kind in (rows[::2], rows[1::2]):
            flat = kind.reshape(len(kind), -1).astype(np.int16)
            different = len(np.unique(flat, axis=0))
            if different < len(flat):
                detail = f"{len(flat) - different} of {len(flat)} rows repeat another's noise"
                return Check(what, False, detail, alarm)
    return Check(what, True, f"none of {2 * count} rows repeats another's", alarm)


def unrelated(mechanism: Mechanism, stored: tuple[Floats, Floats]) -> Check:
    """See that noise of different values, in one row and in two that follow, is not correlated.

    The largest of all correlations, by Fisher's transformation.

    Args:
        mechanism: that made them.
        stored: rows of both worlds, of queries of two kinds in turns, `[n, M, places]`.
    """
    what = "noise of different values"
    if mechanism.calibrated.plan.allocation == "none":
        return Check(what, None, "no noise was added")
    largest, pairs = 0.0, 0
    for rows in stored:
        joined = rows.reshape(len(rows) // 2, -1)
        width = joined.std(axis=0)
        if not width.all():
            return Check(what, False, "some noise is the same in every row")
        standard = (joined - joined.mean(axis=0)) / width
        matrix = np.abs(standard.T @ standard) / len(joined)
        related = matrix[np.triu_indices(len(matrix), 1)]
        largest = max(largest, float(related.max()))
        pairs += related.size
    score = math.atanh(min(largest, 1 - 1e-12)) * math.sqrt(len(stored[0]) // 2 - 3)
    limit = -NormalDist().inv_cdf(RARE / pairs / 2)
    detail = f"largest correlation of {pairs}: {largest:.3f}"
    return Check(what, score <= limit, detail, RARE)


def different_noise(release: Release) -> Check:
    r"""See that no two queries of the folder are closer than independent noise lets them be.

    $\lVert r_i - r_j \rVert^2 / 2\sigma^2$ of two rows with noise of their own is chi-square or,
    since signal can only add, more. Noise that was used for both would cancel.
    """
    what = "noise of different queries"
    if release.plan.allocation == "none":
        return Check(what, None, "no noise was added", folder=True)
    rows = released_rows(release) / spreads(release)
    # What all have in common says nothing, and would cost digits.
    rows -= rows.mean(axis=0)
    pairs = len(rows) * (len(rows) - 1) // 2
    least = _least_chi_square(rows.shape[1], 1 / max(pairs, 1))
    if not pairs or least <= 0:
        return Check(what, None, "too few values to tell", folder=True)
    squares = np.square(rows).sum(axis=1)
    closest = math.inf
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        apart = squares[part, None] + squares - 2 * (rows[part] @ rows.T)
        apart[np.arange(len(apart)), np.arange(start, start + len(apart))] = math.inf
        closest = min(closest, float(apart.min()) / 2)
    said = f"closest pair of {pairs}: {closest:.4g}, and at least {least:.4g} is expected"
    return Check(what, closest >= least, said, RARE, folder=True)


def _least_chi_square(freedom: int, share: float = 1.0) -> float:
    """What a chi-square variable falls below with probability 1e-9 (times share)."""
    quantile = NormalDist().inv_cdf(RARE * share)
    # Wilson and Hilferty's cube root: good to a fraction of a per cent in this tail.
    root = 1 - 2 / (9 * freedom) + quantile * math.sqrt(2 / (9 * freedom))
    return freedom * max(0.0, root) ** 3
