"""What the tests of the attacks share: mechanisms without data, and releases of small networks."""

import copy
import dataclasses

import numpy as np
import pytest

from canal.data.arrays import Arrays
from canal.features.plan import Plan
from canal.gradients.subspace import Basis, Factors
from canal.privacy import Ledger, Participants, Secret

SITES = ("north", "south", "west")
CHANNELS, GRID = 12, (4, 4)
PRIVATE = {"caps_source": "private", "importance_source": "private"}


@pytest.fixture(scope="session")
def make_features():
    """The worst case of features whose statistics nobody had to compute."""
    from canal.features.mechanism import TeacherSum
    from canal.features.statistics import Statistic, Statistics
    from canal.features.worst_case import FeatureWorstCase

    def make(preset="honest", *, people=None, **choices):
        fitting = {
            "epsilon": 8.0,
            "delta": 1e-5,
            "participants": Participants(*(people or (3, 4))),
            "channels": 6,
            "released": 4,
            "grid": (2, 2),
        }
        plan = Plan.preset(preset, **(fitting | choices))
        caps = Statistic("public", tuple(np.linspace(0.5, 3.0, plan.channels)))
        importance = Statistic("public", tuple(np.geomspace(1, 100, plan.channels)))
        statistics = Statistics(caps, importance)
        calibrated = plan.calibrate(statistics.weights(plan))
        return FeatureWorstCase(TeacherSum.of(calibrated, statistics))

    return make


@pytest.fixture(scope="session")
def make_rounds():
    """The worst case of rounds whose bounds nobody had to measure: six channels of two."""
    import torch

    from canal.gradients.mechanism import PatientSum
    from canal.gradients.plan import AdapterPlan
    from canal.gradients.public import Public
    from canal.gradients.worst_case import GradientWorstCase

    def make(allocation="flat", *, channels=6, **choices):
        blocks = channels if allocation == "channels" else 1
        fitting = {
            "epsilon": 8.0,
            "patients": 20,
            "parameters": 2 * channels,
            "blocks": blocks,
            "sites": 3,
            "rounds": 4,
            "allocation": allocation,
        }
        plan = AdapterPlan(**(fitting | choices))
        where, basis = np.repeat(np.arange(channels), 2), None
        if plan.directions:
            generator = torch.Generator().manual_seed(0)
            drawn = torch.randn(plan.parameters, plan.directions, generator=generator)
            turned = Factors(torch.eye(1), torch.linalg.qr(drawn).Q.contiguous())
            kept = torch.arange(plan.directions)
            where, basis = np.arange(channels), Basis((turned,), kept, torch.ones(len(kept)))
        scales = (
            np.geomspace(0.5, 2.0, channels) if allocation == "ellipsoid" else np.ones(channels)
        )
        bounds, weights = np.linspace(0.5, 3.0, blocks), np.geomspace(1.0, 100.0, blocks)
        public = Public(where, scales, bounds, weights, 1.5, basis)
        return GradientWorstCase(PatientSum.of(plan.calibrate(weights), public))

    return make


@pytest.fixture(scope="session")
def secrets():
    """Secrets by name, the same in every run."""

    def secret(part, seed=0):
        return Secret(Secret.seeded(10**6 + seed).key(part.encode()), private=True)

    return secret


@pytest.fixture(scope="session")
def networks():
    """The initialisation and one network a site: a single layer, moved as training would."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    first = nn.Conv2d(1, CHANNELS, 3, padding=1)
    init = nn.Sequential(first, nn.ReLU(), nn.Conv2d(CHANNELS, 1, 1)).eval()
    made = {"init": init}
    for site in SITES:
        network = copy.deepcopy(init)
        with torch.no_grad():
            for weight in network.parameters():
                weight += 0.05 * torch.randn(weight.shape)
        made[site] = network
    return made


@pytest.fixture(scope="session")
def ensemble(networks):
    from canal.features.ensemble import Ensemble, Teacher
    from canal.learning.networks import Tap, weights_digest

    return Ensemble(
        tuple(
            Teacher(site, Tap(networks[site], "1"), weights_digest(networks[site]))
            for site in SITES
        ),
        weights_digest(networks["init"]),
        Tap(networks["init"], "1"),
        trained_initialisation=False,
    )


@pytest.fixture(scope="session")
def make_arrays():
    """Smooth grey images of the size of the grid."""

    def make(count=24, seed=0, prefix="case"):
        rng = np.random.default_rng(seed)
        images = rng.integers(0, 256, (count, 1, *GRID), dtype=np.uint8)
        masks = (images > 128).astype(np.uint8)
        return Arrays(tuple(f"{prefix}-{row}" for row in range(count)), images, masks, prefix)

    return make


@pytest.fixture(scope="session")
def make_release(tmp_path_factory, ensemble, make_arrays):
    """A release of `ensemble`; charged to a ledger, unless there is a seed or no noise."""
    from canal.features.queries import Queries
    from canal.features.release import create
    from canal.release.charges import payers

    def make(preset="honest", *, arrays=None, seed=None, by=ensemble, **choices):
        folder = tmp_path_factory.mktemp("release")
        asked = make_arrays() if arrays is None else arrays
        people = Participants(len(SITES), len(asked.ids))
        size = {"channels": CHANNELS, "released": CHANNELS // 2, "grid": GRID}
        fitting = {"epsilon": 8.0, "participants": people} | size
        plan = Plan.preset(preset, **(fitting | choices))
        charged = seed is None and plan.allocation != "none"
        ledger = Ledger(folder / "ledger.sqlite") if charged else None
        if ledger is not None:
            for cohort, unit in payers(plan, SITES):
                ledger.set_budget(cohort, unit, epsilon=1e4, delta=1e-5)
        free = plan.allocation == "none"
        return create(
            folder / "out", by, Queries.of(asked), plan, ledger=ledger, seed=seed, not_private=free
        )

    return make


@pytest.fixture
def tamper(ensemble, tmp_path):
    """A release whose stored noise was changed, with every digest made anew: as a forger would.

    The change is a function of the noise, `[N, M, H·W]` in stored units; features stay.
    """
    from canal.attacks.view import noiseless_rows, released_rows, units
    from canal.features.store import Release
    from canal.release.card import render
    from canal.release.manifest import CARD, MANIFEST
    from canal.release.shard import shard_name, write_shard

    def change(release, arrays, noise_after):
        worth = np.repeat(units(release), release.plan.positions)
        clear = noiseless_rows(release, ensemble, arrays) / worth
        noise = released_rows(release) / worth - clear
        shape = (len(release), len(release.channels), release.plan.positions)
        changed = noise_after(noise.reshape(shape)).reshape(noise.shape)
        stored = np.rint(clear + changed).astype(np.int16)
        out = tmp_path / "tampered"
        out.mkdir()
        grid = (len(release), len(release.channels), *release.plan.grid)
        stamp = release.statement["stamp"]
        shard = write_shard(out / shard_name(0), stored.reshape(grid), stamp)
        manifest = dataclasses.replace(release.manifest, shards=[shard.to_json()])
        (out / MANIFEST).write_bytes(manifest.to_bytes())
        (out / CARD).write_text(render(manifest))
        return Release.open(out)

    return change
