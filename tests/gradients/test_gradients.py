"""Gradients of every image on its own: against a naive loop."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from canal.errors import InvalidValueError
from canal.gradients.gradients import Gradients
from canal.gradients.target_modules import Adapter
from canal.learning.networks import UNetArchitecture, task_loss
from gradients.pictures import pictures
from gradients.place import FEW


def naive(network, names, images, masks, loss):
    """Autograd on one image after the other: what the rows are by definition."""
    network.eval()
    wanted = [dict(network.named_parameters())[name].requires_grad_() for name in names]
    rows = []
    for at in range(len(images)):
        image = images[at : at + 1].clone().requires_grad_()
        one = loss(network(image), masks[at : at + 1]).sum()
        # Of the image too: torch 2.13 dies of a group norm whose input has no gradient.
        *parts, _ = torch.autograd.grad(one, [*wanted, image])
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def assert_same(network, images, masks, loss, names=None):
    """Every parameter's part of every row, to nine digits or as small beside the whole row."""
    names = [name for name, _ in network.named_parameters()] if names is None else names
    want = naive(copy.deepcopy(network), names, images, masks, loss)
    got = Gradients(network, names, loss)(images, masks)
    assert got.shape == want.shape
    assert want.norm(dim=1).min() > 0
    sizes = [dict(network.named_parameters())[name].numel() for name in names]
    whole = want.norm(dim=1)
    for name, mine, theirs in zip(names, got.split(sizes, 1), want.split(sizes, 1), strict=True):
        # A bias before a norm has the gradient zero: there, nine digits of nothing are noise.
        allowed = 1e-9 * torch.maximum(theirs.norm(dim=1), 1e-5 * whole)
        assert ((mine - theirs).norm(dim=1) <= allowed).all(), name


@pytest.mark.parametrize("norm", ["instance", "group"])
def test_the_network_that_we_release(norm):
    """All parameters of the U-Net, its own loss, in double precision."""
    network = UNetArchitecture(base_channels=8, norm=norm).build(seed=0).double()
    images, masks = (each.double() for each in pictures(3))
    assert_same(network, images, masks, task_loss)


def test_the_network_with_products_beside_its_convolutions():
    network = UNetArchitecture(base_channels=8).build(seed=0)
    names = Adapter(FEW.parts, rank=2, beside=("upcat_1.*",)).install(network).names
    assert any(name.endswith(".inner.weight") for name in names)
    with torch.no_grad():
        for name in names:
            dict(network.named_parameters())[name].add_(0.01)  # else the inner one has none
    images, masks = (each.double() for each in pictures(2))
    assert_same(network.double(), images, masks, task_loss, names)


class Twice(nn.Module):
    """One layer, used two times."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, images):
        return self.layer(self.layer(images).tanh())


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.second.weight = self.first.weight

    def forward(self, images):
        return self.second(self.first(images).tanh())


class Standardised(nn.Conv2d):
    """Looks like a convolution, and is another function of its weight."""

    def forward(self, images):
        return self._conv_forward(images, self.weight - self.weight.mean(), self.bias)


class Hasty(nn.Module):
    """Changes the output of a layer where it lies in memory."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 3)

    def forward(self, images):
        return self.second(self.first(images).tanh()).sigmoid_()


def split_weight():
    """As `torch.nn.utils.weight_norm` does it: the layer keeps its type, its weight does not."""
    layer = nn.Conv2d(2, 3, 3)
    layer.weight_v = nn.Parameter(layer.weight.detach().clone())
    del layer.weight
    layer.register_forward_pre_hook(lambda each, _: setattr(each, "weight", each.weight_v.tanh()))
    layer.weight = layer.weight_v.detach()
    return layer


class Scaled(nn.Module):
    """A layer of a kind that we know nothing of."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, -1.5])[:, None, None])

    def forward(self, images):
        return images * self.scale


FLAT, DEEP, LINE = (2, 11, 11), (1, 6, 6, 6), (3, 8)
TOGETHER = {
    "stride": (FLAT, lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1)),
    "dilation": (FLAT, lambda: nn.Conv2d(2, 3, (3, 2), dilation=(2, 1), padding=(0, 1))),
    "groups": (FLAT, lambda: nn.Conv2d(2, 6, 3, groups=2)),
    "no bias": (FLAT, lambda: nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.Conv2d(3, 2, 1))),
    "transposed": (FLAT, lambda: nn.ConvTranspose2d(2, 3, 3, 2, padding=1, output_padding=1)),
    "transposed, groups": (FLAT, lambda: nn.ConvTranspose2d(2, 4, 2, groups=2, stride=2)),
    "volumes": (DEEP, lambda: nn.Sequential(nn.Conv3d(1, 2, 3), nn.ConvTranspose3d(2, 1, 2, 2))),
    "lines": (LINE, lambda: nn.Conv1d(3, 4, 3, padding=1)),
    "group norm": (FLAT, lambda: nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.Tanh())),
    "instance norm": (FLAT, lambda: nn.Sequential(nn.InstanceNorm2d(2, affine=True), nn.Tanh())),
    "instance norm of volumes": (DEEP, lambda: nn.InstanceNorm3d(1, affine=True)),
    "linear": (LINE, lambda: nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 2))),
    "linear, flat": (LINE, lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 2))),
    "twice": (FLAT, Twice),
}
ONE_BY_ONE = {
    "unknown": (FLAT, lambda: nn.Sequential(nn.Conv2d(2, 2, 3), nn.PReLU(2))),
    "our own": (FLAT, lambda: nn.Sequential(nn.Conv2d(2, 2, 3), Scaled())),
    "layer norm": (LINE, lambda: nn.Sequential(nn.LayerNorm(8), nn.Tanh())),
    "batch norm": (FLAT, lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 1, 3))),
    "running norm": (
        FLAT,
        lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True),
    ),
    "reflecting": (FLAT, lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect")),
    "same": (FLAT, lambda: nn.Conv2d(2, 3, 3, padding="same")),
    "standardised": (FLAT, lambda: Standardised(2, 3, 3)),
    "weight norm": (FLAT, lambda: parametrizations.weight_norm(nn.Conv2d(2, 3, 3))),
    "weight of another name": (FLAT, split_weight),
    "tied": (FLAT, Tied),
    "in place": (FLAT, lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True))),
    "hasty": (FLAT, Hasty),
}


def energy(outputs, masks):
    """A loss of every image that knows of no mask."""
    return outputs.flatten(1).tanh().square().sum(1)


def toy(made):
    shape, build = made
    generator = torch.Generator().manual_seed(3)
    torch.default_generator.manual_seed(3)
    network = build().double()
    with torch.no_grad():
        for each in network.parameters():  # norms are not to start as the identity
            each.add_(0.3 * torch.randn(each.shape, generator=generator, dtype=torch.float64))
    images = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
    return network, images, torch.zeros(4, 1)


@pytest.mark.parametrize("kind", TOGETHER)
def test_layers_that_we_take_apart(kind, monkeypatch):
    network, images, masks = toy(TOGETHER[kind])
    monkeypatch.setattr(Gradients, "_one_by_one", lambda *_: pytest.fail("it was not taken apart"))
    assert_same(network, images, masks, energy)


@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_other_layers_one_by_one(kind):
    """Slower, and right: also where only a look at the type would say that we know the layer."""
    network, images, masks = toy(ONE_BY_ONE[kind])
    assert_same(network, images, masks, energy)


def test_both_ways_agree_on_our_network():
    """Norms and head, whose gradients torch alone cannot take for one image without dying."""
    network = UNetArchitecture(base_channels=8).build(seed=0).double()
    gradients = Gradients(network, FEW.install(network).names)
    images, masks = (each.double() for each in pictures(2))
    rows = gradients(images, masks)
    torch.testing.assert_close(gradients._one_by_one(images, masks), rows, rtol=1e-9, atol=1e-12)


def test_some_parameters_in_any_order():
    network = UNetArchitecture(base_channels=8).build(seed=0).double()
    names = ["final_conv.bias", "conv_0.conv_0.adn.N.weight", "final_conv.weight"]
    images, masks = (each.double() for each in pictures(2))
    assert_same(network, images, masks, task_loss, names)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_opacus_says_the_same():
    from opacus import grad_sample

    network = UNetArchitecture(base_channels=8).build(seed=0).double()
    images, masks = (each.double() for each in pictures(3))
    names = [name for name, _ in network.named_parameters()]
    mine = Gradients(network, names)(images, masks)
    # Opacus 1.6 reads images as if their last axis were the last in memory; with channels last, as
    # our networks have them, its gradients of convolutions are wrong, and it does not say so.
    plain = copy.deepcopy(network).to(memory_format=torch.contiguous_format)
    theirs = grad_sample.GradSampleModule(plain, loss_reduction="sum")
    task_loss(theirs(images), masks).sum().backward()
    found = dict(theirs._module.named_parameters())
    want = torch.cat([found[name].grad_sample.flatten(1) for name in names], dim=1)
    torch.testing.assert_close(mine, want, rtol=1e-9, atol=1e-12)


def state_of(network):
    return [
        *((name, each.requires_grad, each.grad) for name, each in network.named_parameters()),
        *((name, each.training) for name, each in network.named_modules()),
        *(len(each._forward_hooks) for each in network.modules()),
    ]


@pytest.mark.parametrize("kind", ["together", "one by one"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_network_is_left_as_it_was(kind, fails):
    """Modes, hooks and what is frozen; also when the loss raises."""
    layers = [nn.Conv2d(3, 2, 3), nn.GroupNorm(1, 2), nn.Dropout(0.5), nn.Conv2d(2, 1, 3)]
    network = nn.Sequential(*layers, *([nn.PReLU()] if kind == "one by one" else []))
    network[0].weight.requires_grad_(False)
    network[1].eval()  # in the middle of a network that trains
    before = state_of(network)
    images, masks = pictures(2)
    names = ["0.weight", "1.weight", *(["4.weight"] if kind == "one by one" else [])]

    def loss(outputs, masks):
        assert not network[2].training
        if fails:
            raise ZeroDivisionError
        return energy(outputs, masks)

    if fails:
        with pytest.raises(ZeroDivisionError):
            Gradients(network, names, loss)(images, masks)
    else:
        with torch.no_grad():
            found = Gradients(network, names, loss)(images, masks)
        assert not found.requires_grad
    assert state_of(network) == before


def test_names_that_are_not_there():
    network = nn.Conv2d(1, 1, 3)
    with pytest.raises(InvalidValueError, match="no parameter 'wieght'"):
        Gradients(network, ["weight", "wieght"])
    with pytest.raises(InvalidValueError, match="name a parameter"):
        Gradients(network, [])
