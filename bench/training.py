"""What a site runs: training steps, the tap, and loading."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from bench.ratio import Ratio, compare
from canal.data.arrays import Arrays
from canal.data.decode import decode_image, decode_mask
from canal.data.load import load_cases
from canal.data.readers import read
from canal.data.synthetic import generate, write
from canal.learning.augmentation import deformed
from canal.learning.networks import BOTTLENECK, Tap, UNetArchitecture, task_loss, to_float
from canal.learning.settings import TrainingSettings
from canal.learning.training import Batches, fit

SIZE = (64, 64)


def ratios() -> Iterator[Ratio]:
    """Every comparison of data, models and teachers."""
    yield step_against_bare_loop()
    yield norm_against_torchs()
    yield deformation_against_monai()
    yield gradient_energy_against_single_images()
    yield features_against_encoder()
    yield second_epoch_against_decoding()


def _arrays(count: int) -> Arrays:
    made = generate(count, size=SIZE)
    return Arrays(made.ids, made.images, made.masks, "bench")


def step_against_bare_loop() -> Ratio:
    """Twenty steps of our loop, augmentation, metrics and a saved state included."""
    arrays, steps = _arrays(64), 20
    settings = TrainingSettings(steps=steps, save_every=steps)
    batch = Batches(arrays, batch_size=16, augment=False, seed=0)[0]
    folder = Path(tempfile.mkdtemp())

    def ours() -> None:
        shutil.rmtree(folder)
        batches = Batches(arrays, batch_size=16, augment=True, seed=0)
        fit(UNetArchitecture().build(0), batches, settings, folder)

    def bare() -> None:
        network = UNetArchitecture().build(0)
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            task_loss(network(batch.images), batch.masks).mean().backward()
            optimizer.step()

    try:
        return compare(
            "training step, 16 images of 64 px",
            ours,
            "bare PyTorch loop, same batch in memory",
            bare,
            target=0.95,
            rounds=4,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    arrays = _arrays(count)
    return to_float(torch.from_numpy(arrays.images)), torch.from_numpy(arrays.masks).float()


def norm_against_torchs() -> Ratio:
    """A training step of the default network, against the same with torch's own instance norm."""
    batch = Batches(_arrays(16), batch_size=16, augment=False, seed=0)[0]
    ours, theirs = (UNetArchitecture().build(0) for _ in range(2))
    for module in list(theirs.modules()):
        for name, norm in module.named_children():
            if isinstance(norm, torch.nn.GroupNorm):
                plain = torch.nn.InstanceNorm2d(norm.num_channels, norm.eps, affine=True)
                plain.load_state_dict(norm.state_dict())
                setattr(module, name, plain)

    def step(network: torch.nn.Module) -> None:
        network.zero_grad(set_to_none=True)
        task_loss(network(batch.images), batch.masks).mean().backward()

    return compare(
        "forward and backward, instance norm by the kernel of group norm",
        lambda: step(ours),
        "torch.nn.InstanceNorm2d",
        lambda: step(theirs),
        target=1.1,
        rounds=8,
    )


def deformation_against_monai() -> Ratio:
    """A batch turned, stretched, bent and lit together, or by MONAI's transforms one by one."""
    from monai.transforms import (
        Compose,
        RandAdjustContrastd,
        RandAffined,
        RandGaussianNoised,
        RandGridDistortiond,
    )

    images, masks = _batch(8)
    both = ("image", "mask")
    how = {"prob": 1.0, "mode": ("bilinear", "nearest"), "padding_mode": "reflection"}
    one = Compose(
        [
            RandAffined(both, rotate_range=0.5, scale_range=(0.35, 0.35), shear_range=0.1, **how),
            RandGridDistortiond(both, num_cells=4, distort_limit=0.2, **how),
            RandAdjustContrastd("image", prob=1.0, gamma=(0.67, 1.5)),
            RandGaussianNoised("image", prob=1.0, std=0.05),
        ]
    )
    rng = np.random.default_rng(0)
    return compare(
        "deformation of 8 images of 64 px, with their masks",
        lambda: deformed(images, masks, 1.0, rng),
        "MONAI's transforms, image by image",
        lambda: [one({"image": i, "mask": m}) for i, m in zip(images, masks, strict=True)],
        target=5,
        rounds=10,
    )


def gradient_energy_against_single_images() -> Ratio:
    """The same energies, image by image or all at once."""
    images, masks = _batch(32)
    tap = Tap(UNetArchitecture().build(0), BOTTLENECK)
    return compare(
        "gradient energy, batch of 32 at 64 px",
        lambda: tap.gradient_energy(images, masks),
        "loop of batch size 1",
        lambda: [tap.gradient_energy(i[None], m[None]) for i, m in zip(images, masks, strict=True)],
        target=2,
        rounds=5,
    )


def features_against_encoder() -> Ratio:
    """The pass stops at the tap, so it costs what the encoder costs, up to noise."""
    images, _ = _batch(32)
    network = UNetArchitecture().build(0).eval()
    tap = Tap(network, BOTTLENECK)
    encoder = torch.nn.Sequential(
        *(getattr(network, name) for name in ("conv_0", "down_1", "down_2", "down_3", "down_4"))
    )

    def alone() -> torch.Tensor:
        with torch.no_grad():
            return encoder(images)

    return compare(
        "features at the tap, 32 images of 64 px",
        lambda: tap.features(images),
        "the encoder alone",
        alone,
        target=0.95,
        rounds=15,
    )


def second_epoch_against_decoding() -> Ratio:
    """All images once more, from the cache or from their files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "data", 150, size=(128, 128))
        cases = read(folder / "data").cases
        arrays = load_cases(cases, size=SIZE, channels=3, folder=folder / "cache")
        order = np.random.default_rng(0).permutation(len(cases))

        def cached() -> int:
            return sum(
                int(arrays.images[order[i : i + 16]].size + arrays.masks[order[i : i + 16]].size)
                for i in range(0, len(order), 16)
            )

        def decoded() -> int:
            return sum(
                decode_image(cases[i], size=SIZE, channels=3).size
                + decode_mask(cases[i], size=SIZE).size
                for i in order
            )

        return compare(
            "second epoch's loading, 150 images",
            cached,
            "decoding the files again",
            decoded,
            target=20,
            rounds=5,
        )
