"""A rehearsal across sites: real `Site` objects with ledgers and identities, a real aggregator.

What `canal.attacks.rehearsal` plays in one process goes here over messages: every invented hospital
has a folder, a key, terms and a ledger of its own; the aggregator carries out an order; answers are
masked where the audited release came of a secure sum. Only the network between them is left out.
One release is made, at an epsilon so large that an answer that counts twice stands out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.adapters.kinds import AnyRelease
from canal.adapters.store import AdapterRelease
from canal.attacks.rehearsal import FEW, LOUD, Rehearsal, Stage, look, rehearse
from canal.attacks.traces import Check
from canal.errors import FederationError
from canal.federation.aggregate import run
from canal.federation.identity import Identity
from canal.federation.settings import SITE, Order, to_toml
from canal.federation.site import Site
from canal.federation.transport import InMemory
from canal.privacy.ledger import Ledger

if TYPE_CHECKING:
    from canal.data.cache import Arrays

_CHUNK = 4
_LEDGER = "ledger.sqlite"


def usual(release: AnyRelease) -> Sequence[Rehearsal]:
    """What `canal audit` rehearses for a release: in one process, and across sites.

    Query images have no site that could be told apart, and a release of one teacher has no others;
    neither is rehearsed across sites.
    """
    if not release.private and release.plan.allocation == "none":
        return ()
    if isinstance(release, AdapterRelease):
        return (rehearse, rehearse_across)
    alone = release.plan.unit == "image" or release.plan.participants.teachers < 2
    return (rehearse,) if alone else (rehearse, rehearse_across)


def rehearse_across(release: AnyRelease, folder: Path) -> list[Check]:
    """Make one release of hospitals that share nothing but messages, and look at it.

    Args:
        release: whose plan is rehearsed.
        folder: a new one.
    """
    stage = Stage.of(release, folder)
    epsilon = LOUD[type(release)]
    homes = {name: folder / "hospitals" / name for name in stage.sites}
    sites = _open(stage, homes, epsilon)
    _write_images(folder / "asked", stage.invented.asked)
    made = run(_order(stage, folder, epsilon, "release"), _between(sites))
    what = "rehearsal across sites"
    ledgers = [Ledger(home / _LEDGER) for home in homes.values()]
    checks = [look(what, made, stage.residue(made), ledgers)]
    said = "two releases were paid for out of a budget for one"
    log = logging.getLogger("canal.federation")
    before = log.level
    log.setLevel(logging.CRITICAL)  # a refusal is what is wanted here, and no news
    try:
        run(_order(stage, folder, epsilon, "second"), _between(sites))
    except FederationError as error:
        said = str(error)
    finally:
        log.setLevel(before)
    refused = "budget" in said and "does not cover" in said
    fine = f"a budget for one release was refused to a second by {len(ledgers)} ledgers"
    checks.append(Check(f"{what}, a second release", refused, fine if refused else said))
    return checks


def _between(sites: dict[str, Site]) -> InMemory:
    return InMemory({name: site.answer for name, site in sites.items()})


def _open(stage: Stage, homes: dict[str, Path], epsilon: float) -> dict[str, Site]:
    """A folder for every hospital with all that it needs, and the site that lives there."""
    plan = stage.release.plan
    for name, home in homes.items():
        home.mkdir(parents=True)
        stage.give_budget(Ledger(home / _LEDGER), epsilon)
        _write_images(home / "images", stage.invented.cohorts[name])
        terms = {
            "name": name,
            "teacher": str(stage.invented.teachers[name].resolve()),
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


def _order(stage: Stage, folder: Path, epsilon: float, out: str) -> Order:
    release = stage.release
    more: dict[str, Any] = {}
    if isinstance(release, AdapterRelease):
        more = {"adapter": {"parts": list(FEW.parts)}}
    return Order(
        folder=folder,
        queries="asked",
        init=str(stage.invented.init.resolve()),
        out=out,
        trust=release.plan.trust,
        colluding=min(release.plan.colluding, len(stage.sites) - 1),
        release=release.kind,
        plan=stage.choices(epsilon),
        views=0,
        chunk=_CHUNK,
        train=False,
        **more,
    )


def _write_images(folder: Path, arrays: Arrays) -> None:
    """Images, masks, and the records of whom they show, as any reader reads them."""
    from PIL import Image

    for part, values in (("images", arrays.images), ("masks", arrays.masks * 255)):
        (folder / part).mkdir(parents=True)
        for name, image in zip(arrays.ids, values, strict=True):
            Image.fromarray(np.asarray(image[0])).save(folder / part / f"{name}.png")
    rows = [f"{name},{who}" for name, who in arrays.groups.items()]
    if rows:
        (folder / "metadata.csv").write_text("\n".join(["isic_id,patient_id", *rows]) + "\n")
