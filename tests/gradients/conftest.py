"""What the tests of adapters share: synthetic patients, and a network that all sites know."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from canal.data.arrays import Arrays
from canal.data.synthetic import generate
from canal.gradients.plan import AdapterPlan
from gradients.place import FEW, Place

SIZE = (32, 32)


@pytest.fixture(scope="session")
def patients_of():
    """Images of some patients of a synthetic hospital, two of most."""

    def draw(hospital, count, seed=0):
        drawn = generate(count, size=SIZE, hospital=hospital, seed=seed)
        groups = dict(zip(drawn.ids, drawn.patients, strict=True))
        name = f"{count} images of {hospital}, seed {seed}"
        return Arrays(drawn.ids, drawn.images, drawn.masks, name, patients=groups)

    return draw


@pytest.fixture(scope="session")
def recipient(patients_of):
    """The recipient's own images; public."""
    return patients_of("endoscopy", 8, seed=1)


@pytest.fixture(scope="session")
def init(tmp_path_factory, recipient):
    """Folder of a shared initialisation that was trained for a moment."""
    from canal.learning.networks import UNetArchitecture
    from canal.learning.settings import TrainingSettings
    from canal.learning.teacher import initialise

    folder = tmp_path_factory.mktemp("adapters") / "init"
    initialise(
        *(folder, UNetArchitecture(base_channels=8)),
        seed=0,
        size=SIZE,
        arrays=recipient,
        settings=TrainingSettings(steps=4, batch_size=4),
    )
    return folder


@pytest.fixture(scope="session")
def shared(init, recipient):
    """The network with its adapter, for an allocation; made once, its own weights kept apart."""
    from canal.gradients.start import share

    made = {}

    def get(allocation="flat", adapter=None, chunk=4):
        asked = (allocation, adapter, chunk)
        if asked not in made:
            made[asked] = share(init, recipient, adapter or FEW, allocation, chunk=chunk)
        return made[asked]

    return get


@pytest.fixture(scope="session")
def gradients(shared):
    """Of the norms and the head, image by image."""
    from canal.gradients.gradients import Gradients

    return Gradients(shared().network, shared().coordinates.names)


@pytest.fixture(scope="session")
def make_plan(shared):
    """A plan that fits two small sites, unless it is said otherwise."""

    def make(allocation="flat", **choices):
        public = shared("flat" if allocation == "none" else allocation).start.public
        fitting = {
            "epsilon": 8.0,
            "patients": 12,
            "parameters": len(public.channels),
            "blocks": public.blocks,
            "sites": 2,
            "rounds": 3,
            "allocation": allocation,
            "adapter": FEW,
        }
        return AdapterPlan(**(fitting | choices))

    return make


@pytest.fixture(scope="session")
def sites(patients_of):
    """The patients of two hospitals, in batches of four."""
    from canal.gradients.patients import Patients

    return tuple(
        Patients(hospital, patients_of(hospital, 6), chunk=4)
        for hospital in ("dermoscopy", "ultrasound")
    )


@pytest.fixture(scope="session")
def make_asked(shared, sites, make_plan, tmp_path_factory):
    """The mechanism of an allocation, and both sites in this process, prepared for it."""
    from canal.gradients.release import mechanism_of
    from canal.release.mechanism import LocalFederation

    def make(allocation="flat", plan=None, **options):
        there = shared("flat" if allocation == "none" else allocation)
        federation = LocalFederation(sites)
        asked, out = make_plan(allocation, **(plan or {})), tmp_path_factory.mktemp("asked") / "out"
        mechanism = mechanism_of(out, there, asked, federation.cohorts, seed=3, **options)
        federation.prepare(mechanism, None)
        return mechanism, federation

    return make


@pytest.fixture(scope="session")
def make_public():
    """Public numbers by hand: channels of the same size, with these bounds and weights."""
    from canal.gradients.public import Public

    def make(bounds=(1.0,), weights=None, channels=4, size=3, length=1.0):
        return Public(
            np.repeat(np.arange(channels), size),
            np.ones(channels),
            np.array(bounds, dtype=np.float64),
            np.ones(len(bounds)) if weights is None else np.array(weights, dtype=np.float64),
            length,
        )

    return make


@pytest.fixture(scope="session")
def make_release(shared, make_plan, sites):
    """A release of both sites with an allocation; arguments of a plan, and of the release."""
    from canal.gradients.release import train

    both = sites

    def make(out, allocation="flat", *, plan=None, sites=None, there=None, start=None, **options):
        there = there or shared("flat" if allocation == "none" else allocation)
        there = replace(there, start=start or there.start)
        asked = make_plan(allocation, **(plan or {}))
        return train(out, sites or both, there, asked, **options)

    return make


@pytest.fixture
def places(tmp_path):
    """A new place each time it is called."""
    numbers = itertools.count()
    return lambda: Place(tmp_path / f"place-{next(numbers)}")


@pytest.fixture(scope="module")
def whole(make_release, tmp_path_factory):
    """A private release, counted, that all tests change in turn."""
    from canal.privacy import Ledger
    from gradients.charged import COHORTS, Charged

    folder = tmp_path_factory.mktemp("victim")
    ledger = Ledger(folder / "ledger.sqlite")
    ledger.set_budget(COHORTS, "membership", epsilon=8.0, delta=1e-5)
    make_release(folder / "release", plan={"count": 0.05}, ledger=ledger)
    return Charged(folder / "release", ledger)


@pytest.fixture
def victim(whole):
    """The same, healed after each test."""
    yield whole
    whole.heal()
