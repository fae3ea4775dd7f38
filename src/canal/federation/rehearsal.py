"""A rehearsal: hospitals as folders on this machine, for FLARE's simulator.

All sites are in one hand then, so nobody is protected by their being apart: noise is seeded, and
the release says that it is not private.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from canal.data import overlap
from canal.errors import FederationError
from canal.federation.identity import Identity
from canal.federation.settings import SITE, to_toml
from canal.learning import checkpoint

ORDER = "order.toml"
_MARK = "# A rehearsal: it protects nobody.\n"


@dataclass(frozen=True)
class Rehearsal:
    """What was prepared.

    Args:
        sites: folders of the sites, by name.
        order: file of the order.
    """

    sites: Mapping[str, Path]
    order: Path


def prepare(folder: Path, teachers: Sequence[Path], order: Mapping[str, Any]) -> Rehearsal:
    """Make a site of every teacher, with an identity of its own, and write the order down.

    Args:
        folder: of the rehearsal; what is there already is used again.
        teachers: folders, one for each site.
        order: what is asked for; entries of `Order`, with absolute paths.
    """
    sites: dict[str, Path] = {}
    for teacher in teachers:
        notes = checkpoint.describe(teacher).notes
        name = str(notes.get("site") or teacher.resolve().name)
        if name in sites:
            raise FederationError(f"two teachers are of {name!r}; give one for each site")
        sites[name] = folder / "sites" / name
    known = zip(sites, map(overlap.read, teachers), strict=True)
    images = {name: overlap.contents(patients) for name, patients in known}
    overlap.compare(images, frozenset(), frozenset())  # what real hospitals cannot see
    prints = {name: Identity.create(home, name).fingerprint for name, home in sites.items()}
    for (name, home), teacher in zip(sites.items(), teachers, strict=True):
        terms = {
            "name": name,
            "teacher": os.path.abspath(teacher),  # noqa: PTH100  # a link stays a link
            "trust": ["trusted", "secure-sum"],
            "colluding": 0,
            "research": True,
            "again": True,
        }
        _write(home / SITE, _MARK + to_toml(terms))
        (home / "roster.json").write_text(json.dumps(prints, indent=1) + "\n")
    path = folder / ORDER
    path.write_text(to_toml(order))
    return Rehearsal(sites, path)


def _write(path: Path, terms: str) -> None:
    """Never over the terms of a real site."""
    if path.is_file() and not path.read_text().startswith(_MARK):
        raise FederationError(
            f"{path} holds the terms of a real site; rehearse in another folder (--work)"
        )
    path.write_text(terms)
