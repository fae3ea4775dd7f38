"""Seeds: noise that comes from few seeds is no noise. Whoever tries them all takes it off.

Two looks at the secrets that this code draws now: do two of many agree, as birthdays do (any
generator of few bits, of whatever kind), and is one of them our own research seed? A release whose
noise came from a seed has no secret, and is not asked for one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from canal.attacks.game import Game
from canal.privacy.randomness import Secret
from canal.release.mechanism import Noise

SEEDS = 1 << 16
DRAWN = 1024
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
        False-alarm rate below 1e-14: a wrong seed explains eight rows with a probability of at
        most 2^-72.

    Args:
        game: of the release; it makes eight rows.
        secret: as the aggregator draws it.
        seeds: how many to try.
        progress: called with the number of seeds tried.
    """
    rows = list(game.rows(Noise(secret, _CONTEXT)))

    def explains(candidate: Secret) -> bool:
        again = game.rows(Noise(candidate, _CONTEXT))
        return all(np.array_equal(*pair) for pair in zip(again, rows, strict=True))

    for seed in range(seeds):
        if explains(Secret.seeded(seed)):
            return seed
        progress(1)
    return None
