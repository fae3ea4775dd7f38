"""The U-Net, its digest, the loss image by image, the tap into any network, and the device."""

import copy

import pytest
import torch
from monai.losses import DiceCELoss
from monai.networks.nets import BasicUNet, UNet
from torch import nn

from canal.errors import InvalidValueError
from canal.learning.networks import (
    BOTTLENECK,
    Tap,
    UNetArchitecture,
    best,
    home,
    task_loss,
    variation,
    weights_digest,
)
from canal.learning.training import Batch

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


def problem(*size, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, 1, *size, generator=generator, dtype=dtype) * 3
    masks = (torch.rand(5, 1, *size, generator=generator) < 0.3).to(dtype)
    masks[0], masks[1] = 0, 1  # images without a lesion, and without anything else
    return logits, masks


@pytest.mark.parametrize("size", [(16, 24), (8, 8, 12)])
def test_the_mean_is_monais_loss(size):
    logits, masks = problem(*size)
    want = DiceCELoss(sigmoid=True)(logits, masks)
    assert task_loss(logits, masks).shape == (5,)
    torch.testing.assert_close(task_loss(logits, masks).mean(), want, rtol=1e-6, atol=1e-6)


def test_the_loss_by_hand():
    """Logits of zero are probabilities of 1/2: Dice 1 - 2·1/(2 + 2), cross-entropy log 2."""
    masks = torch.tensor([1.0, 1.0, 0.0, 0.0]).reshape(1, 1, 2, 2)
    want = 1 - (2 * 1 + 1e-5) / (2 + 2 + 1e-5) + torch.tensor(2.0).log()
    assert task_loss(torch.zeros(1, 1, 2, 2), masks).item() == pytest.approx(want.item(), abs=1e-6)


def test_no_images_loss_depends_on_another():
    logits, masks = problem(16, 16, dtype=torch.float64)
    together = task_loss(logits, masks)
    alone = torch.cat([task_loss(x[None], y[None]) for x, y in zip(logits, masks, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-14, atol=0)
    jacobian = torch.autograd.functional.jacobian(lambda x: task_loss(x, masks), logits)
    reach = jacobian.abs().flatten(2).sum(2)[..., None].sum(2)  # [loss of i, logits of j]
    assert reach.shape == (5, 5)
    assert (reach.diagonal() > 0).all()
    assert (reach - torch.diag(reach.diagonal()) == 0).all()


def test_better_is_lower():
    _, masks = problem(16, 16)
    right, wrong = 8 * (2 * masks - 1), -8 * (2 * masks - 1)
    # Without a lesion MONAI's smoothing decides the Dice; cross-entropy tells right from wrong.
    assert (task_loss(right, masks) < task_loss(wrong, masks)).all()
    assert (task_loss(right, masks)[1:] < 0.01).all()


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


def test_variation_by_hand():
    features = torch.tensor([[[[3.0]]], [[[5.0]]]])
    assert variation(features) == pytest.approx((1 / 17) ** 0.5)


def test_what_is_the_same_for_all_does_not_vary():
    assert variation(torch.ones(5, 3, 2, 2)) == 0
    assert variation(torch.zeros(5, 3, 2, 2)) == 0


def test_a_gpu_is_taken_where_there_is_one(monkeypatch):
    monkeypatch.delenv("CANAL_DEVICE", raising=False)
    assert best().type == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setenv("CANAL_DEVICE", "cpu")
    assert best().type == "cpu"


@pytest.mark.parametrize("asked", ["teapot", "cuda:99", ""])
def test_what_is_not_there_is_refused(monkeypatch, asked):
    monkeypatch.setenv("CANAL_DEVICE", asked)
    with pytest.raises(InvalidValueError, match="leave it out, or say cpu"):
        best()


def test_what_goes_in_goes_where_the_network_is():
    """On torch's device without memory, which refuses tensors of any other."""
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()).to("meta")
    assert home(network).type == "meta"
    assert home(nn.ReLU()).type == "cpu"
    with pytest.raises(NotImplementedError, match="meta tensor"):
        Tap(network, "1").features(torch.zeros(1, 1, 8, 8))  # computed there, then fetched
    batch = Batch(torch.zeros(1), torch.zeros(1), None, None, 3).to(torch.device("meta"))
    assert (batch.images.device.type, batch.masks.device.type, batch.step) == ("meta", "meta", 3)
