"""Rows of features with keys of their own, as the aggregator makes them: is their noise, too?

The teacher answers each second query the other way round: were noise used twice, it would cancel.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from canal.attacks.feature_game import FeatureGame
from canal.attacks.game import Floats, Progress, Scores, stored
from canal.attacks.hostile import feature_teacher, worlds
from canal.release.mechanism import Noise

if TYPE_CHECKING:
    from canal.privacy.randomness import Secret


def play_rows(
    game: FeatureGame,
    draws: int,
    secrets: tuple[Secret, Secret],
    folder: Path,
    progress: Progress = lambda count: None,
) -> tuple[Scores, tuple[Floats, Floats]]:
    """The game on pairs of queries, row by row with the keys of the aggregator.

    Args:
        game: for the unit `patient`.
        draws: pairs in each world.
        secrets: one for each world.
        folder: for the shard.
        progress: called with the number of rows made.

    Returns:
        The scores, and the stored rows of both worlds, `[2 · draws, M, places]`.
    """
    teacher = feature_teacher(game.plan)
    kinds = [False, True] * draws
    who = game.worst[0]
    weights = [game.weights(query) for query in (0, 1)]
    scores, kept = [], []
    pair = worlds("patient", teacher, game.plan, kinds, who=who)
    for world, secret in zip(pair, secrets, strict=True):
        made = []
        noise = Noise(secret, (b"audit", b"rows"))
        for row in world.rows(game.plan, game.mechanism, noise):
            made.append(row)
            progress(1)
        rows = stored(np.stack(made), folder).astype(np.float64)
        kept.append(rows)
        flat = rows.reshape(draws, 2, -1)
        scores.append(flat[:, 0] @ weights[0] + flat[:, 1] @ weights[1])
    return (scores[0], scores[1]), (kept[0], kept[1])
