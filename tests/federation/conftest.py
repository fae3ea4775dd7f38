"""Three hospitals in this process, each with a folder, a teacher and a ledger of its own."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from canal.features import mechanism, site
from canal.federation.identity import Identity
from canal.federation.settings import Order
from canal.federation.site import Site
from canal.federation.transport import InMemory
from canal.privacy import Ledger
from tiny import SITES


class Hospitals:
    """Their folders below one, and the sites that live there.

    Args:
        folder: of all.
        checkpoints: one teacher for each.
        epsilon: patient-level budget of each.
        terms: lines of `site.toml`.
    """

    def __init__(self, folder, checkpoints, epsilon=20.0, **terms):
        self.folder, self.names = folder, SITES
        prints = {}
        for name, teacher in zip(SITES, checkpoints.teachers, strict=True):
            home = self.home(name)
            home.mkdir(parents=True)
            shutil.copytree(teacher, home / "teacher")
            prints[name] = Identity.create(home, name).fingerprint
            Ledger(home / "ledger.sqlite").set_budget(name, "patient", epsilon=epsilon, delta=1e-5)
            lines = {"name": name} | terms
            text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in lines.items())
            (home / "site.toml").write_text(text)
        for name in SITES:
            (self.home(name) / "roster.json").write_text(json.dumps(prints))
        self.start()

    def home(self, name):
        return self.folder / name

    def start(self, *names):
        """Start sites anew, as after a crash; all if none is named."""
        known = getattr(self, "sites", {})
        self.sites = known | {name: Site.open(self.home(name)) for name in names or self.names}

    @property
    def transport(self):
        return InMemory({name: site.answer for name, site in self.sites.items()})

    def ledger(self, name):
        return Ledger(self.home(name) / "ledger.sqlite")

    def charges(self, name):
        """Rho of every reservation at patient level, in order."""
        rows = self.ledger(name).rows()
        return [row.rho for row in rows if row.action == "reserve" and row.unit == "patient"]


@pytest.fixture
def make_hospitals(tmp_path, checkpoints):
    def make(name="hospitals", **terms):
        return Hospitals(tmp_path / name, checkpoints, **terms)

    return make


@pytest.fixture
def hospitals(make_hospitals):
    return make_hospitals()


@pytest.fixture(scope="session")
def asked(tmp_path_factory, arrays):
    """The recipient's images as a folder that any reader reads."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("asked")
    for part, values in (("images", arrays.images), ("masks", arrays.masks * 255)):
        (folder / part).mkdir()
        for name, image in zip(arrays.ids, values, strict=True):
            Image.fromarray(np.asarray(image[0])).save(folder / part / f"{name}.png")
    return folder


@pytest.fixture
def make_order(tmp_path, asked, checkpoints):
    def make(out="release", **choices):
        known = {
            "queries": str(asked),
            "init": str(checkpoints.init),
            "out": str(tmp_path / out),
            "train": False,
            "plan": {"epsilon": 8.0, "released": 12},
        }
        return Order(folder=Path(tmp_path), **(known | choices))

    return make


@pytest.fixture
def small_blocks(monkeypatch):
    """Three blocks for forty queries."""
    for module in (mechanism, site):
        monkeypatch.setattr(module, "BLOCK", 16)
