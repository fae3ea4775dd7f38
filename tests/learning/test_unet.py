"""The U-Net: nothing mixes images, weights follow from the seed, and the digest sees every bit."""

import pytest
import torch
from torch import nn

from canal.errors import InvalidValueError
from canal.learning.networks import BOTTLENECK, UNetArchitecture, weights_digest

SMALL = UNetArchitecture(in_channels=1, base_channels=8)


@pytest.mark.parametrize("spatial_dims", [2, 3])
@pytest.mark.parametrize("norm", ["group", "instance"])
def test_no_image_sees_another(spatial_dims, norm):
    architecture = UNetArchitecture(2, spatial_dims, 8, norm)
    network = architecture.build(seed=0)
    assert not [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    norms = (nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)
    assert any(isinstance(module, norms) for module in network.modules())
    images = torch.randn(3, 2, *[32] * spatial_dims, generator=torch.manual_seed(1))
    network.train()  # where a norm over the batch would show
    with torch.no_grad():
        together = network(images)
        alone = torch.cat([network(image[None]) for image in images])
    assert together.shape == (3, 1, *[32] * spatial_dims)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spatial_dims", [2, 3])
def test_an_instance_norm_by_a_faster_kernel_is_an_instance_norm(spatial_dims):
    network = UNetArchitecture(1, spatial_dims, 8, "instance").build(seed=0)
    kind = (nn.InstanceNorm2d, nn.InstanceNorm3d)[spatial_dims - 2]
    norms = [module for module in network.modules() if isinstance(module, nn.GroupNorm)]
    assert norms
    for ours in norms:
        theirs = kind(ours.num_channels, affine=True)
        nn.init.normal_(ours.weight)
        theirs.load_state_dict(ours.state_dict())
        values = torch.randn(2, ours.num_channels, *[4] * spatial_dims)
        torch.testing.assert_close(ours(values), theirs(values))


@pytest.mark.parametrize("spatial_dims", [2, 3])
def test_the_bottleneck_is_behind_a_relu(spatial_dims):
    architecture = UNetArchitecture(1, spatial_dims, 8)
    network = architecture.build(seed=0)
    caught = []
    network.get_submodule(BOTTLENECK).register_forward_hook(lambda *call: caught.append(call[2]))
    with torch.no_grad():
        network(torch.randn(2, 1, *[32] * spatial_dims, generator=torch.manual_seed(1)))
    assert caught[0].shape == (2, architecture.channels, *[2] * spatial_dims)
    assert (caught[0] == 0).any()
    assert (caught[0] > 0).any()
    assert not (caught[0] < 0).any()


def test_weights_follow_from_the_seed_alone():
    torch.manual_seed(3)
    one = weights_digest(SMALL.build(seed=7))
    torch.manual_seed(4)
    assert weights_digest(SMALL.build(seed=7)) == one
    assert weights_digest(SMALL.build(seed=8)) != one


def test_the_public_seed_names_these_weights_for_ever():
    """The digest of an initialisation is what sites compare: it must not change with the code."""
    weights = SMALL.build(seed=0).state_dict()["conv_0.conv_0.conv.weight"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        want = nn.Conv2d(1, 8, 3).weight  # MONAI draws in the order of its layers, this one first
    assert torch.equal(weights, want)


def test_the_global_generators_are_untouched(monkeypatch):
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    before = torch.random.get_rng_state()
    SMALL.build(seed=7)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not seeded  # fork_rng(devices=[]) would not give a GPU its state back


def test_building_prints_nothing(capsys):
    SMALL.build(seed=0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("size", [(32, 32), (48, 96)])
def test_a_size_that_passes_the_check_runs(size):
    SMALL.check_size(size)
    with torch.no_grad():
        assert SMALL.build(seed=0)(torch.zeros(1, 1, *size)).shape[2:] == size


@pytest.mark.parametrize("size", [(32,), (32, 32, 32), (16, 32), (32, 40), (0, 32)])
def test_other_sizes_are_refused_with_what_is_allowed(size):
    with pytest.raises(InvalidValueError, match="2 sides, each a multiple of 16 and at least 32"):
        SMALL.check_size(size)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"spatial_dims": 1}, "spatial_dims = 1 must be 2 or 3"),
        ({"in_channels": 0}, "in_channels = 0 must be at least 1"),
        ({"base_channels": 0}, "base_channels = 0 must be a multiple of 8"),
        ({"base_channels": 12}, "base_channels = 12 must be a multiple of 8"),
        ({"norm": "batch"}, "norm = 'batch' must be group or instance"),
    ],
)
def test_errors_name_the_value(values, sentence):
    with pytest.raises(InvalidValueError, match=sentence):
        UNetArchitecture(**values)


def test_json_round_trip():
    architecture = UNetArchitecture(1, 3, 24, "instance")
    assert UNetArchitecture.from_json(architecture.to_json()) == architecture


def test_the_digest_sees_the_last_bit_of_any_weight():
    network = SMALL.build(seed=0)
    before = weights_digest(network)
    for name, weights in network.state_dict().items():
        first = weights.reshape(-1)[-1].clone()
        with torch.no_grad():
            view = weights.view(-1) if weights.is_contiguous() else weights.permute(0, 2, 3, 1)
            last = view.reshape(-1)[-1:] if weights.is_contiguous() else view[-1, -1, -1, -1:]
            old = last.clone()
            last.copy_(torch.nextafter(old, torch.tensor(9.0)))
            assert weights_digest(network) != before, name
            last.copy_(old)
        assert torch.equal(weights.reshape(-1)[-1], first)
    assert weights_digest(network) == before


def test_the_digest_sees_names_shapes_types_and_buffers():
    linear = nn.Linear(2, 2)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)

    class Named(nn.Module):
        def __init__(self, **tensors):
            super().__init__()
            for name, tensor in tensors.items():
                self.register_buffer(name, tensor)

    zeros = torch.zeros(4)
    digests = [
        weights_digest(Named(a=zeros)),
        weights_digest(Named(b=zeros)),
        weights_digest(Named(a=zeros.reshape(2, 2))),
        weights_digest(Named(a=zeros.to(torch.int32))),
        weights_digest(Named(a=zeros[:2], b=zeros[2:])),
        weights_digest(Named(a=torch.zeros(8, dtype=torch.bfloat16))),
        weights_digest(Named(a=torch.tensor(0))),
        weights_digest(linear),
    ]
    assert len(set(digests)) == len(digests)


def test_the_digest_does_not_see_the_layout_in_memory():
    network = SMALL.build(seed=0)
    before = weights_digest(network)
    assert weights_digest(network.to(memory_format=torch.contiguous_format)) == before
