"""What is particular in checking a gradient release (`canal.release.verification`).

The numbers of a manifest are derived again from its plan and its public numbers. The noise is
looked at by round, by part of a round, and by coordinate. Subspace, clip norms, scales and weights
have no noise: they may come from the recipient's images alone. A reader who has those and the
initialisation measures again, with the code that measures before a release, and compares.

The same machine gives the same bits. On another one the eigenvectors of a subspace may turn where
eigenvalues are close, and no two are then equal, so what is compared is what makes them a public
subspace: they are eigenvectors of the recomputed second moments, with the leading eigenvalues, and
the coordinates that are kept hold as much energy as any others could. Clip norms are measured in
the published subspace.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from canal.errors import InvalidValueError, MismatchError, ReleaseError
from canal.gradients.mechanism import PatientSum
from canal.gradients.plan import AdapterPlan, CalibratedAdapterPlan
from canal.gradients.public import Array, Public
from canal.gradients.start import Measured, PublicGradients
from canal.gradients.store import AdapterRelease
from canal.gradients.subspace import Basis, digest
from canal.gradients.target_modules import Coordinates
from canal.gradients.update import Advice, UpdateSettings
from canal.release.checks import Check, Checks
from canal.release.manifest import Manifest
from canal.release.noise_check import Alike, Sums, Zeros, some, without_direction
from canal.release.recompute import PublicInputs, compared, initialisation, seen, word_of_makers
from canal.release.verification import Derived

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.gradients.subspace import Moments
    from canal.learning.checkpoint import Checkpoint


# Values of a round that are looked at together.
_PART = 1024


def derive(manifest: Manifest) -> Derived:
    """The numbers of a gradient release, from its plan and its public numbers."""
    plan = AdapterPlan.from_json(manifest.plan)
    public = manifest.statistics
    UpdateSettings.from_json(public["update"])
    bounds = np.array(public["bounds"], dtype=np.float64)
    weights = np.array(public["weights"], dtype=np.float64)
    scales = np.array(public["scales"], dtype=np.float64)
    for numbers in (bounds, weights, scales):
        if numbers.ndim != 1 or not (np.isfinite(numbers) & (numbers > 0)).all():
            raise ReleaseError("scales, bounds and weights must be above 0 and finite")
    if not 0 < float(public["length"]) < np.inf or not 1 <= float(public["patients"]) < np.inf:
        raise ReleaseError("the clip and the number of patients must be numbers above 0")
    if not plan.count and public["patients"] != plan.patients:
        raise ReleaseError("sums were divided by another number of patients than was stated")
    calibrated = plan.calibrate(weights)
    widths = calibrated.sigma / calibrated.lattice.step
    return Derived(calibrated, PatientSum.numbers(calibrated, bounds), widths)


def noise_looks(release: AdapterRelease) -> tuple[list[Sums | Zeros], dict[str, list[Sums]]]:
    """What is to be seen of the noise in a folder: all looks, and those by what they see.

    Args:
        release: whose noise is not none; one round at a time is held in memory. Where channels
            have noise of their own, and which parameters are theirs only the network says, the
            least of it is held against every value.
    """
    plan, rounds, width = release.plan, len(release), release.plan.coordinates
    step, sigma, known = _spread(release)
    slack, interval = plan.shares * step / (2 * sigma), step / sigma * math.sqrt(plan.shares)
    # A patient is one long at most in every block; how many there are, the plan says.
    patients = max(float(plan.patients), release.patients)
    every = _calibrated(release).sigma * plan.excess
    reach = math.sqrt(np.square(patients / every).sum()) if known else None
    size = min(width, _PART)
    starts = np.unique(np.r_[np.arange(0, width - size + 1, size), width - size])
    earlier, squares = np.zeros((2, width))
    zeros = np.zeros(width, np.int64)
    whole, apart, parts, none = np.zeros(rounds), np.zeros(rounds), [], np.zeros(rounds, np.int64)
    for number in range(rounds):
        values = release.sums(number) * (step / sigma)
        energy, zero = np.square(values), values == 0
        whole[number], none[number] = energy.sum(), zero.sum()
        apart[number] = without_direction(values, earlier)
        parts.append([energy[start : start + size].sum() for start in starts.tolist()])
        earlier, squares, zeros = earlier + values, squares + energy, zeros + zero

    def round_(at: tuple[int, ...]) -> str:
        return f"round {at[0]}"

    def later(at: tuple[int, ...]) -> str:
        return f"round {at[0] + 1}"

    def part(at: tuple[int, ...]) -> str:
        return f"round {at[0]}, in the {size} values from {starts[at[1]]} on,"

    def coordinate(at: tuple[int, ...]) -> str:
        return f"value {at[0]} over all rounds"

    of_a_round = [Sums(round_, whole, width, slack.max(), reach)]
    if rounds > 1 and width > 1:
        # Of the first round nothing is known before; later ones know its noise.
        of_a_round.append(Sums(later, apart[1:], width - 1, slack.max()))
    of_a_part = [Sums(part, np.array(parts), size, slack.max(), reach)]
    far = None if not known else math.sqrt(rounds) * patients / sigma
    of_a_coordinate = [Sums(coordinate, squares, rounds, slack, far)]
    looks: list[Sums | Zeros] = [
        Zeros(round_, none, width, interval.max()),
        Zeros(coordinate, zeros, rounds, interval),
    ]
    stated = {
        "a round": of_a_round,
        f"{size} values of a round": of_a_part,
        "a value of all rounds": of_a_coordinate,
    }
    return [*of_a_round, *of_a_part, *of_a_coordinate, *looks], stated


def alike(release: AdapterRelease) -> list[Alike]:
    """What should have noise of its own: rounds, of which later ones know the noise of earlier."""
    step, sigma, _ = _spread(release)
    kept = some(release.plan.coordinates)
    rows = [(release.sums(number) * (step / sigma))[kept] for number in range(len(release))]
    return [Alike("rounds", np.stack(rows), "round {}".format, later_know=True)]


def _calibrated(release: AdapterRelease) -> CalibratedAdapterPlan:
    return release.plan.calibrate(np.array(release.manifest.statistics["weights"]))


def _spread(release: AdapterRelease) -> tuple[float, NDArray[np.float64], bool]:
    """The lattice step, sigma of every value, and whether that is known or the least of them."""
    plan, calibrated = release.plan, _calibrated(release)
    step, sigma = calibrated.lattice.step, calibrated.sigma * plan.excess
    if plan.blocks == 1:
        return step, np.full(plan.coordinates, sigma[0]), True
    if plan.directions:
        return step, sigma[np.arange(plan.directions)], True
    return step, np.full(plan.coordinates, sigma.min()), False


# Largest relative difference between machines. Measured as in `canal.features.verification`,
# other kernels moved the clip norm of whole gradients by at most 1.1e-6, bounds of channels by
# 1.6e-4, scales by 1.8e-4, weights by 7.6e-4. Measured on patients of another hospital, or after a
# network was trained on them for fifty steps, they were off by at least 2e-2, 2.4, 0.4 and 70.
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
