"""Releases that a planted bug can touch, each made as a user makes it, and every check of them.

Nothing here is a test: `canal` is whatever is first on the path, the checks of the same code are
run on what it made, and all that is returned is which of them raised an alarm, and why. Data are
tiny, and nobody is hostile: what a bug does to the worst patient, an audit has to find by itself.
"""

import contextlib
import copy
import io
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

SITES = ("north", "south", "west")
SIZE, SMALL = (64, 64), (32, 32)
QUERIES = 24
# As few draws as tell epsilon from 0.9 of it, and as few seeds as are worth trying.
QUICK = {"draws": 20_000, "seeds": 16, "values": 2e7}
DELTA = 1e-5


# What looks at a release, and as whom: audit, verify or residue.
Look = tuple[str, Callable[[], list[str]]]


def drawn(count: int, size: tuple[int, int], seed: int, who: str = "case"):
    """Grey images with a disc on each, and its mask."""
    from canal.data.arrays import Arrays

    rng = np.random.default_rng(seed)
    row, column = np.mgrid[: size[0], : size[1]]
    masks = np.zeros((count, 1, *size), dtype=np.uint8)
    for mask in masks:
        y, x = rng.uniform(size[0] / 4, 3 * size[0] / 4, 2)
        mask[0] = np.hypot(row - y, column - x) < rng.uniform(size[0] / 8, size[0] / 4)
    images = (rng.integers(0, 100, masks.shape) + 130 * masks).astype(np.uint8)
    ids = tuple(f"{who}-{number:03d}" for number in range(count))
    return Arrays(ids, images, masks, f"{who} {seed}")


def networks(folder: Path, size: tuple[int, int]) -> SimpleNamespace:
    """The shared initialisation and a teacher for every site, as folders."""
    import torch

    from canal.learning import checkpoint
    from canal.learning.checkpoint import Checkpoint
    from canal.learning.networks import UNetArchitecture, weights_digest

    architecture = UNetArchitecture(in_channels=1, base_channels=8)
    init = architecture.build(seed=0)
    common = {
        "architecture": architecture.to_json(),
        "initialisation": weights_digest(init),
        "size": size,
    }
    notes = {"role": "initialisation", "seed": 0, "trained": False}
    checkpoint.save(folder / "init", init, Checkpoint(**common, notes=notes))
    for number, site in enumerate(SITES):
        network = copy.deepcopy(init)
        generator = torch.Generator().manual_seed(100 + number)
        with torch.no_grad():
            for weight in network.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=generator)
        notes = {"role": "teacher", "site": site, "images": 20, "trained_initialisation": False}
        checkpoint.save(
            folder / site, network, Checkpoint(**common, data=f"images of {site}", notes=notes)
        )
    return SimpleNamespace(init=folder / "init", teachers=[folder / site for site in SITES])


def features(
    folder: Path, preset: str = "honest", queries: int = QUERIES, people: int = 1, **choices
) -> list[Look]:
    """A private release of features, charged to a ledger; then everything that checks one."""
    from canal.data.arrays import Arrays
    from canal.features.ensemble import load_ensemble
    from canal.features.queries import Queries
    from canal.features.release import create
    from canal.privacy import Ledger

    made = networks(folder / "networks", SIZE)
    ensemble = load_ensemble(made.teachers, made.init)
    arrays = drawn(queries, SIZE, seed=7)
    if people > 1:
        groups = {name: f"person {row // people}" for row, name in enumerate(arrays.ids)}
        arrays = Arrays(arrays.ids, arrays.images, arrays.masks, arrays.digest, patients=groups)
    asked = Queries.of(arrays)
    plan = ensemble.plan(asked, preset, **({"epsilon": 8.0, "released": 48} | choices))
    ledger = Ledger(folder / "ledger.sqlite")
    for cohorts, unit in (((*SITES, "queries"), plan.unit), (SITES, "patient")):
        ledger.set_budget(cohorts, unit, epsilon=1e4, delta=DELTA)
    release = create(folder / "release", ensemble, asked, plan, ledger=ledger)
    return [
        ("verify", lambda: verified(folder / "release", ledger, made.init, arrays)),
        ("audit", lambda: audited(release)),
        ("residue", lambda: residue(release, ensemble, asked)),
    ]


def rounds(
    folder: Path, sites: int = 2, directions: int = 0, parts: tuple[str, ...] = (), **choices
) -> list[Look]:
    """A private release of gradients over several rounds, and everything that checks one."""

    from canal.gradients.patients import Patients
    from canal.gradients.plan import AdapterPlan
    from canal.gradients.release import train
    from canal.gradients.start import share
    from canal.gradients.target_modules import HEAD, NORMS, Adapter
    from canal.privacy import Ledger

    few = Adapter((NORMS, HEAD, *parts))
    fitting = {"epsilon": 8.0, "patients": 12, "sites": sites, "rounds": 4, "adapter": few}
    made = networks(folder / "networks", SMALL)
    asked = drawn(6, SMALL, seed=7)
    allocation = choices.get("allocation", "flat")
    shared = share(made.init, asked, few, allocation, directions=directions, chunk=4)
    cohorts = [site_of(SITES[number]) for number in range(sites)]
    plan = AdapterPlan(parameters=len(shared.coordinates), **(fitting | choices))
    ledger = Ledger(folder / "ledger.sqlite")
    for unit in ("membership", "patient"):
        ledger.set_budget(SITES[:sites], unit, epsilon=1e4, delta=DELTA)
    people = [Patients(site.digest, site, chunk=4) for site in cohorts]
    release = train(folder / "release", people, shared, plan, ledger=ledger)
    return [
        ("verify", lambda: verified(folder / "release", ledger, made.init, asked)),
        ("audit", lambda: audited(release)),
        *(("residue", partial(paid, release, made.init, site, 4)) for site in cohorts),
    ]


def site_of(name: str, patients: int = 6):
    """Twelve images of one site, two of every patient; its name is its digest."""
    from canal.data.arrays import Arrays

    arrays = drawn(2 * patients, SMALL, seed=20 + SITES.index(name), who=name)
    groups = {each: f"{name} {row // 2}" for row, each in enumerate(arrays.ids)}
    return Arrays(arrays.ids, arrays.images, arrays.masks, name, patients=groups)


def across(
    folder: Path, release: str = "features", trust: str = "secure-sum", **choices
) -> list[Look]:
    """The same of three hospitals that share nothing but messages, each with its own ledger."""
    from PIL import Image

    from canal.features import mechanism, site
    from canal.features.ensemble import load_ensemble
    from canal.features.queries import Queries
    from canal.federation.aggregate import read_images, run
    from canal.federation.settings import Order
    from canal.learning import checkpoint
    from federation.conftest import Hospitals

    def kept(arrays, where: Path) -> None:
        for part, values in (("images", arrays.images), ("masks", arrays.masks * 255)):
            (where / part).mkdir(parents=True)
            for name, image in zip(arrays.ids, values, strict=True):
                Image.fromarray(np.asarray(image[0])).save(where / part / f"{name}.png")

    size = SIZE if release == "features" else SMALL
    made, asked = networks(folder / "networks", size), drawn(QUERIES, size, seed=7)
    kept(asked, folder / "asked")
    mechanism.BLOCK = site.BLOCK = 16
    hospitals = Hospitals(
        folder / "hospitals", made, epsilon=1e4, trust=[trust], images="images", chunk=4
    )
    for name in SITES:
        kept(site_of(name), hospitals.home(name) / "images")
        hospitals.ledger(name).set_budget(name, "membership", epsilon=1e4, delta=DELTA)
    fitting = {
        "features": {"plan": {"epsilon": 8.0, "released": 48}},
        "adapters": {
            "plan": {"epsilon": 8.0, "patients": 40, "rounds": 3, "directions": 0},
            "adapter": {"parts": ["norms", "head"]},
        },
    }[release]
    order = Order(
        folder=folder,
        queries=str(folder / "asked"),
        init=str(made.init),
        out="release",
        trust=trust,
        release=release,
        train=False,
        chunk=4,
        **(fitting | choices),
    )
    published = run(order, hospitals.transport)
    arrays = read_images(order, checkpoint.describe(made.init))
    looks: list[Look] = [
        ("verify", partial(verified, published.path, hospitals.ledger(name), made.init, arrays))
        for name in SITES
    ]
    looks.append(("audit", lambda: audited(published)))
    if release == "features":
        ensemble = load_ensemble(made.teachers, made.init)
        looks.append(("residue", lambda: residue(published, ensemble, Queries.of(asked))))
    return looks


def verified(path: Path, ledger, init: Path, asked) -> list[str]:
    """What `canal release verify` finds, of a reader who has the ledger and the public inputs."""
    from canal.release.recompute import PublicInputs
    from canal.release.verification import verify

    checks = verify(path, ledger, PublicInputs(init, asked))
    return [f"{check.what}: {check.detail}" for check in checks if check.passed is False]


def audited(release) -> list[str]:
    """What `canal audit` finds, with as few draws as keep its resolution."""
    from canal.attacks.audit import audit
    from canal.federation.audit import usual

    found = audit(release, simulations=usual(release), **QUICK)
    judged = (*found.verdicts, *found.outcomes)
    said = [each.words() for each in judged if each.refuted]
    said += [f"{check.what}: {check.detail}" for check in found.checks if check.passed is False]
    return said if said or found.holds else ["it does not hold"]


def residue(release, ensemble, asked) -> list[str]:
    """What `canal audit` finds of somebody who holds the teachers as well."""
    from canal.attacks.residue import Residue

    checks = Residue.of(release, ensemble, asked).checks()
    return [f"{check.what}: {check.detail}" for check in checks if check.passed is False]


def paid(release, init: Path, site, chunk: int) -> list[str]:
    """What `canal audit` finds of a hospital that holds the patients of one site."""
    from canal.attacks.individual import first_patients, losses_of_patients
    from canal.learning.teacher import load_initialisation

    network, _ = load_initialisation(init)
    people, among = first_patients(release, site.digest, site, None, chunk)
    found = losses_of_patients(release, network, people, among)
    return [] if found.holds else [found.words()]


PRIVATE = {"caps_source": "private", "importance_source": "private"}
SCENARIOS: dict[str, Callable[[Path], list[Look]]] = {
    "honest": features,
    "paper": lambda folder: features(folder, "paper"),
    "image": lambda folder: features(
        folder, people=2, unit="image", nonnegative=False, **PRIVATE, released=16
    ),
    "long": lambda folder: features(folder, queries=272, released=48),
    "rounds": lambda folder: rounds(folder, count=0.1),
    "replace": lambda folder: rounds(folder, relation="replace"),
    "channels": lambda folder: rounds(folder, allocation="channels"),
    "subspace": lambda folder: rounds(folder, directions=40, parts=("upcat_1.*",)),
    "joint": across,
    "joint-private": lambda folder: across(
        folder, preset="paper", plan={"epsilon": 8.0, "released": 16, "unit": "patient"}
    ),
    "told": lambda folder: across(folder, trust="trusted"),
    "joint-rounds": lambda folder: across(folder, release="adapters"),
    "told-rounds": lambda folder: across(folder, release="adapters", trust="trusted"),
}


def run(name: str, folder: Path, kinds: Collection[str]) -> dict[str, list[str]]:
    """Make one release and give what looked at it said; what is printed on the way is lost.

    Args:
        name: of the scenario.
        folder: a new one.
        kinds: of looks to take.
    """
    from canal.errors import CanalError

    folder.mkdir(parents=True)
    said: dict[str, list[str]] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for kind, look in SCENARIOS[name](folder):
            if kind not in kinds:
                continue
            try:
                found = look()
            except CanalError as error:  # a refusal in a sentence, which a user cannot miss
                found = [f"refused: {error}"]
            said.setdefault(kind, []).extend(found)
    return said
