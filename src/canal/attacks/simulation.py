r"""A simulation: releases of invented sites, made by all that makes a release, and looked at whole.

A game draws what one function publishes. A simulation plays the publisher: invented hospitals with
small networks and a few images go through `canal.features.release.create`, or
`canal.gradients.release.train`, under the plan of the audited release: with a ledger, secrets,
shards, a manifest, everything. Since the auditor invented the hospitals, nothing is private to it,
and what should have been summed is computed a second time by the paper's formulas, in floating
point and one image after the other, by none of the code that publishes (`canal.attacks.view`,
`plain_rounds`).
What is left is noise, or there is a fault (`canal.attacks.residue`):

- *as stated*: at the epsilon of the plan; what is left is as wide as the manifest says;
- *loud*: at an epsilon so large that a site, patient or image that counts twice stands out;
- *again*: the first a second time, with a secret of its own: its noise is other noise.

The ledger has a budget for one release. A second one is to be refused, and the first to be
verified by `canal release verify`. Sites of one process trust it, so noise is added once here even
where the audited release came of a secure sum; that is simulated across sites
(`canal.federation.audit`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from canal.attacks.residue import Residue, unlike
from canal.attacks.traces import RARE, Check
from canal.data import overlap
from canal.data.arrays import Arrays
from canal.errors import BudgetExceededError
from canal.features.plan import Plan
from canal.features.store import Release
from canal.gradients.mechanism import COUNT
from canal.gradients.plan import AdapterPlan
from canal.gradients.store import AdapterRelease
from canal.gradients.target_modules import HEAD, NORMS, Adapter
from canal.privacy.ledger import Ledger
from canal.release.recompute import PublicInputs
from canal.release.registry import of_kind
from canal.release.store import Folder
from canal.release.verification import verify

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.attacks.view import Floats
    from canal.gradients.subspace import Basis

Simulation = Callable[[Folder, Path], Iterator[Check]]

SITES = ("north", "south", "west")
# More than pass through a network at once, so that rows of a second batch are among them.
QUERIES = 24
IMAGES = 9
ROUNDS = 3
# As many as there are in so small a network: of a few values, nothing would show.
DIRECTIONS = 512
FEW = Adapter((NORMS, HEAD))
_CHUNK = 4
# A ledger with this much of what a release costs has enough for one and not for two.
_ROOM = 1.1


@dataclass(frozen=True)
class Invented:
    """Hospitals that nobody was ever in.

    Args:
        init: folder of the shared initialisation.
        teachers: folder of every site's teacher.
        asked: the recipient's images.
        cohorts: of every site, images of patients with one to three each.
    """

    init: Path
    teachers: Mapping[str, Path]
    asked: Arrays
    cohorts: Mapping[str, Arrays]

    @classmethod
    def make(cls, folder: Path, sites: int, size: int, people: int = 1) -> Invented:
        """Small networks of public seeds, and grey images with a disc on each.

        Args:
            folder: for the networks.
            sites: how many.
            size: of the images.
            people: query images of one person.
        """
        import torch

        from canal.learning import checkpoint
        from canal.learning.checkpoint import Checkpoint
        from canal.learning.networks import UNetArchitecture, weights_digest

        architecture = UNetArchitecture(in_channels=1, base_channels=8)
        init = architecture.build(seed=0)
        common: dict[str, Any] = {
            "architecture": architecture.to_json(),
            "initialisation": weights_digest(init),
            "size": (size, size),
        }
        notes = {"role": "initialisation", "seed": 0, "trained": False}
        checkpoint.save(folder / "init", init, Checkpoint(**common, notes=notes))
        names = SITES[:sites]
        for number, site in enumerate(names):
            network = architecture.build(seed=0)
            generator = torch.Generator().manual_seed(100 + number)
            with torch.no_grad():
                for weight in network.parameters():
                    weight.add_(0.02 * torch.randn(weight.shape, generator=generator))
            notes = {"role": "teacher", "site": site, "trained_initialisation": False}
            about = Checkpoint(**common, data=f"images of {site}", notes=notes)
            checkpoint.save(folder / site, network, about)
        asked = draw("query", QUERIES, size, 0)
        groups = {name: f"person {row // people}" for row, name in enumerate(asked.ids)}
        asked = replace(asked, patients=groups if people > 1 else {})
        cohorts = {}
        for number, site in enumerate(names):
            arrays = draw(site, IMAGES, size, number + 1)
            # Patients with one, two and three images, in turns.
            who = [0, 1, 1, 2, 2, 2, 3, 4, 4]
            groups = {name: f"{site} {who[row]}" for row, name in enumerate(arrays.ids)}
            cohorts[site] = replace(arrays, patients=groups)
            contents = list(overlap.digests_by_patient(cohorts[site]).values())
            overlap.write(folder / site, contents, private=True)
        return cls(folder / "init", {name: folder / name for name in names}, asked, cohorts)


def draw(name: str, count: int, size: int, seed: int) -> Arrays:
    """Grey images of public seeds, with a disc on each, and its mask."""
    rng = np.random.default_rng(seed)
    row, column = np.mgrid[:size, :size]
    masks = np.zeros((count, 1, size, size), dtype=np.uint8)
    for mask in masks:
        y, x = rng.uniform(size / 4, 3 * size / 4, 2)
        mask[0] = np.hypot(row - y, column - x) < rng.uniform(size / 8, size / 4)
    images = (rng.integers(0, 100, masks.shape) + 130 * masks).astype(np.uint8)
    return Arrays(tuple(f"{name}-{each:03d}" for each in range(count)), images, masks, name)


def simulate(release: Folder, folder: Path) -> Iterator[Check]:
    """Make releases under the plan of this one in one process, and look at each.

    Args:
        release: whose plan is simulated.
        folder: a new one.
    """
    scenario = Scenario.of(release, folder)
    stated = release.plan.epsilon
    left = []
    for name, epsilon in (("as stated", stated), ("again", stated), ("loud", scenario.loud)):
        place = folder / name.replace(" ", "-")
        place.mkdir()
        ledger = Ledger(place / "ledger.sqlite")
        scenario.give_budget(ledger, epsilon)
        made = scenario.publish(place / "release", epsilon, ledger)
        residue = scenario.residue(made)
        yield look(f"simulation, {name}", made, residue, [ledger], scenario.public)
        left.append(residue)
        if name == "as stated":
            yield _refused(scenario, place / "second", epsilon, ledger)
    yield _other_noise(left[0], left[1])


def look(
    what: str, made: Folder, residue: Residue, ledgers: Sequence[Ledger], public: PublicInputs
) -> Check:
    """What is left of a simulated release, and what `canal release verify` says of it."""
    found = residue.checks()
    wrong = [f"{each.what}: {each.detail}" for each in found if each.passed is False]
    wrong += [
        f"verify, {each.what}: {each.detail}"
        for ledger in ledgers
        for each in verify(made.path, ledger, public)
        if each.passed is False
    ]
    seen = sum(each.passed is True for each in found)
    fine = (
        f"{len(made)} {residue.words[0]} of {len(made.manifest.participants['cohorts'])} invented "
        f"sites; what is left without what they said is the stated noise in {seen} checks: "
        f"{found[0].detail}"
    )
    return Check(what, not wrong, "; ".join(wrong) or fine, len(found) * RARE)


def _refused(scenario: Scenario, out: Path, epsilon: float, ledger: Ledger) -> Check:
    what = "simulation, a second release"
    try:
        scenario.publish(out, epsilon, ledger)
    except BudgetExceededError:
        return Check(what, True, "a budget for one release was refused to a second")
    return Check(what, False, "two releases were paid for out of a budget for one")


def _other_noise(one: Residue, other: Residue) -> Check:
    """See that the same release, made twice, has noise of its own each time."""
    found = unlike(
        "simulation, noise of two releases",
        np.stack([one.noise.ravel(), other.noise.ravel()]),
        ("the first", "the second"),
        RARE,
    )
    return replace(found, folder=False)


@dataclass(frozen=True)
class Scenario(ABC):
    """Invented hospitals, and how a release is made of them in one process.

    Args:
        release: whose plan is simulated.
        invented: who takes part.
    """

    release: Folder
    invented: Invented

    # Of the images.
    size: ClassVar[int]
    # An epsilon with so little noise that a site that counts twice is seen at once, and more than
    # rounding makes.
    loud: ClassVar[float]

    @classmethod
    def of(cls, release: Folder, folder: Path) -> Scenario:
        """For the kind of a release.

        Args:
            release: whose plan is simulated.
            folder: for the networks.
        """
        kind = of_kind(SCENARIOS, release, "simulation")
        sites = min(release.plan.sites, len(SITES))
        people = min(kind.images_per_person(release.plan), QUERIES)
        return kind(release, Invented.make(folder / "sites", sites, kind.size, people))

    @staticmethod
    def images_per_person(plan: Any) -> int:  # noqa: ARG004
        """The most images of one person among the recipient's."""
        return 1

    @staticmethod
    def is_apart(plan: Any) -> bool:  # noqa: ARG004
        """Whether there are sites that could be told apart."""
        return True

    @property
    def ordered(self) -> dict[str, Any]:
        """What an order to a federation says beside the plan."""
        return {}

    @property
    def sites(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.invented.cohorts)

    @property
    def public(self) -> PublicInputs:
        """What a reader may hold."""
        return PublicInputs(self.invented.init, self.invented.asked)

    @abstractmethod
    def choices(self, epsilon: float) -> dict[str, Any]:
        """What a plan has of the audited release's, for so few sites."""

    @abstractmethod
    def give_budget(self, ledger: Ledger, epsilon: float) -> None:
        """Let a ledger pay for one release of this epsilon, and for no second one."""

    @abstractmethod
    def publish(self, out: Path, epsilon: float, ledger: Ledger) -> Folder:
        """Make a release in one process."""

    @abstractmethod
    def residue(self, made: Any) -> Residue:
        """The noise of a release, once what was summed is taken off."""


class Features(Scenario):
    """Teachers who answer query images."""

    release: Release
    size = 64
    loud = 1e6

    @staticmethod
    def images_per_person(plan: Plan) -> int:
        """See `Scenario`."""
        return plan.participants.images_per_person

    @staticmethod
    def is_apart(plan: Plan) -> bool:
        """Query images have no site, and one teacher has no others."""
        return plan.unit != "image" and plan.sites > 1

    def choices(self, epsilon: float) -> dict[str, Any]:
        """See `Scenario`."""
        plan = self.release.plan
        kept = (
            *("delta", "unit", "conversion", "nonnegative", "caps_source", "importance_source"),
            *("weight", "allocation", "split"),
        )
        return {name: getattr(plan, name) for name in kept} | {"epsilon": epsilon, "released": 48}

    def _plan(self, epsilon: float) -> Plan:
        asked = self._queries
        most = asked.images_per_person  # whom the invented images show is known
        made: Plan = self._ensemble.plan(asked, images_per_person=most, **self.choices(epsilon))
        return made

    @property
    def _ensemble(self) -> Any:
        from canal.features.ensemble import load_ensemble

        return load_ensemble(list(self.invented.teachers.values()), self.invented.init)

    @property
    def _queries(self) -> Any:
        from canal.features.queries import Queries

        return Queries.of(self.invented.asked)

    def give_budget(self, ledger: Ledger, epsilon: float) -> None:
        """See `Scenario`."""
        from canal.release.charges import QUERIES as ASKED

        plan = self._plan(epsilon)
        promise = plan.calibrate().guarantee
        for unit, who in ((plan.unit, (*self.sites, ASKED)), ("patient", self.sites)):
            most = _ROOM * promise.epsilon(plan.delta, unit, "exact")
            ledger.set_budget(who, unit, epsilon=most, delta=plan.delta)

    def publish(self, out: Path, epsilon: float, ledger: Ledger) -> Release:
        """See `Scenario`."""
        from canal.features.release import create

        return create(out, self._ensemble, self._queries, self._plan(epsilon), ledger=ledger)

    def residue(self, made: Release) -> Residue:
        """See `Scenario`."""
        return Residue.of(made, self._ensemble, self._queries)


class Rounds(Scenario):
    """Patients whose gradients are summed, round after round."""

    release: AdapterRelease
    size = 32
    loud = 1e3

    @property
    def ordered(self) -> dict[str, Any]:
        """See `Scenario`."""
        return {"adapter": {"parts": list(FEW.parts)}}

    def choices(self, epsilon: float) -> dict[str, Any]:
        """See `Scenario`."""
        plan = self.release.plan
        kept = ("delta", "relation", "conversion", "allocation")
        return {name: getattr(plan, name) for name in kept} | {
            "epsilon": epsilon,
            # A larger share of so much budget would leave noise too narrow to come in shares.
            "count": min(plan.count, 0.01) if epsilon == self.loud else plan.count,
            "patients": IMAGES * len(self.sites),
            "rounds": ROUNDS,
            "directions": DIRECTIONS if plan.directions else 0,
        }

    def give_budget(self, ledger: Ledger, epsilon: float) -> None:
        """See `Scenario`."""
        chosen = self.choices(epsilon)
        plan = AdapterPlan(**chosen | {"parameters": DIRECTIONS, "directions": 0})
        # Blocks and coordinates change nothing about what is spent, but for the last bits.
        promise = plan.calibrate().guarantee
        for unit in ("membership", "patient"):
            most = _ROOM * promise.epsilon(plan.delta, unit, "exact")
            ledger.set_budget(self.sites, unit, epsilon=most, delta=plan.delta)

    def publish(self, out: Path, epsilon: float, ledger: Ledger) -> AdapterRelease:
        """See `Scenario`."""
        from canal.gradients.patients import Patients
        from canal.gradients.release import train
        from canal.gradients.start import share

        chosen = self.choices(epsilon)
        shared = share(
            *(self.invented.init, self.invented.asked, FEW, self.release.plan.allocation),
            directions=chosen["directions"],
            views=0,
            chunk=_CHUNK,
        )
        plan = AdapterPlan(
            **chosen,
            parameters=len(shared.coordinates),
            sites=len(self.sites),
            adapter=FEW,
        )
        sites = [
            Patients(name, arrays, views=0, chunk=_CHUNK)
            for name, arrays in self.invented.cohorts.items()
        ]
        return train(out, sites, shared, plan, ledger=ledger)

    def residue(self, made: AdapterRelease) -> Residue:
        """See `Scenario`."""
        return plain_rounds(made, self.invented.init, list(self.invented.cohorts.values()))


SCENARIOS: dict[str, type[Scenario]] = {Release.kind: Features, AdapterRelease.kind: Rounds}


def plain_rounds(release: AdapterRelease, init: Path, cohorts: Sequence[Arrays]) -> Residue:
    """The noise of a gradient release, once the plain sum over its patients is taken off.

    One image after the other, each by its own backward pass, in floating point.

    Args:
        release: made without augmentation (views 0).
        init: folder of the initialisation.
        cohorts: of all sites.
    """
    from canal.learning.teacher import load_initialisation

    network, _ = load_initialisation(init)
    coordinates = release.install(network)
    mechanism = release.mechanism(coordinates)
    clip, numbers = mechanism.clip, release.manifest.mechanism
    sigma = np.array(numbers["sigma"])[clip.blocks]
    left = []
    for number, course in zip(range(len(release)), release.walk(coordinates), strict=False):
        coordinates.write(course.here.float())
        total = np.zeros(len(sigma))
        for arrays in cohorts:
            for rows in _patients(arrays):
                each = [
                    _gradient(network, coordinates.names, arrays, row, mechanism.basis)
                    for row in rows
                ]
                scaled = np.mean(each, axis=0) / clip.unit
                lengths = np.sqrt(np.bincount(clip.blocks, np.square(scaled)))
                total += scaled / np.maximum(lengths, 1.0)[clip.blocks]
        left.append((release.sums(number) * numbers["step"] - total) / sigma)
    counted = {}
    if release.plan.count:
        people = sum(len(_patients(arrays)) for arrays in cohorts)
        counted[COUNT] = np.array([(release.patients - people) / numbers["count_sigma"]])
    rounds = tuple(f"round {number}" for number in range(len(release)))
    noise = np.stack(left)[:, None]
    return Residue(rounds, ("coordinates",), noise, counted, words=("rounds", "blocks"))


def _patients(arrays: Arrays) -> list[list[int]]:
    """Rows of every patient's images."""
    found: dict[str, list[int]] = {}
    for row, name in enumerate(arrays.ids):
        found.setdefault(arrays.patients[name], []).append(row)
    return list(found.values())


def _gradient(
    network: nn.Module, names: Sequence[str], arrays: Arrays, row: int, basis: Basis | None
) -> Floats:
    """Of the loss of one image, `[d]`."""
    import torch

    from canal.learning.networks import evaluating, task_loss, to_float

    image = to_float(torch.from_numpy(np.array(arrays.images[row : row + 1])))
    mask = torch.from_numpy(np.array(arrays.masks[row : row + 1])).float()
    have = dict(network.named_parameters())
    for each in have.values():
        each.requires_grad_(True)
    with evaluating(network), torch.enable_grad():
        # Of all parameters: torch (2.13) dies of a norm whose input needs no gradient.
        parts = torch.autograd.grad(task_loss(network(image), mask).sum(), list(have.values()))
    found = dict(zip(have, parts, strict=True))
    flat: Tensor = torch.cat([found[name].reshape(-1) for name in names])[None]
    if basis is not None:
        flat = basis.project(flat)
    return flat[0].double().numpy()
