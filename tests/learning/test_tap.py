"""The tap: exact at any layer of any network, and the network is left as it was found."""

import copy

import pytest
import torch
from monai.networks.nets import BasicUNet, UNet
from torch import nn

from canal.errors import InvalidValueError
from canal.learning.networks import Tap, task_loss


class HandMade(nn.Module):
    """What a hospital may bring: batch norm, dropout, ReLU in place, a skip, an unused head."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        )
        self.down = nn.MaxPool2d(2)
        self.middle = nn.Sequential(
            nn.Conv2d(6, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU(inplace=True)
        )
        self.dropout = nn.Dropout(0.5)
        self.up = nn.Upsample(scale_factor=2)
        self.head = nn.Conv2d(16, 1, 1)
        self.unused = nn.Conv2d(1, 1, 1)
        self.side = nn.Conv2d(10, 1, 1)
        self.pair = Pair()
        self.pooled = nn.AdaptiveAvgPool2d(1)
        self.flat = nn.Flatten()

    def forward(self, images):
        skip = self.encoder(images)
        deep = self.dropout(self.middle(self.down(skip)))
        self.side(deep)  # an output that the loss does not see
        self.pair(deep)
        self.flat(self.pooled(deep))
        return self.head(torch.cat([skip, self.up(deep)], dim=1))


class Pair(nn.Module):
    def forward(self, features):
        return features, features


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, images):
        return self.layer(self.layer(images))


def hand_made():
    network = HandMade()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return network


def basic_unet():
    return BasicUNet(2, 1, 1, features=(8, 8, 16, 16, 32, 8), norm=("group", {"num_groups": 4}))


def residual_unet(dims):
    return UNet(dims, 1, 1, channels=(4, 8, 12), strides=(2, 2), num_res_units=2)


# name: (make, layer, modules that run before the layer, size)
NETWORKS = {
    "BasicUNet": (basic_unet, "down_4", "down_3", (32, 32)),
    "residual UNet": (
        lambda: residual_unet(2),
        "model.1.submodule.1.submodule",
        "model.0",
        (16, 24),
    ),
    "UNet in 3D": (lambda: residual_unet(3), "model.1.submodule.0", "model.0", (8, 8, 12)),
    "hand-made": (hand_made, "middle", "encoder", (12, 16)),
    "hand-made, before a ReLU in place": (hand_made, "middle.1", "encoder", (12, 16)),
}


@pytest.fixture(params=list(NETWORKS))
def case(request):
    """Network in float64, tap, a module of the encoder, images, masks."""
    make, layer, encoder, size = NETWORKS[request.param]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        network = make().double()
        images = torch.randn(5, 1, *size, dtype=torch.float64)
        masks = (torch.rand(5, 1, *size) < 0.4).double()
    network.eval()
    return network, layer, network.get_submodule(encoder), images, masks


def hooked(network, layer, images):
    """The layer's output, by a forward hook and a full pass."""
    caught = []
    module = network.get_submodule(layer)
    handle = module.register_forward_hook(lambda m, i, out: caught.append(out.clone()))
    with torch.no_grad():
        network(images)
    handle.remove()
    return caught[0]


def reference_energy(network, layer, images, masks):
    """One image at a time, the whole graph, and autograd's own gradient of the layer's output."""
    network = copy.deepcopy(network).eval()
    for module in network.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # otherwise the hook's tensor is overwritten
    caught = []

    def keep(module, inputs, output):
        output.retain_grad()
        caught.append(output)

    network.get_submodule(layer).register_forward_hook(keep)
    rows = []
    for image, mask in zip(images, masks, strict=True):
        task_loss(network(image[None]), mask[None]).sum().backward()
        gradient = caught.pop().grad[0]
        rows.append((gradient**2).sum(dim=tuple(range(1, gradient.ndim))) / gradient[0].numel())
    return torch.stack(rows)


def test_features_are_the_layers_output(case):
    network, layer, _, images, _ = case
    found = Tap(network, layer).features(images)
    assert not found.requires_grad
    assert torch.equal(found, hooked(network, layer, images))


def test_energy_is_autograds_image_by_image(case):
    network, layer, _, images, masks = case
    found = Tap(network, layer).gradient_energy(images, masks)
    want = reference_energy(network, layer, images, masks)
    assert want.min(dim=0).values.max() > 0  # there is something to compare
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-25)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_energy_does_not_depend_on_the_batch(case, batch):
    network, layer, _, images, masks = case
    tap = Tap(network.train(), layer)  # in train mode batch norm would mix the images
    together = tap.gradient_energy(images, masks)
    parts = zip(images.split(batch), masks.split(batch), strict=True)
    apart = torch.cat([tap.gradient_energy(x, y) for x, y in parts])
    assert (together - apart).abs().max() <= 1e-12 * together.max()


def test_energy_with_a_loss_of_ones_own():
    """Half the squared distance from the masks, at the last layer: the gradient is the distance."""
    network = hand_made().eval()
    images = torch.randn(3, 1, 8, 8, generator=torch.manual_seed(0))
    masks = torch.ones(3, 1, 8, 8)

    def loss(logits, truth):
        return (logits - truth).square().flatten(1).sum(1) / 2

    found = Tap(network, "head").gradient_energy(images, masks, loss)
    want = (network(images) - masks).square().flatten(2).mean(2)
    torch.testing.assert_close(found, want.detach())


def test_the_pass_stops_at_the_tap(case):
    network, layer, _, images, _ = case
    module, ran = network.get_submodule(layer), []
    for name, leaf in network.named_modules():
        if not list(leaf.children()):
            leaf.register_forward_pre_hook(lambda m, i, name=name: ran.append(name))
    network(images)
    everything = list(ran)
    ran.clear()
    Tap(network, layer).features(images)
    inside = {f"{layer}.{name}".rstrip(".") for name, _ in module.named_modules()}
    assert ran
    assert ran == everything[: len(ran)]
    assert ran[-1] in inside
    assert inside.isdisjoint(everything[len(ran) :])
    assert len(everything) > len(ran)  # something was left to skip


def test_no_backward_pass_through_the_encoder(case):
    network, layer, encoder, images, masks = case
    seen = []
    encoder.register_full_backward_hook(lambda *call: seen.append(call))
    images = images.requires_grad_()
    task_loss(network(images), masks).sum().backward()
    assert seen  # the hook does fire where a gradient passes
    network.zero_grad()
    images.grad = None
    seen.clear()
    recorded = []
    encoder.register_forward_hook(lambda m, i, output: recorded.append(output.requires_grad))
    Tap(network, layer).gradient_energy(images, masks)
    assert not seen
    assert recorded == [False]  # nor was there a graph to go through
    assert images.grad is None
    assert all(weight.grad is None for weight in network.parameters())


def snapshot(network):
    """Everything that a visitor might leave behind."""
    return (
        {
            name: (
                module.training,
                [list(v) for k, v in vars(module).items() if k.endswith("_hooks")],
                sorted(vars(module)),
            )
            for name, module in network.named_modules()
        },
        [None if p.grad is None else p.grad.clone() for p in network.parameters()],
        {name: value.clone() for name, value in network.state_dict().items()},
    )


def assert_same(before, after):
    assert before[0] == after[0]
    for old, new in zip(before[1], after[1], strict=True):
        assert (old is None) == (new is None)
        assert old is None or torch.equal(old, new)
    assert all(torch.equal(value, after[2][name]) for name, value in before[2].items())


@pytest.mark.parametrize("grad_enabled", [True, False])
@pytest.mark.parametrize("failing", [None, "loss", "network"])
def test_everything_is_left_as_found(case, grad_enabled, failing):
    network, layer, encoder, images, masks = case
    network.train()
    encoder.eval()  # a frozen encoder in a network that is being trained
    for number, weight in enumerate(network.parameters()):
        weight.grad = torch.full_like(weight, number) if number % 2 else None
    encoder.register_forward_hook(lambda *call: None)
    network.get_submodule(layer).register_forward_hook(lambda *call: None)

    def loss(logits, truth):
        if failing == "loss":
            raise ArithmeticError("on purpose")
        return task_loss(logits, truth)

    if failing == "network":
        images = images[:, :0]  # no channels: the first convolution refuses
    before = snapshot(network)
    tap = Tap(network, layer)
    with torch.set_grad_enabled(grad_enabled):
        if failing == "network":
            with pytest.raises((RuntimeError, IndexError)):
                tap.features(images)
        else:
            tap.features(images)
        assert torch.is_grad_enabled() == grad_enabled
        if failing:
            with pytest.raises((ArithmeticError, RuntimeError, IndexError)):
                tap.gradient_energy(images, masks, loss)
        else:
            assert not tap.gradient_energy(images, masks, loss).requires_grad
        assert torch.is_grad_enabled() == grad_enabled
    assert_same(before, snapshot(network))


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        ("midle", r"no layer 'midle'; did you mean middle"),
        ("encoder.7", r"did you mean encoder\.\d"),
        ("", "no layer ''"),
    ],
)
def test_an_unknown_layer_is_refused_with_a_suggestion(layer, sentence):
    with pytest.raises(InvalidValueError, match=sentence):
        Tap(hand_made(), layer)


def test_a_network_without_layers_has_none_to_suggest():
    with pytest.raises(InvalidValueError, match="it has no layers"):
        Tap(nn.ReLU(), "conv")


IMAGES, MASKS = torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8)


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        ("unused", "'unused' is not run"),
        ("pair", "gives <class 'tuple'>, not a feature map"),
        ("flat", "gives 2-dimensional, not a feature map"),
    ],
)
def test_a_layer_that_cannot_be_tapped(layer, sentence):
    tap = Tap(hand_made(), layer)
    before = snapshot(tap.network)
    for call in (lambda: tap.features(IMAGES), lambda: tap.gradient_energy(IMAGES, MASKS)):
        with pytest.raises(InvalidValueError, match=sentence):
            call()
        assert torch.is_grad_enabled()
    assert_same(before, snapshot(tap.network))


def test_a_layer_that_runs_twice_has_no_one_gradient():
    with pytest.raises(InvalidValueError, match="runs more than once"):
        Tap(Twice(), "layer").gradient_energy(IMAGES, MASKS)
    assert torch.is_grad_enabled()


def test_a_layer_that_the_loss_does_not_see():
    with pytest.raises(InvalidValueError, match="does not depend on layer 'side'"):
        Tap(hand_made(), "side").gradient_energy(IMAGES, MASKS)


@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        (lambda logits, masks: task_loss(logits, masks).mean(), r"\(\)"),
        (lambda logits, masks: logits - masks, r"\(2, 1, 8, 8\)"),
        (lambda logits, masks: task_loss(logits, masks)[:1], r"\(1,\)"),
    ],
)
def test_a_loss_must_give_one_value_for_each_image(loss, shape):
    with pytest.raises(InvalidValueError, match=f"shape {shape} for 2 images"):
        Tap(hand_made(), "middle").gradient_energy(IMAGES, MASKS, loss)


def test_a_loss_without_a_gradient_is_refused():
    with pytest.raises(InvalidValueError, match="does not depend on layer"):
        Tap(hand_made(), "middle").gradient_energy(
            IMAGES, MASKS, lambda logits, masks: masks.flatten(1).sum(1)
        )


def test_a_norm_that_mixes_images_even_in_eval_mode_is_refused():
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, track_running_stats=False))
    network.eval()
    images = torch.randn(2, 1, 4, 4, generator=torch.manual_seed(0))
    assert not torch.allclose(network(images)[:1], network(images[:1]))  # the reason
    with pytest.raises(InvalidValueError, match="'1' normalises over the batch even in eval mode"):
        Tap(network, "0")
