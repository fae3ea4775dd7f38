"""The public numbers of a gradient release, measured again on the public network and images.

Subspace, clip norms, scales and weights have no noise: they may come from the recipient's images
alone. A reader who has those and the initialisation measures again, with the code that measures
before a release, and compares.

The same machine gives the same bits. On another one the eigenvectors of a subspace may turn where
eigenvalues are close, and no two are then equal, so what is compared is what makes them a public
subspace: they are eigenvectors of the recomputed second moments, with the leading eigenvalues, and
the coordinates that are kept hold as much energy as any others could. Clip norms are measured in
the published subspace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from canal.errors import InvalidValueError, MismatchError
from canal.gradients.mechanism import PatientSum
from canal.gradients.public import Array, Public
from canal.gradients.start import Measured, PublicGradients
from canal.gradients.store import AdapterRelease
from canal.gradients.subspace import Basis, digest
from canal.gradients.target_modules import Coordinates
from canal.gradients.update import Advice
from canal.release.checks import Check, Checks
from canal.release.manifest import Manifest
from canal.release.recompute import PublicInputs, compared, initialisation, seen, word_of_makers

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.gradients.subspace import Moments
    from canal.learning.checkpoint import Checkpoint

# Largest relative difference between machines. Measured as in `canal.release.recompute`, other
# kernels moved the clip norm of whole gradients by at most 1.1e-6, bounds of channels by 1.6e-4,
# scales by 1.8e-4, weights by 7.6e-4. Measured on patients of another hospital, or after a network
# was trained on them for fifty steps, they were off by at least 2e-2, 2.4, 0.4 and 70.
LENGTH, BOUNDS, SCALES, WEIGHTS = 2e-5, 1e-3, 1e-3, 5e-3
# The same of a subspace, in shares of a parameter's energy: other kernels moved it by 1.7e-5, and
# patients or their network by 0.3 at least.
SUBSPACE = 2e-4
# A parameter's share of all energy that is rounding: a bias in front of a norm moves nothing, and
# which of its coordinates are kept is chance.
_ROUNDING = 1e-10
_WHY = "not recomputed; "


def not_recomputed(_: Manifest) -> str:
    """What is taken on trust without public inputs."""
    return word_of_makers("subspace and clip norms")


def recompute(checks: Checks, release: AdapterRelease, known: PublicInputs) -> None:
    """Measure again what is public, and compare.

    Args:
        checks: to which every comparison is added.
        release: whose statement holds.
        known: initialisation and images.
    """
    manifest, plan = release.manifest, release.plan
    made: list[Coordinates] = []
    told: list[tuple[Measured, PublicGradients]] = []

    def parameters(_: Manifest, network: nn.Module, __: Checkpoint) -> str:
        made.append(plan.adapter.install(network))
        if len(made[0]) != plan.parameters:
            raise MismatchError(
                f"the initialisation has {len(made[0])} parameters of these names, and the plan "
                f"{plan.parameters}",
                expected=len(made[0]),
                found=plan.parameters,
            )
        return f", {plan.parameters} parameters"

    def queries() -> str | Check:
        settings = Measured.of(manifest)
        if settings.images and settings.images != known.arrays.digest:
            raise MismatchError(
                "these are not the images that the release says were measured: digest "
                f"{settings.images[:16]}… expected, {known.arrays.digest[:16]}… found; give the "
                "recipient's images as they were (--split, --part, --no-keep-healthy choose some)",
                expected=settings.images,
                found=known.arrays.digest,
            )
        told.append(
            (
                settings,
                PublicGradients(
                    network,
                    made[0],
                    known.arrays,
                    settings.views,
                    settings.chunk,
                    settings.looks,
                    known.progress,
                ),
            )
        )
        many = f"{int(known.arrays.labelled.sum())} labelled images"
        if settings.images:
            return f"{many}, those that were measured"
        return Check("", None, f"{many}; this release does not say which were measured")

    names = [*["subspace"] * bool(plan.directions), "clip norms", "allocation", "microbatch"]
    network, right = initialisation(checks, manifest, known.init, parameters)
    if right:
        checks.look("queries", queries)
    if not told:
        reason = "these are not the images" if right else "this is another initialisation"
        for name in names:
            checks.skip(name, _WHY + reason)
        return
    settings, gradients = told[0]
    stated = release.public(made[0].groups)
    if stated.basis is not None:
        basis = stated.basis
        checks.look("subspace", lambda: _subspace(gradients.moments(), basis, settings))
    again: list[Public] = []

    def norms() -> Check:
        again.append(gradients.measure(plan.allocation, settings.quantile, stated.basis))
        mine = again[0]
        whole = np.array([stated.length]), np.array([mine.length]), LENGTH
        each = stated.bounds, mine.bounds, LENGTH if stated.blocks == 1 else BOUNDS
        return _ratios(f"of the recipient's images (quantile {settings.quantile:g})", whole, each)

    checks.look("clip norms", norms)
    if again:
        checks.look(
            "allocation",
            lambda: _ratios(
                f"that suit {plan.allocation} noise",
                (stated.scales, again[0].scales, SCALES),
                (stated.weights, again[0].weights, WEIGHTS),
            ),
        )
    else:
        checks.skip("allocation", _WHY + "there are no clip norms to compare with")
    checks.look("microbatch", lambda: _microbatch(gradients, stated.basis, settings))
    checks.look(
        "schedule",
        lambda: _schedule(release, PatientSum.of(plan.calibrate(stated.weights), stated), settings),
    )


def _ratios(of: str, *numbers: tuple[Array, Array, float]) -> Check:
    """Compare positive numbers, each with its own; give the comparison that is closest to failing.

    Args:
        of: whose numbers they should be, in words.
        numbers: as published, as computed again, and how far they may be apart.
    """
    found = []
    for stated, again, tolerance in numbers:
        # Equal numbers have a ratio of one exactly.
        ratio = stated / again if stated.shape == again.shape else stated
        found.append(compared(ratio, np.ones_like(again), tolerance, of))
    return max(found, key=lambda each: each.numbers["difference"] / each.numbers["tolerance"])


def _subspace(moments: Moments, basis: Basis, settings: Measured) -> Check | str:
    """See that a published basis is one of the leading directions of public gradients."""
    own = moments.basis(settings.directions, power=settings.power)
    many = f"{len(basis)} directions of the recipient's images' gradients"
    if digest(own) == digest(basis):
        return seen(f"{many}, to the last bit", {"difference": 0.0, "tolerance": SUBSPACE})
    far = _apart(moments, basis, settings)
    worst = max(far, key=lambda what: far[what])
    numbers = far | {"difference": far[worst], "tolerance": SUBSPACE}
    if far[worst] <= SUBSPACE:
        return seen(
            f"{many}, up to {far[worst]:.1e} (another machine may differ by {SUBSPACE:g})", numbers
        )
    raise MismatchError(
        f"these are not the directions of the recipient's images' gradients: {worst} differs by "
        f"{far[worst]:.3g}, on another machine by {SUBSPACE:g} at most; they come from something "
        "else, which may be patients, and nobody was charged for that",
        **numbers,
    )


def _apart(moments: Moments, basis: Basis, settings: Measured) -> dict[str, float]:
    """How far a basis is from one that follows from moments; all of it in shares of energy."""
    import torch

    vector = value = 0.0
    shares, energies, kept, free, start = [], [], [], 0, 0
    for left, right, factors in zip(moments.left, moments.right, basis.factors, strict=True):
        (r, s), n = factors.size, right.shape[0]
        if right.ndim == 1:  # of a vector every entry is on its own
            first, second = torch.ones(1, dtype=torch.float64), right
            for side in (factors.left, factors.right):
                vector = max(vector, _most(side - torch.eye(*side.shape)))
        else:
            first, *of_left = _spectrum(left, factors.left)
            second, *of_right = _spectrum(right, factors.right)
            vector = max(vector, of_left[0], of_right[0])
            value = max(value, of_left[1], of_right[1])
        energy = (first[:, None] * second / (float(first.sum()) or 1.0)).reshape(-1)
        energy /= max(1, moments.count)
        energies.append(energy)
        total = float(energy.sum())
        # Nothing is known of what is rounding alone: neither kept nor missed.
        shares.append(energy / total if total > _ROUNDING else torch.full_like(energy, torch.nan))
        mine = basis.kept[(basis.kept >= start) & (basis.kept < start + r * s)] - start
        kept.append(free + (mine // max(1, s)) * n + mine % max(1, s))
        start, free = start + r * s, free + len(energy)
    share, energy, chosen = torch.cat(shares), torch.cat(energies), torch.cat(kept)
    inside = torch.zeros(len(share), dtype=torch.bool)
    inside[chosen] = True
    known = ~share.isnan()
    least, missed = share[known & inside], share[known & ~inside]
    most = float(missed.max()) if len(missed) else 0.0
    choice = (most - float(least.min())) / (most + 1e-3) if len(least) else 1.0
    if len(basis) < settings.directions:  # then every one is kept that is known
        choice = max(choice, most)
    scale = moments.scale(energy[chosen], settings.power)
    return {
        "an eigenvector": vector,
        "an eigenvalue": value,
        "the choice of directions": max(0.0, choice) if len(basis) <= settings.directions else 1.0,
        "a scale": _most(basis.scale.double() / scale - 1),
    }


def _spectrum(moment: Tensor, vectors: Tensor) -> tuple[Tensor, float, float]:
    """Eigenvalues, largest first; how far vectors and theirs are from the leading ones."""
    import torch

    u, total = vectors.double(), float(moment.trace()) or 1.0
    images = moment @ u
    values = (u * images).sum(0)
    every = torch.linalg.eigvalsh(moment).flip(0).clamp(min=0)
    turned = _most(u.T @ u - torch.eye(u.shape[1], dtype=torch.float64))
    turned = max(turned, _most((images - u * values).norm(dim=0) / total))
    return every, turned, _most(values - every[: u.shape[1]]) / total


def _most(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _microbatch(gradients: PublicGradients, basis: Basis | None, settings: Measured) -> Check | str:
    """Try this machine; of the machine that made a release nothing can be seen any more."""
    others = (
        "the makers' machines were tried before patients were charged, which nobody can see here"
    )
    try:
        gradients.keep_apart(basis)
    except InvalidValueError as error:
        return Check("", None, f"{error}. That is of this machine; {others}")
    return f"on this machine {settings.chunk} images a pass stay apart, to the last bit; {others}"


def _schedule(release: AdapterRelease, mechanism: PatientSum, settings: Measured) -> Check | str:
    """See what of directions and step follows from public numbers, and what somebody chose."""
    from dataclasses import replace

    plan, update = release.plan, release.settings
    asked = Advice().directions(replace(plan, directions=0, blocks=1))
    step = Advice().settle(replace(update, step=None), mechanism).step
    assert step is not None  # noqa: S101  # settled just now
    chosen = []
    if settings.directions != asked:
        chosen.append(
            f"{settings.directions or 'all'} directions at most (advised: {asked or 'all'})"
        )
    if update.step is None or abs(update.step / step - 1) > 0.01:
        chosen.append(f"a step of {update.step:.4g} (advised: {step:.4g})")
    if not chosen:
        return f"step {step:.4g} and directions follow from the noise, and from nothing else"
    return Check(
        "",
        None,
        f"chosen by the makers: {', '.join(chosen)}; that they did not look at patients for it is "
        "an assumption",
        {"advised_step": step, "advised_directions": asked},
    )
