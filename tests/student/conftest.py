"""A release of tiny networks, on a grid large enough to have frequencies, and its recipient."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from canal.data.arrays import Arrays

SIZE = (64, 64)  # 128 channels of 4 x 4 at the bottleneck


@pytest.fixture(scope="session")
def init(tmp_path_factory):
    """Folder of a shared initialisation."""
    from canal.learning.networks import UNetArchitecture
    from canal.learning.teacher import initialise

    folder = tmp_path_factory.mktemp("student") / "init"
    initialise(folder, UNetArchitecture(in_channels=1, base_channels=8), seed=0, size=SIZE)
    return folder


@pytest.fixture(scope="session")
def arrays():
    """Twelve grey images with a disc on each."""
    rng = np.random.default_rng(3)
    row, column = np.mgrid[: SIZE[0], : SIZE[1]]
    masks = np.zeros((12, 1, *SIZE), dtype=np.uint8)
    for mask in masks:
        y, x = rng.uniform(16, 48, 2)
        mask[0] = np.hypot(row - y, column - x) < rng.uniform(8, 18)
    images = (rng.integers(0, 100, masks.shape) + 130 * masks).astype(np.uint8)
    return Arrays(tuple(f"q{number}" for number in range(12)), images, masks, "digest")


@pytest.fixture(scope="session")
def make_release(tmp_path_factory, init, arrays):
    """A release about the arrays by two teachers, in research mode; each made once."""
    import torch

    from canal.features import Ensemble, Plan, Queries, Teacher, create
    from canal.learning import checkpoint
    from canal.learning.networks import BOTTLENECK, Tap, weights_digest
    from canal.privacy.units import Participants

    shared, about = checkpoint.load(init)
    teachers = []
    for number in range(2):
        network = copy.deepcopy(shared)
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for weight in network.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=generator)
        teachers.append(
            Teacher(f"site {number}", Tap(network, BOTTLENECK), weights_digest(network))
        )
    ensemble = Ensemble(
        *(tuple(teachers), about.initialisation, Tap(shared, BOTTLENECK)),
        trained_initialisation=False,
    )
    folder, made = tmp_path_factory.mktemp("releases"), {}

    def make(allocation="canal", **choices):
        key = (allocation, *sorted(choices.items()))
        if key not in made:
            plan = Plan.preset(
                "honest",
                **{"epsilon": 8.0, "channels": 128, "grid": (4, 4), "allocation": allocation}
                | {"participants": Participants(2, len(arrays.ids))}
                | choices,
            )
            queries, out = Queries.of(arrays), folder / str(len(made))
            made[key] = create(out, ensemble, queries, plan, seed=1, not_private=True)
        return made[key]

    return make


@pytest.fixture(scope="session")
def adapters(tmp_path_factory, init, arrays):
    """A release of adapters by one site, two rounds without noise: they are there to be read."""

    from canal.gradients.patients import Patients
    from canal.gradients.plan import AdapterPlan
    from canal.gradients.release import train
    from canal.gradients.start import share
    from canal.gradients.target_modules import Adapter

    shared = share(init, arrays, Adapter(("head",)), "none", views=0)
    site = Patients("site", replace(arrays, images=255 - arrays.images), views=0)
    plan = AdapterPlan(
        *(8.0, len(site), len(shared.coordinates)),
        rounds=2,
        allocation="none",
        adapter=Adapter(("head",)),
    )
    out = tmp_path_factory.mktemp("adapters") / "release"
    return train(out, [site], shared, plan, not_private=True)
