"""What a round costs a site: every patient's own gradient, clipped, on the lattice, added up."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.ratio import Ratio, compare
from canal.adapters.adapter import Adapter
from canal.adapters.basis import Moments
from canal.adapters.gradients import Gradients
from canal.adapters.norm import apart
from canal.data.synthetic import generate
from canal.models.loss import task_loss
from canal.models.unet import UNetArchitecture
from canal.teachers.batches import to_float

PATIENTS = 64
# What is taught, and in how many directions of a public basis; 0 for the parameters as they are.
TAUGHT = {
    "norms and head": (("norms", "head"), 0),
    "all weights": (("*",), 0),
    "all weights in 3,000 directions": (("*",), 3000),
    "all weights in 9,400 directions": (("*",), 9400),
}


def ratios() -> Iterator[Ratio]:
    """Every comparison of adapters."""
    yield norm_against_torch()
    for name, (parts, directions) in TAUGHT.items():
        yield gradients_against_a_loop(name, parts, directions)


def norm_against_torch() -> Ratio:
    """A norm of 32 images with channels last, there and back; torch's gives no image's own."""
    norm = torch.nn.GroupNorm(8, 8)
    images = torch.randn(32, 8, 64, 64).contiguous(memory_format=torch.channels_last)
    images.requires_grad_()
    upstream = torch.randn_like(images)

    def ours() -> object:
        with apart(norm, ["weight", "bias"]) as weights:
            out = norm(images)
        return torch.autograd.grad(out, [images, *(each for _, each in weights)], upstream)

    def theirs() -> object:
        return torch.autograd.grad(norm(images), [images, norm.weight, norm.bias], upstream)

    what = "group norm of 32 images, channels last, with every image's own gradients"
    return compare(what, ours, "torch's, with their sum", theirs, target=1.5)


def gradients_against_a_loop(name: str, parts: tuple[str, ...], directions: int) -> Ratio:
    """The gradients of 64 patients, 32 a pass, or one after the other with what torch has."""
    made = generate(PATIENTS, size=(64, 64))
    images = to_float(torch.from_numpy(made.images))
    masks = torch.from_numpy(made.masks).float()
    network = UNetArchitecture(base_channels=8).build(0).eval()
    coordinates = Adapter(parts).install(network)
    gradients, basis = Gradients(network, coordinates.names), None
    if directions:
        moments = Moments(coordinates.shapes)
        moments.add(gradients(images[:32], masks[:32]))
        basis = moments.basis(directions)
        gradients = Gradients(network, coordinates.names, basis=basis)
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
            row_of = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, wanted)])
            found.append(row_of if basis is None else basis.project(row_of[None])[0])
        return found

    what = f"gradients of {PATIENTS} patients at 64 px, {len(coordinates):,} parameters ({name})"
    return compare(what, ours, "loop over patients", loop, target=3, rounds=4)
