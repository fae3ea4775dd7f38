"""Nobody in anybody else's gradient, to the last bit; and what lets others in is found."""

import pytest
import torch
from torch import nn

from canal.errors import InvalidValueError
from canal.gradients.gradients import Gradients, check_rows
from canal.gradients.start import share
from canal.gradients.subspace import Moments
from canal.gradients.target_modules import Adapter
from canal.learning.networks import UNetArchitecture
from gradients.pictures import pictures
from gradients.place import FEW


def unet_gradients():
    network = UNetArchitecture(base_channels=8).build(seed=0)
    return Gradients(network, FEW.install(network).names)


@pytest.mark.parametrize("chunk", [1, 4, 16])
def test_rows_of_our_network_are_independent(chunk):
    check_rows(unet_gradients(), *pictures(chunk))


class Mixed(nn.Module):
    """Lets every image into every other: what a batch norm does while it trains."""

    def __init__(self, share):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)
        self.share = share

    def forward(self, images):
        between = self.first(images).relu()
        return self.last(between - self.share * between.mean(dim=0))


@pytest.mark.parametrize("share", [1.0, 1e-6])
def test_negative_control_images_that_mix(share):
    network = Mixed(share)
    images, masks = pictures(4)
    with pytest.raises(InvalidValueError, match="last bits"):
        check_rows(Gradients(network, ["first.weight", "last.bias"]), images, masks)
    network.share = 0.0
    check_rows(Gradients(network, ["first.weight", "last.bias"]), images, masks)


class Dazzled(nn.Module):
    """Notices a bright image beside others, and neither their order nor blanks."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, images):
        return self.layer(images) * (1 + 1e-6 * (images.abs().amax() > 2))


def test_negative_control_a_bright_image_beside():
    images, masks = pictures(4)
    with pytest.raises(InvalidValueError, match="last bits"):
        check_rows(Gradients(Dazzled(), ["layer.weight"]), images, masks)


class Placed(nn.Module):
    """An image is treated otherwise in the third place: what splitting work unevenly does."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, images):
        scale = torch.ones(len(images), 1, 1, 1)
        scale[2] += 1e-6
        return self.layer(images) * scale


def test_negative_control_a_place_that_is_special():
    """Found even where the recipient has one image only, which then fills a batch alone."""
    gradients = Gradients(Placed(), ["layer.weight"])
    with pytest.raises(InvalidValueError, match="last bits"):
        check_rows(gradients, *pictures(4))
    one = [each.repeat(4, 1, 1, 1) for each in pictures(1)]
    with pytest.raises(InvalidValueError, match="last bits"):
        check_rows(gradients, *one)


@pytest.mark.slow  # two threads that wait for each other
@pytest.mark.parametrize("chunk", [3, 4])
def test_what_passes_the_check_is_the_same_in_any_company(chunk):
    """On two threads, where a batch of three falls apart unevenly: refused, or right."""
    torch.set_num_threads(2)
    gradients, (images, masks) = unet_gradients(), pictures(chunk)
    try:
        check_rows(gradients, images, masks)
    except InvalidValueError:
        return
    rows, generator = gradients(images, masks), torch.Generator().manual_seed(5)
    for _ in range(3):
        order = torch.randperm(chunk, generator=generator)
        assert torch.equal(gradients(images[order], masks[order]), rows[order])
        others, truths = pictures(chunk, seed=int(order[0]) + 7)
        others[order[0]], truths[order[0]] = images[order[0]], masks[order[0]]
        assert torch.equal(gradients(others, truths)[order[0]], rows[order[0]])


def test_an_image_that_breaks_the_network_breaks_nobody_elses_row():
    gradients, (images, masks) = unet_gradients(), pictures(4)
    rows = gradients(images, masks)
    for bad in (float("nan"), float("inf"), 1e30):
        broken = images.clone()
        broken[1] = bad
        found = gradients(broken, masks)
        assert torch.equal(found[[0, 2, 3]], rows[[0, 2, 3]])


class Wavering(Gradients):
    """Adds up in another order each time, as threads may."""

    def __call__(self, images, masks):
        self.calls = getattr(self, "calls", 0) + 1
        return super().__call__(images, masks) * (1 + 1e-6 * self.calls)


def test_negative_control_bits_that_change():
    gradients = Wavering(Mixed(0.0), ["first.weight", "last.bias"])
    with pytest.raises(InvalidValueError, match="OMP_NUM_THREADS=1"):
        check_rows(gradients, *pictures(4))


def test_rows_in_many_directions_depend_on_their_image_alone(init, recipient):
    """Factors of odd widths once let the rows beside them in, and many directions were refused."""
    there = share(init, recipient, Adapter(), "flat", directions=2001, chunk=4)
    assert len(there.start.public.basis) == 2001


@pytest.mark.parametrize("chunk", [2, 3])
def test_images_of_odd_sizes_keep_apart_in_directions(chunk):
    """Positions that do not fill lines of the cache once let the rows beside them in."""
    network = UNetArchitecture(base_channels=8).build(seed=0)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(chunk, 3, 48, 40, generator=generator)
    masks = (torch.rand(chunk, 1, 48, 40, generator=generator) > 0.7).float()
    names = [name for name, _ in network.named_parameters()]
    moments = Moments([each.shape for each in network.parameters()])
    moments.add(Gradients(network, names)(images, masks))
    check_rows(Gradients(network, names, basis=moments.basis(500)), images, masks)
