"""Pictures that show nothing."""

import torch


def pictures(count, size=(32, 32), channels=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, channels, *size, generator=generator) * 2 - 1
    masks = (torch.rand(count, 1, *size, generator=generator) > 0.7).float()
    return images, masks
