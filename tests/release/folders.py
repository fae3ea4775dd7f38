"""A release folder of any size, made without a network: its signal and its noise are given."""

import json

import numpy as np

from canal.features.mechanism import TeacherSum
from canal.features.plan import Plan
from canal.features.statistics import Statistic, Statistics
from canal.features.store import FEATURES, Release
from canal.privacy import Lattice, Secret
from canal.privacy.randomness import SAMPLER, Stream
from canal.privacy.units import Participants
from canal.release.card import render
from canal.release.manifest import CARD, MANIFEST, SOFTWARE, Manifest
from canal.release.record import About
from canal.release.shard import ROWS, shard_name, write_shard
from canal.release.statement import Facts, noise_source, stamp, state

COHORTS = ("north", "south", "west")
UNCHECKED = dict.fromkeys(("cohorts", "queries", "initialisation"), "not checked: nobody was there")


def write_folder(
    out,
    preset="honest",
    *,
    queries=40,
    grid=(2, 2),
    released=12,
    signal=1.0,
    seed=0,
    change=lambda noise: noise,
    statistics_noise=1.0,
    choices=None,
):
    """Publish features of this length, clipped as teachers' are, under noise that may be changed.

    Args:
        out: the folder.
        preset: of the plan.
        queries: N.
        grid: of a channel.
        released: M.
        signal: length of every channel of the mean over teachers; at most 1.
        seed: of signal and noise.
        change: of the noise, `[N, M, H·W]` in lattice steps; what it returns is published.
        statistics_noise: of caps and importance, over what is stated.
        choices: arguments of `Plan`.
    """
    fitting = {
        "epsilon": 8.0,
        "participants": Participants(len(COHORTS), queries),
        "channels": 2 * released,
        "released": released,
        "grid": grid,
    }
    plan = Plan.preset(preset, **(fitting | (choices or {})))
    rng = np.random.default_rng(seed)
    statistics = _statistics(plan, rng, statistics_noise)
    mechanism = TeacherSum.of(plan.calibrate(statistics.weights(plan)), statistics)
    shape = (queries, len(mechanism.channels), plan.positions)
    clear = _clear(shape, rng) * signal * mechanism.teachers
    clear = Lattice(mechanism.lattice.step).truncate(clear)
    noise = _noise(mechanism, shape, seed)
    stored = mechanism.noisy_sum.store(
        (clear + np.rint(change(noise)).astype(np.int64)).swapaxes(0, 1)
    )
    stored = stored.swapaxes(0, 1).reshape(*shape[:2], *grid)
    noise = {"source": noise_source(plan, private=False), "sampler": SAMPLER.decode()}
    facts = Facts.of(plan, noise, COHORTS)
    warning = stamp(plan.allocation, private=False)
    out.mkdir()
    shards = [
        write_shard(out / shard_name(number), stored[start : start + ROWS], warning).to_json()
        for number, start in enumerate(range(0, queries, ROWS))
    ]
    manifest = Manifest(
        kind=FEATURES,
        software=SOFTWARE,
        private=False,
        statement=json.loads(json.dumps(state(mechanism.calibrated, facts))),
        plan=plan.to_json(),
        statistics=statistics.to_json(),
        mechanism=mechanism.to_json(),
        participants={"cohorts": list(COHORTS), "initialisation": "0" * 64, "tap": "bottleneck"},
        noise=noise,
        ledger=None,
        record=About().to_record(UNCHECKED),
        shards=shards,
        rows={f"case-{row:04d}": [row // ROWS, row % ROWS] for row in range(queries)},
    )
    (out / MANIFEST).write_bytes(manifest.to_bytes())
    (out / CARD).write_text(render(manifest))
    return Release.open(out)


def _statistics(plan, rng, share):
    made = {}
    calibrated = plan.calibrate()
    for name, values in (
        ("caps", np.linspace(0.5, 3.0, plan.channels)),
        ("importance", np.geomspace(1, 100, plan.channels) / 500),
    ):
        sigma = 0.0
        if plan.sources[name] == "private":
            sigma = float(calibrated.sigma(name)[0]) * plan.excess
            values = values + share * sigma * rng.standard_normal(plan.channels)
        made[name] = Statistic(plan.sources[name], tuple(values.tolist()), sigma)
    return Statistics(**made)


def _clear(shape, rng):
    """Non-negative vectors of length one that all queries share in part; a third is dead."""
    values = rng.standard_normal(shape) + 2 * rng.standard_normal(shape[1:])
    values = np.maximum(values, 0.0)
    values[:, ::3] *= rng.random((shape[0], len(values[0, ::3]), 1)) > 0.5
    length = np.linalg.norm(values, axis=2, keepdims=True)
    return values / np.where(length > 0, length, 1.0)


def _noise(mechanism, shape, seed):
    stream = Stream(Secret.seeded(seed).key(b"folder"))
    zeros = np.zeros((shape[1], shape[0] * shape[2]), np.int64)
    plan = mechanism.calibrated.plan
    if plan.allocation == "none":
        return np.moveaxis(zeros.reshape(shape[1], shape[0], shape[2]), 0, 1)
    std = (mechanism.teachers * mechanism.noise)[:, None]
    noise = mechanism.lattice.perturb(
        zeros, std, stream, bound=float(mechanism.teachers), storage="int32"
    )
    return np.moveaxis(noise.reshape(shape[1], shape[0], shape[2]), 0, 1).astype(np.float64)
