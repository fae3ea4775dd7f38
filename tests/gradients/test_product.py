"""A product beside a convolution: nothing at first, and folded in it computes the same."""

import pytest
import torch
from torch import nn

from canal.errors import InvalidValueError
from canal.gradients.target_modules import Product

LAYERS = {
    "plain": (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 9, 9)),
    "stride": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1, dilation=2), (3, 9, 9)),
    "no bias": (lambda: nn.Conv2d(3, 4, 1, bias=False), (3, 9, 9)),
    "reflecting": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (3, 9, 9)),
    "same": (lambda: nn.Conv2d(3, 4, 3, padding="same"), (3, 9, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 2, stride=2), (3, 5, 5)),
    "transposed, padded": (
        lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1, dilation=2),
        (3, 5, 5),
    ),
    "lines": (lambda: nn.Conv1d(3, 4, 3), (3, 9)),
    "volumes": (lambda: nn.Conv3d(3, 4, 3), (3, 5, 5, 5)),
    "volumes, transposed": (lambda: nn.ConvTranspose3d(3, 4, 2, stride=2), (3, 3, 3, 3)),
}


def made(kind, rank=2):
    """A layer, its product, and images to look at."""
    torch.default_generator.manual_seed(1)
    build, shape = LAYERS[kind]
    layer = build()
    generator = torch.Generator().manual_seed(2)
    return layer, Product(layer, rank, generator), torch.randn(2, *shape, generator=generator)


@pytest.mark.parametrize("kind", LAYERS)
def test_nothing_changes_at_first(kind):
    layer, product, images = made(kind)
    torch.testing.assert_close(product(images), layer(images), rtol=0, atol=0)
    assert product.inner.weight.abs().min() > 0, "else no gradient would ever reach the other"


@pytest.mark.parametrize("kind", LAYERS)
def test_folded_it_computes_the_same(kind):
    layer, product, images = made(kind)
    before = layer(images).detach()
    with torch.no_grad():
        product.outer.weight.normal_(generator=torch.Generator().manual_seed(3))
        taught = product(images)
        folded = product.folded()(images)
    assert (taught - before).abs().max() > 0.1
    torch.testing.assert_close(folded, taught, rtol=1e-5, atol=1e-5)


def test_a_product_has_few_parameters():
    """From nine values of 3 channels to 2, and from these to 4."""
    _, product, _ = made("plain")
    assert product.inner.weight.numel() + product.outer.weight.numel() == 2 * 3 * 9 + 4 * 2


def test_a_product_is_of_the_kind_of_its_layer():
    """A double beside doubles, and on the same device."""
    layer = nn.Conv2d(3, 4, 3).double()
    product = Product(layer, 1, torch.Generator().manual_seed(0))
    assert {each.dtype for each in product.parameters()} == {torch.float64}
    assert product(torch.ones(1, 3, 5, 5, dtype=torch.float64)).dtype == torch.float64


def test_a_convolution_in_groups_is_refused():
    with pytest.raises(InvalidValueError, match="in groups has no product"):
        Product(nn.Conv2d(2, 4, 3, groups=2), 1, torch.Generator())
