"""Seeds: noise that comes from few seeds is no noise. Whoever tries them all takes it off.

Two looks at the secrets that this code draws now: do two of many agree, as birthdays do (any
generator of few bits, of whatever kind), and is one of them our own research seed? A release whose
noise came from a seed has no secret, and is not asked for one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from canal.attacks.hostile import feature_teacher, worlds
from canal.privacy.randomness import Secret
from canal.release.mechanism import Mechanism
from canal.release.noise import Noise
from canal.release.rows import make_rows, totals

SEEDS = 1 << 16
DRAWN = 1024
# Rows that a seed must explain, each of one value at least, each value of nine bits and more.
_ROWS = 8
_CONTEXT = (b"audit", b"seeds")


def repeated_secrets(folder: Path, draws: int = DRAWN) -> int:
    """How many of the secrets that the aggregator's code draws were drawn before.

    Guarantees:
        With secrets of 16 bits or fewer, none repeats with a probability below 4e-4; with 256
        bits, one does with a probability below 1e-70.
    """
    values = [Secret.create(folder / f"birthday-{number}").value for number in range(draws)]
    return len(values) - len(set(values))


def find_seed(
    mechanism: Mechanism,
    secret: Secret,
    *,
    seeds: int = SEEDS,
    progress: Callable[[int], None] = lambda count: None,
) -> int | None:
    """Make rows as the aggregator does, then look for a seed that gives the same; None if none.

    The adversary of this search knows every input and the code; all it lacks is the secret, and it
    tries `Secret.seeded` of every small number in its place.

    Guarantees:
        False-alarm rate below 1e-14: a wrong seed explains eight rows with a probability of at
        most 2^-72.

    Args:
        mechanism: of the release.
        secret: as the aggregator draws it.
        seeds: how many to try.
        progress: called with the number of seeds tried.
    """
    few = replace(
        mechanism,
        channels=mechanism.channels[:4],
        caps=mechanism.caps[:4],
        sigma=mechanism.sigma[:4],
        shift=mechanism.shift[:4],
    )
    plan = mechanism.calibrated.plan
    world, _ = worlds("patient", feature_teacher(plan), plan, [False] * _ROWS)
    summed = list(totals(few, world.ensemble, world.queries))
    rows = list(make_rows(few, summed, world.queries, Noise(secret, _CONTEXT)))

    def explains(candidate: Secret, row: int) -> bool:
        stream = Noise(candidate, _CONTEXT).of_query(world.queries, row)
        return np.array_equal(few.perturb(summed[row], stream), rows[row])

    for seed in range(seeds):
        candidate = Secret.seeded(seed)
        if all(explains(candidate, row) for row in range(_ROWS)):
            return seed
        progress(1)
    return None
