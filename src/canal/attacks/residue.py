r"""The residue: what is left of a folder when all that its teachers said is taken off. Its noise.

Whoever holds the teachers and the queries knows every released value before noise. What is left,
over the stated deviation, must be independent standard normals:
$$z = (r - f(x)) / \sigma \sim \mathcal N(0, 1).$$
No code is played here, and no secret is needed: it is the folder that is looked at, whatever made
it.

Other teachers or images than those that made the release shift z, and a shift only makes its sum of
squares larger. So noise that is too narrow is a fault whatever was given; of noise that is too
wide, off zero or alike in two places, the words say that it may be the wrong teachers.

Each check is wrong about a release that is right once in 1e9: exact distributions (chi-square,
normal, beta), Bonferroni over everything that one check looks at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from canal.attacks.traces import RARE, Check
from canal.attacks.view import (
    Floats,
    check_queries,
    check_teachers,
    noiseless_rows,
    released_rows,
    spreads,
    units,
)
from canal.release.ensemble import Ensemble
from canal.release.queries import Queries
from canal.release.statistics import Name, Statistics, sum_up
from canal.release.store import Release
from canal.release.verification import check_statement

# Below so many units of storage, rounding to them begins to shape the noise.
_UNITS = 32
# What is left of 1 - r², at most, when the noise of two rows is the same and was rounded twice.
_SAME = 1e-3
_BLOCK = 512
_OTHERWISE = "; the noise is not what was stated, or these are not the teachers that made it"


@dataclass(frozen=True)
class Residue:
    """The noise in a folder, in units of the stated deviation.

    Args:
        ids: of the queries, N.
        channels: that have enough noise to be looked at, M.
        features: `[N, M, H·W]`.
        statistics: of each that has noise, `[C]`.
    """

    ids: tuple[str, ...]
    channels: tuple[int, ...]
    features: Floats
    statistics: dict[Name, Floats]

    @classmethod
    def of(
        cls,
        release: Release,
        ensemble: Ensemble,
        queries: Queries,
        progress: Callable[[int], None] = lambda count: None,
    ) -> Residue:
        """Take off a release what its teachers said.

        Args:
            release: any, private or not.
            ensemble: the teachers that made it.
            queries: all that were asked.
            progress: called with the number of images that passed through a network, which is
                `view.passes` in all.
        """
        check_teachers(release, ensemble)
        check_queries(release, queries.ids)
        calibrated = check_statement(release.manifest)
        asked = Queries.of(queries.arrays.rows(release.ids))
        left = released_rows(release) - noiseless_rows(release, ensemble, asked.arrays, progress)
        shape = len(release), len(release.channels), release.plan.positions
        sigma = np.array(release.manifest.mechanism["sigma"])
        wide = np.flatnonzero(sigma >= _UNITS * units(release))
        names: list[Name] = [n for n, source in release.plan.sources.items() if source == "private"]
        teachers = [(teacher.cohort, teacher.tap) for teacher in ensemble.teachers]
        stated = Statistics.from_json(release.manifest.statistics)
        found: dict[Name, Floats] = {}
        for total in sum_up(calibrated, names, asked, teachers, progress=progress):
            made = stated.caps if total.name == "caps" else stated.importance
            if made.sigma >= _UNITS * total.lattice.step * total.bound / total.terms:
                clear = np.array(total.mean())
                found[total.name] = (np.array(made.values) - clear) / made.sigma
        return cls(
            release.ids,
            tuple(release.channels[wide].tolist()),
            (left / spreads(release)).reshape(shape)[:, wide],
            found,
        )

    def checks(self, alarm: float = RARE) -> list[Check]:
        """Everything that independent standard normals must be.

        Args:
            alarm: how often each of them may fail although all is well.
        """
        if not self.features.size and not self.statistics:
            none = "there is none, or too little to tell it from rounding"
            return [Check("noise in the folder", None, none, folder=True)]
        rows = self.features.reshape(len(self.ids), -1)
        channels = np.moveaxis(self.features, 1, 0).reshape(len(self.channels), -1)
        return [
            self._width(alarm),
            self._mean(alarm),
            _unlike("noise of two queries in the folder", rows, self.ids, alarm),
            _unlike("noise of two channels in the folder", channels, self._names, alarm),
        ]

    @property
    def _names(self) -> list[str]:
        return [f"channel {channel}" for channel in self.channels]

    @property
    def _parts(self) -> dict[str, Floats]:
        """Whatever has a width of its own: channels, all of them together, statistics."""
        parts = {name: self.features[:, row] for row, name in enumerate(self._names)}
        if parts:
            parts["features"] = self.features
        return parts | {str(name): values for name, values in self.statistics.items()}

    def _width(self, alarm: float) -> Check:
        """Sums of squares are chi-square, both tails."""
        from scipy.special import gammainc, gammaincc, gammaincinv  # type: ignore[import-untyped]

        what = "width of the noise in the folder"
        parts = self._parts
        each = alarm / (2 * len(parts))
        widths = {name: math.sqrt(float(np.square(z).mean())) for name, z in parts.items()}
        tails = {
            name: (float(gammainc(half, at)), float(gammaincc(half, at)))
            for name, z in parts.items()
            for half, at in [(z.size / 2, float(np.square(z).sum()) / 2)]
        }
        narrow, wide = (min(tails, key=lambda name: tails[name][side]) for side in (0, 1))
        if tails[narrow][0] < each:
            detail = f"{widths[narrow]:.4g} of the deviation that is stated, in {narrow}"
            return Check(what, False, detail, alarm, folder=True)
        if tails[wide][1] < each:
            detail = f"{widths[wide]:.4g} of the deviation that is stated, in {wide}{_OTHERWISE}"
            return Check(what, False, detail, alarm, folder=True)
        least, most = min(widths.values()), max(widths.values())
        half = min(z.size for z in parts.values()) / 2
        seen = math.sqrt(float(gammaincinv(half, each)) / half)
        detail = (
            f"{least:.4g} to {most:.4g} of the stated deviation in {len(parts)} places; below "
            f"{seen:.2g} it would have been found in any"
        )
        return Check(what, True, detail, alarm, folder=True)

    def _mean(self, alarm: float) -> Check:
        """Sums over the square root of their number are standard normal.

        Of every part, and of every value of a row over all queries.
        """
        from scipy.special import ndtr

        what = "mean of the noise in the folder"
        sums = {name: float(z.sum()) / math.sqrt(z.size) for name, z in self._parts.items()}
        if self.features.size:
            places = np.abs(self.features.sum(axis=0)) / math.sqrt(len(self.ids))
            row = int(places.max(axis=1).argmax())
            sums[f"a value of {self._names[row]}"] = float(places.max())
        tests = len(sums) + self.features[0].size
        furthest = max(sums, key=lambda name: abs(sums[name]))
        size = abs(sums[furthest])
        passed = 2 * float(ndtr(-size)) >= alarm / tests
        detail = f"at most {size:.3g} standard errors off zero, in {furthest}"
        if not passed:
            detail = f"{size:.3g} standard errors off zero, in {furthest}{_OTHERWISE}"
        return Check(what, passed, detail, alarm, folder=True)


def _unlike(what: str, vectors: Floats, names: Sequence[str], alarm: float) -> Check:
    r"""See that no two vectors of noise point the same way, or the opposite one.

    The cosine r of two independent ones in D dimensions has $1 - r^2 \sim$ Beta$((D-1)/2, 1/2)$.
    """
    from scipy.special import betainc

    count, width = vectors.shape
    pairs = count * (count - 1) // 2

    def chance(rest: float) -> float:
        return float(betainc((width - 1) / 2, 0.5, max(rest, 0.0)))

    if not pairs or width < 2 or chance(_SAME) > alarm / pairs:
        return Check(what, None, "too few values to tell", folder=True)
    cosine, (one, other) = _most_alike(vectors)
    passed = chance(1 - cosine**2) >= alarm / pairs
    detail = f"largest correlation of {pairs} pairs: {cosine:.3f}"
    if not passed:
        detail = f"{names[one]} and {names[other]} have a correlation of {cosine:.3f}" + (
            _OTHERWISE if 1 - cosine**2 > _SAME else ", so it was used twice"
        )
    return Check(what, passed, detail, alarm, folder=True)


def _most_alike(vectors: Floats) -> tuple[float, tuple[int, int]]:
    """The cosine of largest size of any two, and which they are; a vector of zeros has none."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1.0)
    best, where = 0.0, (0, 0)
    for start in range(0, len(unit), _BLOCK):
        cosines = unit[start : start + _BLOCK] @ unit.T
        # Each pair once: those behind the row itself.
        later = np.triu(cosines, start + 1)
        row, column = np.unravel_index(int(np.abs(later).argmax()), later.shape)
        if abs(later[row, column]) > abs(best):
            best, where = float(later[row, column]), (start + int(row), int(column))
    return best, where
