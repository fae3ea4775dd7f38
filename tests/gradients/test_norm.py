"""Norms with weights for every image: against torch's own, image by image."""

import pytest
import torch
from torch import nn

from canal.gradients.gradients import Gradients, apart, is_plain

LAYOUTS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}


def batch(layout, seed=0):
    """Images far from zero, where a variance from squares would lose its digits."""
    drawn = torch.Generator().manual_seed(seed)
    images = 100 + torch.randn(3, 6, 5, 4, generator=drawn, dtype=torch.float64)
    upstream = torch.randn(3, 6, 5, 4, generator=drawn, dtype=torch.float64)
    return images.contiguous(memory_format=layout), upstream.contiguous(memory_format=layout)


def norm(groups):
    made = nn.GroupNorm(groups, 6).double()
    with torch.no_grad():
        made.weight.copy_(torch.linspace(-1, 2, 6))
        made.bias.copy_(torch.linspace(0, 1, 6))
    return made


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_an_image_at_a_time_gives_the_same(groups, layout):
    made, (images, upstream) = norm(groups), batch(layout)
    images.requires_grad_()
    with apart(made, ["weight", "bias"]) as used:
        out = made(images)
    assert [name for name, _ in used] == ["weight", "bias"]
    got = torch.autograd.grad(out, [images, *(each for _, each in used)], upstream)
    # In torch's, where channels lie last, a variance from squares loses three digits.
    torch.testing.assert_close(out, made(images), rtol=1e-9, atol=1e-9)
    for at in range(len(images)):
        one = images[at : at + 1].detach().contiguous().requires_grad_()
        wanted = [one, made.weight, made.bias]
        theirs = torch.autograd.grad(made(one), wanted, upstream[at : at + 1])
        for mine, other in zip(got, theirs, strict=True):
            torch.testing.assert_close(
                mine[at].reshape(-1), other.reshape(-1), rtol=1e-9, atol=1e-9
            )


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_in_single_precision_no_digit_is_lost_far_from_zero(layout):
    made, (images, _) = norm(2), batch(layout)
    with apart(made.float(), []):
        out = made(images.float())
    torch.testing.assert_close(out.double(), norm(2)(images), rtol=0, atol=1e-4)
    assert out.is_contiguous(memory_format=layout)


def test_afterwards_the_network_is_what_it_was():
    made = nn.Sequential(norm(2))
    with apart(made, []):
        assert "forward" in vars(made[0])
    with pytest.raises(RuntimeError), apart(made, []):
        made(torch.zeros(1, 5, 2, 2))
    assert "forward" not in vars(made[0])


class Told(nn.Module):
    """A norm whose scale another layer says."""

    def __init__(self):
        super().__init__()
        self.says, self.norm = nn.Linear(1, 2, bias=False), nn.GroupNorm(2, 2)
        del self.norm.weight

    def forward(self, images):
        self.norm.weight = self.says.weight.flatten()
        return self.norm(images)


def test_a_scale_that_another_layer_says_keeps_its_gradient():
    """Also where nothing of the norm is asked for."""
    torch.manual_seed(0)
    made, images = Told(), torch.randn(2, 2, 4, 4)
    with apart(made, []):
        mine = torch.autograd.grad(made(images).square().sum(), made.says.weight)[0]
    theirs = torch.autograd.grad(made(images).square().sum(), made.says.weight)[0]
    assert theirs.norm() > 0
    torch.testing.assert_close(mine, theirs)


class Twice(nn.Module):
    """One norm, used two times, and an activation that writes over its output."""

    def __init__(self):
        super().__init__()
        self.norm, self.act = nn.GroupNorm(2, 2), nn.LeakyReLU(inplace=True)

    def forward(self, images):
        return self.norm(self.act(self.norm(images)) + images)


def test_a_norm_that_is_used_twice_has_the_sum_of_both():
    torch.manual_seed(0)
    made = Twice().double()
    images, masks = torch.randn(3, 2, 4, 4).double(), torch.randn(3, 2, 4, 4).double()
    gradients = Gradients(made, ["norm.weight", "norm.bias"], _loss)
    rows = gradients(images, masks)
    for at in range(3):
        loss = _loss(made(images[at : at + 1]), masks[at : at + 1]).sum()
        theirs = torch.autograd.grad(loss, list(made.parameters()))
        torch.testing.assert_close(rows[at], torch.cat(theirs))


def test_what_has_other_statistics_is_left_to_torch():
    assert is_plain(nn.InstanceNorm2d(2, affine=True))
    assert not is_plain(nn.InstanceNorm2d(2, track_running_stats=True))
    assert not is_plain(nn.BatchNorm2d(2))
    assert not is_plain(type("Other", (nn.GroupNorm,), {})(1, 2))
    replaced = nn.GroupNorm(1, 2)
    replaced.forward = torch.tanh
    assert not is_plain(replaced)
    with apart(replaced, []):
        assert replaced.forward is torch.tanh
    assert replaced.forward is torch.tanh


def _loss(out, masks):
    return (out - masks).square().flatten(1).sum(1)
