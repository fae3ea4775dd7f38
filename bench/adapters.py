"""What a round costs a site: every patient's own gradient, clipped, on the lattice, added up."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from bench.memory import mapped, ten_times
from bench.ratio import Ratio, compare
from canal.data.synthetic import generate
from canal.gradients.clip import Clip
from canal.gradients.gradients import Gradients, apart
from canal.gradients.patients import Patients
from canal.gradients.subspace import Moments
from canal.gradients.target_modules import Adapter
from canal.learning.networks import UNetArchitecture, task_loss, to_float
from canal.privacy.lattice import Lattice

PATIENTS = 64
# What is taught, and in how many directions of a public basis; 0 for the parameters as they are.
TAUGHT = {
    "norms and head": (("norms", "head"), 0),
    "all weights": (("*",), 0),
    "all weights in 3,000 directions": (("*",), 3000),
    "all weights in 9,400 directions": (("*",), 9400),
}

# What DP-SGD trains.
TRAINED = {"all weights": ("*",), "last layers": ("upcat_1.*", "final_conv.*")}


def ratios() -> Iterator[Ratio]:
    """Every comparison of adapters."""
    yield norm_against_torch()
    for name, (parts, directions) in TAUGHT.items():
        yield gradients_against_a_loop(name, parts, directions)
    for name, parts in TRAINED.items():
        yield gradients_against_opacus(name, parts)
    yield ten_times("a site's round, all weights", round_from_files, "patients", 1000)


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
    images, masks, network = _crowd()
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


def gradients_against_opacus(name: str, parts: tuple[str, ...]) -> Ratio:
    """The same of what DP-SGD trains, 32 a pass, by us or by the hooks of Opacus."""
    from opacus import GradSampleModule

    images, masks, network = _crowd()
    names = Adapter(parts).install(network).names
    gradients = Gradients(network, names)
    # Opacus 1.6 wants memory to be contiguous.
    theirs = copy.deepcopy(network).to(memory_format=torch.contiguous_format)
    for each, parameter in theirs.named_parameters():
        parameter.requires_grad_(each in names)
    wrapped = GradSampleModule(theirs.train())
    halves = list(zip(images.split(32), masks.split(32), strict=True))

    def ours() -> object:
        return [gradients(*half) for half in halves]

    def hooks() -> object:
        for some, truths in halves:
            wrapped.zero_grad()
            task_loss(wrapped(some), truths).mean().backward()
        return wrapped

    count = sum(each.numel() for each in theirs.parameters() if each.requires_grad)
    what = f"gradients of {PATIENTS} patients for DP-SGD, {count:,} parameters ({name})"
    return compare(what, ours, "Opacus", hooks, target=1.5, rounds=4)


def round_from_files(folder: Path) -> None:
    """What all patients of a site add to a round, every weight of every patient's gradient."""
    network = UNetArchitecture(base_channels=8).build(0).eval()
    coordinates = Adapter().install(network)
    zeros = np.zeros(len(coordinates), dtype=np.int64)
    clip = Clip(np.ones(len(coordinates)), zeros, np.ones(1), 1.0)
    patients = Patients("bench", mapped(folder))
    patients.total(Gradients(network, coordinates.names), clip, Lattice(2.0**-10), 0)


def _crowd() -> tuple[torch.Tensor, torch.Tensor, torch.nn.Module]:
    """Images and masks of all patients, and a network."""
    made = generate(PATIENTS, size=(64, 64))
    images = to_float(torch.from_numpy(made.images))
    network = UNetArchitecture(base_channels=8).build(0).eval()
    return images, torch.from_numpy(made.masks).float(), network
