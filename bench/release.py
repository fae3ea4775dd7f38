"""The release: one pass over the queries, its memory, its folder, and reading it again."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench.memory import mapped, ten_times
from bench.ratio import Ratio, compare
from canal.data.arrays import Arrays
from canal.data.synthetic import generate
from canal.features.ensemble import Ensemble, Teacher
from canal.features.plan import Plan
from canal.features.queries import Queries
from canal.features.release import create
from canal.features.store import Release
from canal.learning.networks import BOTTLENECK, Tap, UNetArchitecture, weights_digest
from canal.privacy.units import Participants

ENCODER = ("conv_0", "down_1", "down_2", "down_3", "down_4")


def ratios() -> Iterator[Ratio]:
    """Every comparison of the release."""
    yield pass_against_bare_encoders()
    yield memory_against_a_tenth_of_the_queries()
    with tempfile.TemporaryDirectory() as name:
        release = _wide_release(Path(name), queries=1000)
        yield folder_against_its_integers(release)
        yield reading_against_fromfile(release)


def _ensemble(networks: list[nn.Module], layer: str) -> Ensemble:
    teachers = [
        Teacher(f"site-{number}", Tap(network, layer), weights_digest(network))
        for number, network in enumerate(networks)
    ]
    shared = copy.deepcopy(networks[0])
    with torch.no_grad():
        next(shared.parameters()).add_(0.01)
    return Ensemble(
        tuple(teachers), weights_digest(shared), Tap(shared, layer), trained_initialisation=False
    )


def _plan(ensemble: Ensemble, queries: Queries) -> Plan:
    channels, grid = ensemble.shape(queries.arrays.images.shape[1], queries.arrays.images.shape[2:])
    return Plan.preset(
        "paper",
        epsilon=8.0,
        delta=1e-5,
        participants=Participants(len(ensemble.teachers), len(queries.ids)),
        channels=channels,
        released=channels // 10,
        grid=grid,
        caps_source="public",
        importance_source="public",
    )


def pass_against_bare_encoders() -> Ratio:
    """From the statistics to the published folder, against nothing but the encoders.

    Statistics are there already, as after a crash: the pass is all that is left to do.
    """
    made = generate(256, size=(128, 128))
    queries = Queries.of(Arrays(made.ids, made.images, made.masks, "bench"))
    networks = [UNetArchitecture().build(seed).eval() for seed in range(3)]
    ensemble = _ensemble(networks, BOTTLENECK)
    plan = _plan(ensemble, queries)
    encoders = [nn.Sequential(*(getattr(net, name) for name in ENCODER)) for net in networks]
    batches = [batch.images for batch in queries.batches()]
    folder = Path(tempfile.mkdtemp())
    first = create(folder / "first", ensemble, queries, plan, seed=0)
    statistics = json.dumps(first.manifest.statistics)
    turn = iter(range(1000))

    def ours() -> Release:
        out = folder / f"release-{next(turn)}"
        private = out.with_name(out.name + ".private")
        private.mkdir()
        (private / "statistics.json").write_text(statistics)
        return create(out, ensemble, queries, plan, seed=0)

    def bare() -> None:
        with torch.no_grad():
            for images in batches:
                for encoder in encoders:
                    encoder(images)

    try:
        return compare(
            "release pass, K = 3, M = 10 %, 256 images of 128 px",
            ours,
            "the three encoders alone",
            bare,
            target=1 / 1.15,
            rounds=4,
        )
    finally:
        shutil.rmtree(folder)


def release_from_files(folder: Path) -> None:
    """A whole release of mapped images by small networks: what is kept in memory would show."""
    queries = Queries.of(mapped(folder))
    architecture = UNetArchitecture(base_channels=8)
    ensemble = _ensemble([architecture.build(seed) for seed in range(3)], BOTTLENECK)
    create(folder / "release", ensemble, queries, _plan(ensemble, queries), seed=0)


def memory_against_a_tenth_of_the_queries() -> Ratio:
    """Peak resident memory of a process that releases ten times as much."""
    return ten_times("a release", release_from_files, "N", 5000)


def _wide_release(folder: Path, queries: int) -> Release:
    """51 of 512 channels on a grid of 16 x 16, as the paper's, from networks of one layer."""

    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 512, 1), nn.ReLU(), nn.Conv2d(512, 1, 1)).eval()

    made = generate(queries, size=(16, 16))
    arrays = Arrays(made.ids, made.images[:, :1], made.masks, "bench")
    ensemble, asked = _ensemble([network(seed) for seed in range(3)], "1"), Queries.of(arrays)
    return create(folder / "release", ensemble, asked, _plan(ensemble, asked), seed=0)


def folder_against_its_integers(release: Release) -> Ratio:
    """Every file of the folder, against two bytes a value."""
    files = sum(path.stat().st_size for path in release.path.iterdir())
    values = len(release) * len(release.channels) * release.plan.positions
    return Ratio(
        f"release folder, N = {len(release)}, M = {len(release.channels)}, 16 x 16",
        "2 bytes a value",
        files / 2**20,
        2 * values / 2**20,
        target=1 / 1.05,
        unit="MiB",
    )


def reading_against_fromfile(release: Release) -> Ratio:
    """Check every shard's digest and map its integers; against reading the bytes and no more."""
    paths = [release.path / entry["file"] for entry in release.manifest.shards]

    def ours() -> int:
        return sum(len(stored) for stored in Release(release.path, release.manifest).shards())

    return compare(
        "all shards once, digests checked",
        ours,
        "numpy.fromfile, one shard after the other",
        lambda: sum(len(np.fromfile(path, dtype="<i2")) for path in paths),
        target=1 / 1.5,
        rounds=25,
    )
