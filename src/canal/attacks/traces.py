"""Traces: what noise must not leave behind, in what the code draws and in a folder that is there.

Each check states how often it fails although all is well. None of them can prove that all is well;
each finds a mistake that was made before, by others: noise that is too narrow, that is used again,
that is no integer, or that comes of few seeds. Of the secrets that this code draws now, do two of
many agree, as birthdays do (any generator of few bits, of whatever kind), and is one of them our
own research seed? A release whose noise came from a seed has no secret, and is not asked for one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from canal.attacks.game import Floats, Game, Played
from canal.privacy.randomness import Secret
from canal.release.mechanism import Noise

RARE = 1e-9
# Numbers that are tried in place of a secret, and secrets that are drawn to see whether two agree.
SEEDS, DRAWN = 1 << 16, 1024


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

    No draw is needed for that. Part by part and block by block: what is a little too far in one
    of many does not show in a game about all of them.
    """
    what = f"distance of a{'n' if game.unit == 'image' else ''} {game.unit}"
    further = [each for each in game.reaches() if each.found > each.stated * (1 + 1e-12)]
    if further:
        worst = max(further, key=lambda reach: reach.found - reach.stated)
        detail = f"{worst.found:.4g} in {worst.what}, and {worst.stated:.4g} is stated"
        return Check(what, False, detail)
    return Check(what, True, "before noise, nothing is moved further than is stated")


def noise_is_wide(played: Played, what: str) -> Check:
    """See that all noise is as wide as was stated.

    The variance that was drawn is chi-square about the stated one, or more where it was rounded.
    """
    count = sum(ratios.size for ratios in played.spread.values())
    least = _least_chi_square(played.freedom, 1 / count) / played.freedom
    for name, ratios in played.spread.items():
        if ratios.min() < least:
            detail = f"{math.sqrt(ratios.min()):.4g} of the deviation that is stated, in {name}"
            return Check(what, False, detail, RARE)
    smallest = min(float(ratios.min()) for ratios in played.spread.values())
    detail = f"at least {math.sqrt(smallest):.4g} of the stated deviation in {count} places"
    return Check(what, True, detail, RARE)


def whole_numbers(game: Game, secret: Secret) -> Check:
    """See that noise is integers, added to integers, and the same whatever it is added to."""
    what = "whole numbers"
    if not game.noisy:
        return Check(what, None, "no noise was added")
    wrong = game.not_whole(secret)
    return Check(what, not wrong, wrong or "noise is integers, whatever it is added to")


def own_noise(game: Game, secret: Secret) -> Check:
    """See that no two rows have the same noise, published as the aggregator does it."""
    what = f"noise of its own for all {game.steps}"
    if not game.noisy:
        return Check(what, None, "no noise was added")
    if not game.repeated:
        return Check(what, None, "nothing is published again and again")
    rows = np.stack(list(game.silent(Noise(secret, (b"audit", b"rows")))))
    moved = game.moved[game.repeated]
    width = rows.shape[1]
    # Two draws of a normal that is rounded to units agree with this probability.
    agree = np.minimum(1.0, moved.unit / (2 * math.sqrt(math.pi) * moved.std))[:width]
    alarm = len(rows) ** 2 * float(np.exp(np.log(agree).sum()))
    if alarm > RARE:
        return Check(what, None, "too few values in a row to tell")
    repeated = len(rows) - len(np.unique(rows, axis=0))
    if repeated:
        detail = f"{repeated} of {len(rows)} rows repeat another's noise"
        return Check(what, False, detail, alarm)
    return Check(what, True, f"none of {len(rows)} rows repeats another's", alarm)


def unrelated(sample: Sequence[Floats]) -> Check:
    """See that noise of different values, in one publication and in others, is not correlated.

    The largest of all correlations, by Fisher's transformation.

    Args:
        sample: of each world, `[n, values]`: n draws of values that have noise of their own.
    """
    what = "noise of different values"
    largest, pairs = 0.0, 0
    for joined in sample:
        width = joined.std(axis=0)
        if not width.all():
            return Check(what, False, "some noise is the same in every row")
        standard = (joined - joined.mean(axis=0)) / width
        matrix = np.abs(standard.T @ standard) / len(joined)
        related = matrix[np.triu_indices(len(matrix), 1)]
        largest = max(largest, float(related.max(initial=0.0)))
        pairs += related.size
    if not pairs:
        return Check(what, None, "there is one value only")
    score = math.atanh(min(largest, 1 - 1e-12)) * math.sqrt(len(sample[0]) - 3)
    limit = -NormalDist().inv_cdf(RARE / pairs / 2)
    detail = f"largest correlation of {pairs}: {largest:.3f}"
    return Check(what, score <= limit, detail, RARE)


def _least_chi_square(freedom: float, share: float = 1.0) -> float:
    """What a chi-square variable falls below with probability 1e-9 (times share)."""
    from scipy.special import gammaincinv  # type: ignore[import-untyped]

    return 2 * float(gammaincinv(freedom / 2, RARE * share))


def repeated_secrets(folder: Path, draws: int = DRAWN) -> int:
    """How many of the secrets that the aggregator's code draws were drawn before.

    Guarantees:
        With secrets of 16 bits or fewer, none repeats with a probability below 4e-4; with 256
        bits, one does with a probability below 1e-70.
    """
    values = [Secret.create(folder / f"birthday-{number}").value for number in range(draws)]
    return len(values) - len(set(values))


def find_seed(
    game: Game,
    secret: Secret,
    *,
    seeds: int = SEEDS,
    progress: Callable[[int], None] = lambda count: None,
) -> int | None:
    """Make rows as the aggregator does, then look for a seed that gives the same; None if none.

    The adversary of this search knows every input and the code; all it lacks is the secret, and it
    tries `Secret.seeded` of every small number in its place.

    Guarantees:
        False-alarm rate below 1e-14: a wrong seed explains eight rows, of at least nine bits
        each, with a probability of at most 2^-72.

    Args:
        game: of the release; it makes a few rows.
        secret: as the aggregator draws it.
        seeds: how many to try.
        progress: called with the number of seeds tried.
    """
    context = (b"audit", b"seeds")
    rows = list(game.told(Noise(secret, context)))

    def explains(candidate: Secret) -> bool:
        again = game.told(Noise(candidate, context))
        return all(np.array_equal(*pair) for pair in zip(again, rows, strict=True))

    for seed in range(seeds):
        if explains(Secret.seeded(seed)):
            return seed
        progress(1)
    return None
