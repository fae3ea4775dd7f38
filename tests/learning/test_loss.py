"""The loss: MONAI's, image by image."""

import pytest
import torch
from monai.losses import DiceCELoss

from canal.learning.networks import task_loss


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


def test_by_hand():
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
