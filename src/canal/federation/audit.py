"""A simulation across sites: real `Site` objects with ledgers and identities, a real aggregator.

What `canal.attacks.simulation` plays in one process goes here over messages: every invented
hospital has a folder, a key, terms and a ledger of its own; the aggregator carries out an order;
answers are masked where the audited release came of a secure sum. Only the network between them is
left out. One release is made, at an epsilon so large that an answer that counts twice stands out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from canal.attacks.simulation import SCENARIOS, Scenario, Simulation, look, simulate
from canal.attacks.traces import Check
from canal.data.load import load
from canal.data.patients import stranger
from canal.errors import FederationError
from canal.federation.aggregate import run
from canal.federation.identity import Identity
from canal.federation.settings import SITE, Order, to_toml
from canal.federation.site import Site
from canal.federation.transport import InMemory
from canal.privacy.ledger import Ledger
from canal.release.recompute import PublicInputs
from canal.release.store import Folder

if TYPE_CHECKING:
    from canal.data.arrays import Arrays

_CHUNK = 4
_LEDGER = "ledger.sqlite"


def usual(release: Folder) -> Sequence[Simulation]:
    """What `canal audit` simulates for a release: in one process, and across sites.

    A release whose sites cannot be told apart is not simulated across sites; nor is one of a kind
    for which no hospitals are invented.
    """
    scenario = SCENARIOS.get(release.kind)
    if scenario is None or (not release.private and release.plan.allocation == "none"):
        return ()
    return (simulate, simulate_across) if scenario.is_apart(release.plan) else (simulate,)


def simulate_across(release: Folder, folder: Path) -> Iterator[Check]:
    """Make one release of hospitals that share nothing but messages, and look at it.

    Args:
        release: whose plan is simulated.
        folder: a new one.
    """
    scenario = Scenario.of(release, folder)
    epsilon = scenario.loud
    homes = {name: folder / "hospitals" / name for name in scenario.sites}
    sites = _open(scenario, homes, epsilon)
    _write_images(folder / "asked", scenario.invented.asked)
    made = run(_order(scenario, folder, epsilon, "release"), _between(sites))
    what = "simulation across sites"
    ledgers = [Ledger(home / _LEDGER) for home in homes.values()]
    asked = load(folder / "asked", size=scenario.size, channels=1)
    public = PublicInputs(scenario.invented.init, asked)
    yield look(what, made, scenario.residue(made), ledgers, public)
    said = "two releases were paid for out of a budget for one"
    log = logging.getLogger("canal.federation")
    before = log.level
    log.setLevel(logging.CRITICAL)  # a refusal is what is wanted here, and no news
    try:
        run(_order(scenario, folder, epsilon, "second"), _between(sites))
    except FederationError as error:
        said = str(error)
    finally:
        log.setLevel(before)
    refused = "budget" in said and "does not cover" in said
    fine = f"a budget for one release was refused to a second by {len(ledgers)} ledgers"
    yield Check(f"{what}, a second release", refused, fine if refused else said)


def _between(sites: dict[str, Site]) -> InMemory:
    return InMemory({name: site.answer for name, site in sites.items()})


def _open(scenario: Scenario, homes: dict[str, Path], epsilon: float) -> dict[str, Site]:
    """A folder for every hospital with all that it needs, and the site that lives there."""
    plan = scenario.release.plan
    for name, home in homes.items():
        home.mkdir(parents=True)
        scenario.give_budget(Ledger(home / _LEDGER), epsilon)
        _write_images(home / "images", scenario.invented.cohorts[name])
        terms = {
            "name": name,
            "teacher": str(scenario.invented.teachers[name].resolve()),
            "images": "images",
            "trust": [plan.trust],
            "colluding": min(plan.colluding, len(homes) - 1),
            "again": True,
            "chunk": _CHUNK,
        }
        (home / SITE).write_text(to_toml(terms))
    prints = {name: Identity.create(home, name).fingerprint for name, home in homes.items()}
    for home in homes.values():
        (home / "roster.json").write_text(json.dumps(prints))
    return {name: Site.open(home) for name, home in homes.items()}


def _order(scenario: Scenario, folder: Path, epsilon: float, out: str) -> Order:
    release = scenario.release
    return Order(
        folder=folder,
        queries="asked",
        init=str(scenario.invented.init.resolve()),
        out=out,
        trust=release.plan.trust,
        colluding=min(release.plan.colluding, len(scenario.sites) - 1),
        release=release.kind,
        plan=scenario.choices(epsilon),
        views=0,
        chunk=_CHUNK,
        train=False,
        **scenario.ordered,
    )


def _write_images(folder: Path, arrays: Arrays) -> None:
    """Images, masks, and the records of whom they show, as any reader reads them."""
    from PIL import Image

    for part, values in (("images", arrays.images), ("masks", arrays.masks * 255)):
        (folder / part).mkdir(parents=True)
        for name, image in zip(arrays.ids, values, strict=True):
            Image.fromarray(np.asarray(image[0])).save(folder / part / f"{name}.png")
    rows = [f"{name},{who}" for name, who in arrays.patients.items() if who != stranger(name)]
    if rows:
        (folder / "metadata.csv").write_text("\n".join(["isic_id,patient_id", *rows]) + "\n")
