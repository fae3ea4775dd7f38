"""Tiny networks that nobody trained, and forty queries: what tests of releases have in common."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest

from canal.data.arrays import Arrays
from canal.features.plan import Plan
from canal.privacy.units import Participants

SITES = ("north", "south", "west")
SIZE = (32, 32)  # 128 channels of 2 x 2 at the bottleneck


@pytest.fixture(scope="session")
def architecture():
    from canal.learning.networks import UNetArchitecture

    return UNetArchitecture(in_channels=1, base_channels=8)


@pytest.fixture(scope="session")
def initialisation(architecture):
    """The weights that all teachers start from; a test that changes them works on a copy."""
    return architecture.build(seed=0)


@pytest.fixture(scope="session")
def teachers(initialisation):
    """One network for each site: the initialisation, moved a little as training would."""
    import torch

    made = {}
    for number, site in enumerate(SITES):
        network = copy.deepcopy(initialisation)
        generator = torch.Generator().manual_seed(100 + number)
        with torch.no_grad():
            for weight in network.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=generator)
        made[site] = network
    return made


@pytest.fixture(scope="session")
def ensemble(initialisation, teachers):
    """Three teachers and the initialisation that they share."""
    from canal.features.ensemble import Ensemble, Teacher
    from canal.learning.networks import BOTTLENECK, Tap, weights_digest

    return Ensemble(
        tuple(
            Teacher(site, Tap(network, BOTTLENECK), weights_digest(network))
            for site, network in teachers.items()
        ),
        weights_digest(initialisation),
        Tap(initialisation, BOTTLENECK),
        trained_initialisation=False,
    )


@pytest.fixture(scope="session")
def arrays():
    """Forty grey images with a disc on each."""
    rng = np.random.default_rng(7)
    row, column = np.mgrid[: SIZE[0], : SIZE[1]]
    masks = np.zeros((40, 1, *SIZE), dtype=np.uint8)
    for mask in masks:
        y, x = rng.uniform(8, 24, 2)
        mask[0] = np.hypot(row - y, column - x) < rng.uniform(4, 9)
    images = (rng.integers(0, 100, masks.shape) + 130 * masks).astype(np.uint8)
    for array in (images, masks):
        array.flags.writeable = False
    return Arrays(tuple(f"case-{number:03d}" for number in range(40)), images, masks, "digest")


@pytest.fixture(scope="session")
def queries(arrays):
    from canal.features.queries import Queries

    return Queries.of(arrays)


@pytest.fixture(scope="session")
def make_plan():
    """A plan that fits `ensemble` and `queries`; `preset` and every argument of `Plan` as given."""

    def make(preset="honest", **choices):
        fitting = {
            "epsilon": 8.0,
            "delta": 1e-5,
            "participants": Participants(teachers=len(SITES), queries=40),
            "channels": 128,
            "released": 12,
            "grid": (2, 2),
        }
        return Plan.preset(preset, **(fitting | choices))

    return make


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory, architecture, initialisation, teachers):
    """The same networks as folders: `.init` and `.teachers`, as the command line reads them."""
    from canal.learning import checkpoint
    from canal.learning.checkpoint import Checkpoint
    from canal.learning.networks import weights_digest

    folder = tmp_path_factory.mktemp("checkpoints")
    common = {
        "architecture": architecture.to_json(),
        "initialisation": weights_digest(initialisation),
        "size": SIZE,
    }
    notes = {"role": "initialisation", "seed": 0, "trained": False}
    checkpoint.save(folder / "init", initialisation, Checkpoint(**common, notes=notes))
    for site, network in teachers.items():
        notes = {"role": "teacher", "site": site, "images": 20, "trained_initialisation": False}
        description = Checkpoint(**common, data=f"images of {site}", notes=notes)
        checkpoint.save(folder / site, network, description)
    return SimpleNamespace(init=folder / "init", teachers=[folder / site for site in SITES])
