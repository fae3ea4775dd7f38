"""A release as its reader sees it: every step taken again leads to the same network."""

import copy
import json

import numpy as np
import pytest
import torch

from canal.errors import InvalidValueError, ReleaseError
from canal.gradients.mechanism import GradientMechanism
from canal.gradients.plan import AdapterPlan
from canal.gradients.release import train
from canal.gradients.store import AdapterRelease
from canal.gradients.target_modules import Adapter
from canal.gradients.update import UpdateSettings
from canal.learning import checkpoint
from canal.release.manifest import MANIFEST, Manifest


@pytest.fixture(scope="module")
def watched(sites, make_release, tmp_path_factory):
    """A release behind an ellipsoid, and where its rounds were."""
    out, asked = tmp_path_factory.mktemp("store") / "release", []
    real = GradientMechanism.contribute

    def noted(self, step, site, published):
        found = real(self, step, site, published)
        if site is sites[0]:
            asked.append(self.coordinates.read())
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(GradientMechanism, "contribute", noted)
        return make_release(out, "ellipsoid", seed=3), asked


@pytest.fixture
def fresh(init):
    """The shared initialisation, as a reader loads it."""
    return checkpoint.load(init)[0]


def test_replaying_a_release_passes_every_point_that_was_asked_at(watched, fresh):
    release, asked = watched
    assert len(release) == len(asked) == 3
    coordinates = release.plan.adapter.install(fresh)
    course = release.trajectory(coordinates)
    assert torch.equal(coordinates.read(), asked[0]), "replaying writes nothing"
    # By hand from the published integers: direction, momentum, and the mean of the last two.
    public = release.public(coordinates.groups)
    step = float(release.manifest.mechanism["step"])
    unit = public.bounds[0] / public.scales[public.channels] / public.length
    here, velocity, points = asked[0].double().numpy(), 0.0, []
    for number in range(3):
        assert torch.equal(torch.from_numpy(here).float(), asked[number])
        velocity = 0.9 * velocity + release.sums(number) * step * unit / release.patients
        here = here - release.settings.step * velocity
        points.append(here)
    np.testing.assert_allclose(course.here.numpy(), points[-1], rtol=1e-12, atol=1e-15)
    middle = np.mean(points[1:], axis=0)
    np.testing.assert_allclose(course.adapter.numpy(), middle, rtol=1e-12, atol=1e-15)


def test_a_network_is_taught(watched, fresh):
    """Only what the adapter names, and to the values of the replay."""
    release, _ = watched
    before = {name: each.detach().clone() for name, each in fresh.named_parameters()}
    twin = copy.deepcopy(fresh)
    assert release.teach(fresh) is fresh
    coordinates = release.plan.adapter.install(twin)
    want = release.trajectory(coordinates).adapter.float()
    have = dict(fresh.named_parameters())
    found = torch.cat([have[name].detach().flatten() for name in coordinates.names])
    assert torch.equal(found, want)
    changed = {name for name in before if not torch.equal(before[name], have[name])}
    assert changed == set(coordinates.names)


def test_only_the_network_that_it_started_from_is_taught(watched, fresh):
    release, _ = watched
    release.teach(fresh)
    with pytest.raises(ReleaseError, match="not the initialisation"):
        release.teach(fresh)  # a second time


def test_products_are_taught_and_folded_in(shared, sites, fresh, tmp_path):
    """What comes out has the layers that went in, and computes what the rounds ended with."""
    adapter = Adapter(parts=("head",), rank=2, beside=("upcat_1.convs.*",))
    there = shared(adapter=adapter)
    plan = AdapterPlan(8.0, 12, len(there.coordinates), sites=2, rounds=2, adapter=adapter)
    release = train(tmp_path / "release", sites, there, plan, seed=3)
    names = [name for name, _ in fresh.named_parameters()]
    twin = copy.deepcopy(fresh)
    coordinates = adapter.install(twin)
    coordinates.write(release.trajectory(coordinates).adapter.float())
    release.teach(fresh)
    assert [name for name, _ in fresh.named_parameters()] == names
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(fresh.eval()(images), twin.eval()(images), rtol=1e-4, atol=1e-5)


def test_a_network_of_another_shape_is_not_replayed(watched, fresh):
    release, _ = watched
    with pytest.raises(ReleaseError, match="give the initialisation that it started from"):
        release.trajectory(Adapter(parts=("head",)).install(fresh))


def test_reading_costs_nothing_and_says_what_was_asked(watched, make_plan):
    release, _ = watched
    again = AdapterRelease.open(release.path)
    assert again.plan == make_plan("ellipsoid")
    assert again.settings == UpdateSettings(step=again.settings.step)
    assert not again.private
    assert again.sums(0).dtype == np.int32
    assert again.sums(0).shape == (again.plan.parameters,)


def test_no_release_or_another_kind_of_one(tmp_path, watched):
    with pytest.raises(ReleaseError, match="holds no release"):
        AdapterRelease.open(tmp_path)
    content = json.loads((watched[0].path / MANIFEST).read_bytes())
    del content["format"], content["digest"]
    (tmp_path / MANIFEST).write_bytes(Manifest(**content | {"kind": "features"}).to_bytes())
    with pytest.raises(ReleaseError, match="of features, not of adapters"):
        AdapterRelease.open(tmp_path)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda content: content["plan"].update(rounds=0),
        lambda content: content["plan"].pop("adapter"),
        lambda content: content["plan"]["adapter"].update(rank="two"),
        lambda content: content["statistics"].pop("patients"),
        lambda content: content["statistics"]["update"].update(step=-1),
        lambda content: content["shards"][0].update(file="../secret"),
        lambda content: content["shards"][0].pop("rows"),
    ],
)
def test_a_manifest_that_contradicts_itself(break_it, watched, tmp_path):
    content = json.loads((watched[0].path / MANIFEST).read_bytes())
    del content["format"], content["digest"]
    break_it(content)
    (tmp_path / MANIFEST).write_bytes(Manifest(**content).to_bytes())
    with pytest.raises(ReleaseError, match="contradicts itself") as caught:
        AdapterRelease.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_damaged_round_is_not_read(watched, tmp_path):
    release, _ = watched
    for path in release.path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    file = tmp_path / release.manifest.shards[1]["file"]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    broken = AdapterRelease.open(tmp_path)
    broken.sums(0)
    with pytest.raises(ReleaseError, match="damaged"):
        broken.sums(1)


def test_scales_of_another_network_are_refused(watched):
    release, _ = watched
    with pytest.raises(InvalidValueError, match="another network"):
        release.public(np.arange(10_000))
