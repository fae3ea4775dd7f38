"""Attacks: how long an audit takes at the paper's size, and LiRA once its shadows are trained."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.ratio import Ratio
from bench.release import _wide_release
from canal.attacks.audit import Auditor
from canal.attacks.lira import Shadows, likelihood_ratios

DRAWS = 100_000
BLOCK = 1 << 20
LIMIT_SECONDS = 60.0
PATIENTS, SHADOWS, VALUES, LIRA_SECONDS = 1000, 64, 100_000, 10.0


def ratios() -> Iterator[Ratio]:
    """Every comparison of the audit."""
    with tempfile.TemporaryDirectory() as name:
        auditor = Auditor(_wide_release(Path(name), queries=1000), draws=DRAWS)
        seconds = _seconds(auditor)
        values = sum(game.values for game in auditor.games) * DRAWS
    what = f"audit of one release, n = {DRAWS:.0e} in each world"
    yield Ratio(what, "a minute", seconds, LIMIT_SECONDS, target=1.0, unit="s")
    yield Ratio(what, "as many numpy normals", seconds, _plain(values), target=0.1, unit="s")
    what = f"LiRA of {PATIENTS} patients, {SHADOWS} shadows, {VALUES} cached values of each"
    yield Ratio(what, "ten seconds", _lira(), LIRA_SECONDS, target=1.0, unit="s")


def _lira() -> float:
    """Seconds to score every patient in every shadow's place."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((SHADOWS, VALUES))
    half = np.arange(PATIENTS) < PATIENTS // 2
    first = np.array([generator.permutation(half) for _ in range(SHADOWS // 2)])
    shadows = Shadows(features, np.concatenate([first, ~first]))
    start = time.perf_counter()
    gram = shadows.inner_products()
    for target in range(SHADOWS):
        seen = shadows.inner_products(features[target : target + 1])[0]
        out = (target, (target + SHADOWS // 2) % SHADOWS)
        likelihood_ratios(gram, shadows.members, seen, out)
    return time.perf_counter() - start


def _seconds(auditor: Auditor) -> float:
    start = time.perf_counter()
    found = auditor.run()
    if not found.holds:
        raise RuntimeError("\n".join(found.words()))
    return time.perf_counter() - start


def _plain(values: int) -> float:
    """Seconds for this many draws on one core, and nothing done with them."""
    generator = np.random.Generator(np.random.PCG64(0))
    start = time.perf_counter()
    for _ in range(values // BLOCK):
        generator.standard_normal(BLOCK)
    return time.perf_counter() - start
