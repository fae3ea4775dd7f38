r"""The residue: what is left of a release when all that went into it is taken off. Its noise.

Whoever holds the teachers and the queries knows every released value before noise. What is left,
over the stated deviation, must be independent standard normals:
$$z = (r - f(x)) / \sigma \sim \mathcal N(0, 1).$$
What went in is computed by the paper's formula, by none of the code that makes a release
(`canal.attacks.view`). No code is played here, and no secret is needed: it is the folder that is
looked at, whatever made it. Simulations (`canal.attacks.simulation`) look at releases of invented
sites in the same way, of features and of gradients.

Other teachers or images than those that made the release shift z, and a shift only makes its sum of
squares larger. So noise that is too narrow is a fault whatever was given; of noise that is too
wide, off zero or alike in two places, the words say that it may be the wrong teachers.

Each check is wrong about a release that is right once in 1e9: exact distributions (chi-square,
normal, binomial, beta), Bonferroni over everything that one check looks at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from canal.attacks.traces import RARE, Check
from canal.attacks.view import (
    Floats,
    check_queries,
    check_teachers,
    noiseless_rows,
    noiseless_statistics,
    released_rows,
    spreads,
    units,
)
from canal.features.calibration import statistic_lattice
from canal.features.ensemble import Ensemble
from canal.features.queries import Queries
from canal.features.statistics import Statistics
from canal.features.store import Release
from canal.release.verification import check_statement

# Below so many units of storage, rounding to them begins to shape the noise.
_UNITS = 32
# What is left of 1 - r², at most, when the noise of two rows is the same and was rounded twice.
_SAME = 1e-3
_BLOCK = 512
# Of fewer values than these, no width can be told.
_FEW = 8
# A sampler that is cut at one of these has too few values beyond it.
_TAILS = (3.5, 4.0, 4.5)
_OTHERWISE = "; the noise is not what was stated, or these are not the teachers that made it"


@dataclass(frozen=True)
class Residue:
    """The noise in a folder, in units of the stated deviation.

    Args:
        rows: names of what has noise of its own: queries, or rounds.
        blocks: names of what has a sigma of its own: channels that have enough noise to be looked
            at.
        noise: `[rows, blocks, values]`.
        statistics: of each that has noise, `[values]`.
        words: what rows and blocks are called.
    """

    rows: tuple[str, ...]
    blocks: tuple[str, ...]
    noise: Floats
    statistics: dict[str, Floats] = field(default_factory=dict)
    words: tuple[str, str] = ("queries", "channels")

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
        stated = Statistics.from_json(release.manifest.statistics)
        found: dict[str, Floats] = {}
        for name, clear in noiseless_statistics(release, ensemble, asked.arrays, progress).items():
            made = stated.caps if name == "caps" else stated.importance
            plan, bound = release.plan, release.plan.bound if name == "caps" else 1.0
            terms = plan.participants.teachers * plan.participants.queries
            if made.sigma >= _UNITS * statistic_lattice(calibrated, name).step * bound / terms:
                found[name] = (np.array(made.values) - clear) / made.sigma
        return cls(
            release.ids,
            tuple(f"channel {channel}" for channel in release.channels[wide].tolist()),
            (left / spreads(release)).reshape(shape)[:, wide],
            found,
        )

    def checks(self, alarm: float = RARE) -> list[Check]:
        """Everything that independent standard normals must be.

        Args:
            alarm: how often each of them may fail although all is well.
        """
        if not self.noise.size and not self.statistics:
            none = "there is none, or too little to tell it from rounding"
            return [Check("noise in the folder", None, none, folder=True)]
        rows = self.noise.reshape(len(self.rows), -1)
        blocks = np.moveaxis(self.noise, 1, 0).reshape(len(self.blocks), -1)
        row, block = self.words
        made = [
            self._width(alarm),
            self._mean(alarm),
            self._tail(alarm),
            unlike(f"noise of two {row} in the folder", rows, self.rows, alarm),
            unlike(f"noise of two {block} in the folder", blocks, self.blocks, alarm),
        ]
        if len({values.size for values in self.statistics.values()}) == 1:
            names, values = list(self.statistics), np.stack(list(self.statistics.values()))
            made.append(unlike("noise of two statistics in the folder", values, names, alarm))
        return made

    @property
    def _parts(self) -> dict[str, Floats]:
        """Whatever has a width of its own: rows, blocks, all of them together, statistics."""
        parts = dict(self.statistics)
        if self.noise.size:
            parts |= {name: self.noise[row] for row, name in enumerate(self.rows)}
            parts |= {name: self.noise[:, row] for row, name in enumerate(self.blocks)}
            parts[f"all {self.words[0]}"] = self.noise
        return parts

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
        sizes = [z.size for z in parts.values()]
        half = min([size for size in sizes if size >= _FEW] or sizes) / 2
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
        tests = len(sums)
        if self.noise.size:
            places = np.abs(self.noise.sum(axis=0)) / math.sqrt(len(self.rows))
            row = int(places.max(axis=1).argmax())
            sums[f"a value of {self.blocks[row]}"] = float(places.max())
            tests += places.size
        furthest = max(sums, key=lambda name: abs(sums[name]))
        size = abs(sums[furthest])
        passed = 2 * float(ndtr(-size)) >= alarm / tests
        detail = f"at most {size:.3g} standard errors off zero, in {furthest}"
        if not passed:
            detail = f"{size:.3g} standard errors off zero, in {furthest}{_OTHERWISE}"
        return Check(what, passed, detail, alarm, folder=True)

    def _tail(self, alarm: float) -> Check:
        """The number of values beyond some deviations is binomial, both tails.

        Noise that is cut off names whoever is seen further out (Mironov 2012, of another cut).
        """
        from scipy.special import bdtr, bdtrc, ndtr

        what = "tails of the noise in the folder"
        values = np.concatenate([self.noise.ravel(), *map(np.ravel, self.statistics.values())])
        sizes, each = np.abs(values), alarm / (2 * len(_TAILS))
        seen = []
        for tail in _TAILS:
            found, chance = int((sizes > tail).sum()), 2 * float(ndtr(-tail))
            said = f"{found} of {values.size} values are beyond {tail:g} deviations, and "
            expected = f"{values.size * chance:.3g} are expected"
            if float(bdtr(found, values.size, chance)) < each:
                return Check(what, False, said + expected, alarm, folder=True)
            if found and float(bdtrc(found - 1, values.size, chance)) < each:
                return Check(what, False, said + expected + _OTHERWISE, alarm, folder=True)
            if (1 - chance) ** values.size < each:
                seen.append(f"{tail:g}")
        cut = f"a cut at {', '.join(seen)} deviations" if seen else "no cut, of so few values,"
        detail = f"{values.size} values, as many far out as expected; {cut} would have been found"
        return Check(what, True, detail, alarm, folder=True)


def unlike(what: str, vectors: Floats, names: Sequence[str], alarm: float) -> Check:
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
