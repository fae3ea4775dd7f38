"""The adapter: which parameters by what names, as one vector, and which channel each feeds."""

import numpy as np
import pytest
import torch
from torch import nn

from canal.errors import InvalidValueError
from canal.gradients.target_modules import Adapter, Coordinates, merge
from canal.learning.networks import UNetArchitecture
from gradients.place import FEW


def unet(**options):
    return UNetArchitecture(base_channels=8, **options).build(seed=0)


def taught(network=None, **options):
    network = unet() if network is None else network
    return Adapter(**options).install(network).names


@pytest.mark.parametrize("norm", ["instance", "group"])
def test_norms_are_scale_and_shift_of_every_normalisation(norm):
    network = unet(norm=norm)
    names = taught(network, parts=("norms",))
    homes = [name for name, each in network.named_modules() if isinstance(each, nn.GroupNorm)]
    assert len(homes) == 18
    assert sorted(names) == sorted(
        f"{home}.{leaf}" for home in homes for leaf in ("weight", "bias")
    )


def test_norms_of_other_kinds():
    network = nn.Sequential(
        *(nn.InstanceNorm2d(3, affine=True), nn.Conv2d(3, 3, 3), nn.LayerNorm(5)),
        *(nn.GroupNorm(1, 3), nn.BatchNorm2d(3)),
    )
    names = taught(network, parts=("norms",))
    assert {name.split(".")[0] for name in names} == {"0", "2", "3"}


def test_the_head_is_the_last_layer():
    assert taught(parts=("head",)) == ("final_conv.weight", "final_conv.bias")


def test_patterns_are_of_names():
    names = taught(parts=("upcat_1.*", "final_conv.bias"))
    assert "final_conv.bias" in names
    assert "final_conv.weight" not in names
    assert all(name.startswith("upcat_1.") for name in names if name != "final_conv.bias")
    assert taught(parts=("*",)) == tuple(name for name, _ in unet().named_parameters())


def test_names_come_in_the_order_of_the_network_and_once():
    order = [name for name, _ in unet().named_parameters()]
    names = taught(parts=("head", "norms", "final_*", "conv_0.*.weight"))
    assert list(names) == sorted(set(names), key=order.index)


@pytest.mark.parametrize("part", ["upcat_9.*", "Norms", "final_conv", "head.*"])
def test_a_pattern_that_nothing_matches_is_refused(part):
    with pytest.raises(InvalidValueError, match="no parameter is called"):
        taught(parts=("norms", part))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"rank": -1}, "rank = -1"),
        ({"rank": 1.5}, "rank = 1.5"),
        ({"rank": True}, "rank = True"),
        ({"parts": ()}, "teaches nothing"),
    ],
)
def test_what_cannot_be_is_refused(bad, says):
    with pytest.raises(InvalidValueError, match=says):
        Adapter(**bad)


def test_convolutions_that_are_not_there_have_no_product():
    with pytest.raises(InvalidValueError, match="no convolution is called upcat_9"):
        taught(parts=("norms",), rank=2, beside=("upcat_9*",))


def test_products_are_taught_and_the_convolution_beside_them_is_not():
    names = taught(parts=("norms",), rank=2, beside=("upcat_1.convs.*",))
    beside = [name for name in names if ".adn." not in name]
    assert beside == [
        f"upcat_1.convs.conv_{number}.conv.{leaf}.weight"
        for number in (0, 1)
        for leaf in ("inner", "outer")
    ]


def test_the_same_words_mean_the_same_parameters_with_products_and_without():
    """A product beside the last layer does not make another layer the last."""
    for parts in (("head",), ("final_conv.*",), ("upcat_1.convs.conv_1.conv.bias",)):
        plain, network = unet(), unet()
        alone = dict(plain.named_parameters())
        beside = dict(network.named_parameters())
        before = [id(beside[name]) for name in taught(plain, parts=parts)]
        names = taught(network, parts=parts, rank=2)
        after = dict(network.named_parameters())
        assert [id(after[name]) for name in names if id(after[name]) in before] == before
        assert len(names) == len(before) + 2 * 23
        assert alone.keys() == beside.keys()


def outputs(network):
    with torch.no_grad():
        images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
        return network.eval()(images)


def test_products_change_nothing_at_first_and_something_once_taught():
    network, plain = unet(), outputs(unet())
    coordinates = Adapter(FEW.parts, rank=2).install(network)
    torch.testing.assert_close(outputs(network), plain, rtol=1e-5, atol=1e-6)
    coordinates.write(coordinates.read() + 0.05)
    assert (outputs(network) - plain).abs().max() > 0.1


def test_a_merged_network_computes_what_it_computed():
    """And has the parameters that it had before, by name and shape."""
    network = unet()
    coordinates = Adapter(FEW.parts, rank=2).install(network)
    generator = torch.Generator().manual_seed(4)
    coordinates.write(
        coordinates.read() + 0.05 * torch.randn(len(coordinates), generator=generator)
    )
    taught = outputs(network)
    merge(network)
    torch.testing.assert_close(outputs(network), taught, rtol=1e-5, atol=1e-5)
    assert [(name, each.shape) for name, each in network.named_parameters()] == [
        (name, each.shape) for name, each in unet().named_parameters()
    ]


def test_products_begin_from_a_public_seed():
    def inner(seed):
        network = unet()
        names = Adapter(parts=(), rank=1, seed=seed).install(network).names
        have = dict(network.named_parameters())
        return torch.cat([have[name].flatten() for name in names if "inner" in name]).detach()

    state = torch.random.get_rng_state()
    assert torch.equal(inner(3), inner(3))
    assert not torch.equal(inner(3), inner(4))
    assert torch.equal(torch.random.get_rng_state(), state), "somebody else's dice were thrown"


def test_one_vector_there_and_back():
    network = unet()
    coordinates = FEW.install(network)
    before = coordinates.read()
    assert len(before) == len(coordinates) == len(coordinates.groups)
    values = torch.arange(len(coordinates), dtype=torch.float32)
    coordinates.write(values)
    assert torch.equal(coordinates.read(), values)
    assert before[0] != values[0] or before[1] != values[1], "a copy, not a view"
    have = dict(network.named_parameters())
    start = 0
    for name in coordinates.names:
        size = have[name].numel()
        assert torch.equal(have[name].detach().flatten(), values[start : start + size])
        start += size
    untouched = dict(unet().named_parameters())["down_1.convs.conv_0.conv.weight"]
    assert torch.equal(have["down_1.convs.conv_0.conv.weight"], untouched)


def test_a_vector_of_another_length_is_not_written():
    coordinates = FEW.install(unet())
    with pytest.raises(RuntimeError):
        coordinates.write(torch.zeros(len(coordinates) + 1))


def groups(network):
    """The channel of every coordinate, in the shape of its parameter."""
    coordinates = Coordinates(network, [name for name, _ in network.named_parameters()])
    found, start = {}, 0
    for name, each in network.named_parameters():
        found[name] = coordinates.groups[start : start + each.numel()].reshape(each.shape)
        start += each.numel()
    return found


def test_channels_of_a_convolution():
    """Everything that feeds one output, with its bias."""
    found = groups(nn.Conv2d(2, 3, 2))
    for channel in range(3):
        assert (found["weight"][channel] == channel).all()
    assert found["bias"].tolist() == [0, 1, 2]


def test_channels_of_a_transposed_convolution():
    """Its outputs are on the second axis."""
    found = groups(nn.ConvTranspose2d(2, 3, 2))
    for channel in range(3):
        assert (found["weight"][:, channel] == channel).all()
    assert found["bias"].tolist() == [0, 1, 2]


def test_channels_of_a_transposed_convolution_in_groups():
    """Four inputs, two for each group of three outputs."""
    found = groups(nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=2), nn.Linear(2, 2)))
    weight = found["0.weight"]
    assert weight[:2, :, 0, 0].tolist() == [[0, 1, 2]] * 2
    assert weight[2:, :, 0, 0].tolist() == [[3, 4, 5]] * 2
    assert found["0.bias"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found["1.bias"].tolist() == [6, 7]


def test_layers_have_channels_of_their_own():
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.GroupNorm(1, 2), nn.Conv2d(2, 3, 1, bias=False))
    found = groups(network)
    assert found["1.weight"].tolist() == found["1.bias"].tolist() == [2, 3]
    assert found["2.weight"].reshape(3, 2).tolist() == [[4, 4], [5, 5], [6, 6]]


def test_channels_are_counted_without_gaps():
    """Also where only some parameters are taught, and products beside them."""
    for adapter in (FEW, Adapter(parts=("*.bias",)), Adapter(FEW.parts, rank=2)):
        found = adapter.install(unet()).groups
        np.testing.assert_array_equal(np.unique(found), np.arange(found.max() + 1))


def test_a_layer_whose_parameters_have_different_sizes():
    """Nothing of it falls into the channels of the next."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.large = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(5))
            self.one = nn.Parameter(torch.tensor(1.0))

    network = nn.Sequential(Odd(), nn.Linear(1, 2))
    found = groups(network)
    mine = np.concatenate([found["0.small"], found["0.large"], found["0.one"].reshape(1)])
    theirs = np.concatenate([found["1.weight"].ravel(), found["1.bias"]])
    assert not set(mine.tolist()) & set(theirs.tolist())


def test_an_adapter_written_down_is_the_same_adapter():
    adapter = Adapter(("norms", "upcat_*"), 3, ("down_*",), 5)
    assert Adapter.from_json(adapter.to_json()) == adapter
