"""Random signs, passed back: against the Gauss-Newton matrix, written out."""

import torch
from torch import nn

from canal.gradients.gradients import Gradients, Signs

DRAWS = 4000


def gauss_newton(network, images):
    """Its diagonal by definition: the derivative of every logit, one at a time."""
    wanted = list(network.parameters())
    found = torch.zeros(len(images), sum(each.numel() for each in wanted))
    for at in range(len(images)):
        logits = network(images[at : at + 1])
        for logit in logits.flatten():
            parts = torch.autograd.grad(logit, wanted, retain_graph=True)
            row = torch.cat([part.flatten() for part in parts])
            chance = logit.detach().sigmoid()
            found[at] += row.square() * chance * (1 - chance) / logits.numel()
    return found


def test_squares_are_the_diagonal_on_average():
    """Within 12 % in every entry; each has a standard error of at most 2.3 %, so that none is
    further off by chance but with a probability below 1e-5 for all of them."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 1, 1))
    images, names = torch.randn(3, 1, 4, 4), [name for name, _ in network.named_parameters()]
    gradients, masks = Gradients(network, names, Signs()), torch.zeros(3, 1, 4, 4)
    mean = sum(gradients(images, masks).square() for _ in range(DRAWS)) / DRAWS
    torch.testing.assert_close(mean, gauss_newton(network, images), rtol=0.12, atol=1e-9)


def test_labels_do_not_matter_and_the_seed_does():
    network = nn.Conv2d(1, 1, 3, padding=1)
    images, names = torch.randn(2, 1, 4, 4), ["weight"]
    black, white = torch.zeros(2, 1, 4, 4), torch.ones(2, 1, 4, 4)
    rows = Gradients(network, names, Signs(1))(images, black)
    assert torch.equal(Gradients(network, names, Signs(1))(images, white), rows)
    assert not torch.equal(Gradients(network, names, Signs(2))(images, black), rows)
