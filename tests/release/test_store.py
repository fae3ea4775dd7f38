"""A release as its reader sees it: every query at hand, mapped, checked at the first touch."""

import math

import numpy as np
import pytest
import torch

from canal.data.arrays import Arrays
from canal.errors import InvalidValueError, ReleaseError
from canal.features.ensemble import Ensemble, Teacher
from canal.features.queries import Queries
from canal.features.release import create
from canal.features.store import Release
from canal.learning.networks import BOTTLENECK, Tap, UNetArchitecture, weights_digest
from canal.privacy import Participants
from canal.release.verification import verify


@pytest.fixture
def folder(tmp_path, ensemble, queries, make_plan):
    return create(tmp_path / "release", ensemble, queries, make_plan(), seed=1).path


def test_every_query_is_there_in_order(folder, queries):
    release = Release.open(str(folder))
    assert release.ids == queries.ids
    assert len(release) == 40
    assert queries.ids[3] in release
    assert "nobody" not in release


def test_features_are_integers_times_the_scale_of_their_channel(folder):
    release = Release.open(folder)
    numbers = release.manifest.mechanism
    scale = np.array(numbers["step"]) * numbers["caps"] / 3 * 2.0 ** np.array(numbers["shift"])
    np.testing.assert_allclose(release.scale, scale, rtol=1e-15)
    for name in release.ids[::7]:
        integers, features = release.integers(name), release.features(name)
        assert (integers.dtype, features.dtype) == (np.int16, torch.float32)
        assert features.shape == (12, 2, 2)
        np.testing.assert_allclose(features, integers * scale[:, None, None], rtol=1e-6)
    # Noise as a student meets it: of the mean, in units of the features.
    np.testing.assert_allclose(release.sigma, np.array(numbers["sigma"]) * numbers["caps"])


def test_the_view_of_all_channels_is_zero_where_nothing_was_released(folder):
    release = Release.open(folder)
    some = release.ids[5:9]
    released, everything = release.batch(some), release.batch(some, all_channels=True)
    assert everything.shape == (4, 128, 2, 2)
    assert torch.equal(everything[:, release.channels.tolist()], released)
    others = sorted(set(range(128)) - set(release.channels.tolist()))
    assert len(others) == 116
    assert not everything[:, others].any()
    assert released.abs().min() > 0
    assert torch.equal(release.features(some[2], all_channels=True), everything[2])


def test_a_batch_is_in_the_order_that_was_asked_for(folder):
    release = Release.open(folder)
    names = [release.ids[row] for row in (30, 2, 2, 17)]
    batch = release.batch(names)
    for row, name in enumerate(names):
        assert torch.equal(batch[row], release.features(name))
    assert not torch.equal(batch[0], batch[1])


def test_integers_are_mapped_and_cannot_be_written_to(folder):
    release = Release.open(folder)
    stored = release.integers(release.ids[0])
    base = stored
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)
    assert base.mode == "r"
    assert base.size == (folder / "features-00000.safetensors").stat().st_size
    with pytest.raises(ValueError, match="read-only"):
        stored[:] = 0
    release.features(release.ids[0]).zero_()  # what a student does to its copy stays with it
    assert release.features(release.ids[0]).any()


def test_an_unknown_query_is_an_error_that_names_it(folder):
    with pytest.raises(InvalidValueError, match=r"'nobody' is not in .*it holds 40 others"):
        Release.open(folder).features("nobody")


def flip(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_damage_is_found_when_a_shard_is_first_touched(folder):
    flip(folder / "features-00000.safetensors")
    release = Release.open(folder)  # the manifest is whole
    assert len(release.ids) == 40
    with pytest.raises(ReleaseError, match=r"features-00000\.safetensors is damaged.*ask for it"):
        release.features(release.ids[0])


def test_a_shard_is_checked_once(folder, monkeypatch):
    release = Release.open(folder)
    before = release.features(release.ids[0])
    for name in ("map", "of"):
        monkeypatch.setattr(
            f"canal.release.shard.Shard.{name}", lambda *_: pytest.fail("checked again")
        )
    assert torch.equal(release.features(release.ids[0]), before)
    release.batch(release.ids)


def test_a_damaged_manifest_is_not_opened(folder):
    flip(folder / "manifest.json", at=200)
    with pytest.raises(ReleaseError, match="damaged"):
        Release.open(folder)
    with pytest.raises(ReleaseError, match="holds no release"):
        Release.open(folder / "nothing")


def test_volumes_from_networks_to_features(tmp_path, make_plan):
    """A release in three dimensions, end to end: U-Nets on 32 x 32 x 32 with public statistics."""
    architecture = UNetArchitecture(in_channels=1, spatial_dims=3, base_channels=8)
    networks = [architecture.build(seed) for seed in range(3)]
    shared, *teachers = (Tap(network, BOTTLENECK) for network in networks)
    ensemble = Ensemble(
        tuple(Teacher(f"site {tap}", tap, weights_digest(tap.network)) for tap in teachers),
        weights_digest(shared.network),
        shared,
        trained_initialisation=False,
    )
    rng = np.random.default_rng(0)
    masks = rng.integers(0, 2, (3, 1, 32, 32, 32), dtype=np.uint8)
    images = (masks * 100 + rng.integers(0, 100, masks.shape)).astype(np.uint8)
    queries = Queries.of(Arrays(("a", "b", "c"), images, masks, "digest"))
    shape = {"participants": Participants(2, 3), "grid": (2, 2, 2), "released": 7}
    loud, plain = (
        create(tmp_path / how, ensemble, queries, make_plan(allocation=how, **shape), **arguments)
        for how, arguments in (("canal", {"seed": 1}), ("none", {"not_private": True}))
    )
    assert all(check.passed in (True, None) for check in verify(loud.path))
    assert loud.batch(["c", "a"]).shape == (2, 7, 2, 2, 2)
    assert loud.features("b", all_channels=True).shape == (128, 2, 2, 2)
    assert loud.channels.tolist() == plain.channels.tolist()

    # Without noise: the mean of two clipped bottlenecks, from a plain loop.
    image = torch.from_numpy(images[1:2]).float() / 127.5 - 1
    want = torch.zeros(7, 2, 2, 2, dtype=torch.float64)
    for tap in teachers:
        for place, channel in enumerate(plain.channels):
            v = tap.features(image)[0, channel].double().clamp(min=0)
            want[place] += v / max(plain.caps[place], v.norm().item()) / 2 * plain.caps[place]
    got = plain.features("b")
    assert want.abs().max() > 0.1
    torch.testing.assert_close(got.double(), want, atol=2e-3, rtol=0)
    noise = (loud.features("b") - got).double().numpy() / loud.sigma.reshape(-1, 1, 1, 1)
    assert 0.5 < math.sqrt(np.square(noise).mean()) < 1.5  # 56 values: five deviations either way
