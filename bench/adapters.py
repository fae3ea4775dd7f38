"""What a round costs a site: every patient's own gradient, clipped, on the lattice, added up."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.ratio import Ratio, compare
from canal.adapters.adapter import Adapter
from canal.adapters.gradients import Gradients
from canal.data.synthetic import generate
from canal.models.loss import task_loss
from canal.models.unet import UNetArchitecture
from canal.teachers.batches import to_float

PATIENTS = 64
PARTS = {"norms and head": ("norms", "head"), "all weights": ("*",)}


def ratios() -> Iterator[Ratio]:
    """Every comparison of adapters."""
    for name, parts in PARTS.items():
        yield gradients_against_a_loop(name, parts)


def gradients_against_a_loop(name: str, parts: tuple[str, ...]) -> Ratio:
    """The gradients of 64 patients, 32 a pass, or one after the other with what torch has."""
    made = generate(PATIENTS, size=(64, 64))
    images = to_float(torch.from_numpy(made.images))
    masks = torch.from_numpy(made.masks).float()
    network = UNetArchitecture(base_channels=8).build(0).eval()
    coordinates = Adapter(parts).install(network)
    gradients = Gradients(network, coordinates.names)
    wanted = [dict(network.named_parameters())[each] for each in coordinates.names]

    def ours() -> list[torch.Tensor]:
        halves = zip(images.split(32), masks.split(32), strict=True)
        return [gradients(*half) for half in halves]

    def loop() -> list[torch.Tensor]:
        # A patient's gradient of these parameters, and of no others.
        for each in network.parameters():
            each.requires_grad_(False)
        for each in wanted:
            each.requires_grad_(True)
        found = []
        for row in range(PATIENTS):
            loss = task_loss(network(images[row : row + 1]), masks[row : row + 1]).sum()
            found.append(torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, wanted)]))
        return found

    what = f"gradients of {PATIENTS} patients at 64 px, {len(coordinates):,} parameters ({name})"
    return compare(what, ours, "loop over patients", loop, target=3, rounds=4)
