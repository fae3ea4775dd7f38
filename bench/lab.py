"""What the releases of a federation are made of: queries, an initialisation, a teacher a site."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from canal.data.synthetic import write
from canal.features.ensemble import Ensemble, load_ensemble
from canal.features.release import create
from canal.federation.settings import Order
from canal.learning import checkpoint
from canal.learning.checkpoint import Checkpoint
from canal.learning.networks import UNetArchitecture, weights_digest
from canal.release.plan import Trust

if TYPE_CHECKING:
    from canal.features.plan import Plan
    from canal.features.queries import Queries

# The paper's 51 channels of 16 x 16. At 64 pixels the bottleneck has 4 x 4 positions, so a layer
# two levels above it is tapped, which has 64 channels of 16 x 16.
SIZE, LAYER, RELEASED = (64, 64), "down_2", 51
KILOBYTES = RELEASED * 16 * 16 * 4 // 1000  # of what a site sends for a query


@dataclass(frozen=True)
class Lab:
    """One folder with everything in it.

    Args:
        folder: of all.
        names: of the sites.
        statistics: public caps and importance, as a release writes them down.
    """

    folder: Path
    names: tuple[str, ...]
    statistics: str = ""

    @classmethod
    def make(cls, folder: Path, sites: int, queries: int) -> Lab:
        """Write it all; statistics are those of a few queries."""
        lab = cls(folder, tuple(f"site-{number:02}" for number in range(sites)))
        write(folder / "queries", queries, size=SIZE)
        write(folder / "few", 48, size=SIZE)
        _write_networks(folder, lab.names)
        first = lab.order(folder / "first", "trusted", queries="few")
        made = create(first.out, *lab.load(first), seed=first.seed)
        return cls(folder, lab.names, json.dumps(made.manifest.statistics))

    def home(self, name: str) -> Path:
        """The canal folder of a site."""
        return self.folder / name

    def admit(self, name: str, roster: Mapping[str, str], **terms: str) -> None:
        """Write a site's terms: runs of every kind, as often as one likes, for research only."""
        known: dict[str, object] = {
            "name": name,
            "trust": ["trusted", "secure-sum"],
            "research": True,
            "again": True,
            **terms,
        }
        lines = (f"{key} = {json.dumps(value)}" for key, value in known.items())
        (self.home(name) / "site.toml").write_text("\n".join(lines))
        (self.home(name) / "roster.json").write_text(json.dumps(dict(roster)))

    def out(self) -> Path:
        """A new folder to release into, with the statistics beside it."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        private = place / "release.private"
        private.mkdir()
        (private / "statistics.json").write_text(self.statistics)
        return place / "release"

    def order(self, out: Path, trust: Trust, *, queries: str = "queries") -> Order:
        """One release, by the preset that a federation has if none is named."""
        return Order(
            folder=self.folder,
            queries=queries,
            init="init",
            out=str(out),
            trust=trust,
            plan={"epsilon": 8.0, "released": RELEASED},
            train=False,
            seed=0,
        )

    def load(self, order: Order) -> tuple[Ensemble, Queries, Plan]:
        """All teachers in this process, and what an order asks of them."""
        from canal.federation.aggregate import read_images

        init = self.folder / "init"
        ensemble = load_ensemble([self.home(name) / "teacher" for name in self.names], init)
        queries = Queries.of(read_images(order, checkpoint.describe(init)))
        return ensemble, queries, ensemble.plan(queries, order.preset, **order.plan)

    def alone(self, trust: Trust, threads: int, *, queries: str = "queries") -> tuple[float, str]:
        """Release in this process; gives the seconds, and the digest of the manifest.

        Args:
            trust: the model of trust.
            threads: that networks may use.
            queries: the folder of them.
        """
        order = self.order(self.out(), trust, queries=queries)
        made_of = self.load(order)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            start = time.perf_counter()
            made = create(order.out, *made_of, seed=order.seed)
            seconds = time.perf_counter() - start
        finally:
            torch.set_num_threads(before)
        shutil.rmtree(made.path.parent)
        return seconds, made.manifest.digest


def _write_networks(folder: Path, names: Sequence[str]) -> None:
    """The initialisation, and for each site the same, moved a little as training would."""
    architecture = UNetArchitecture()
    shared = architecture.build(seed=0)
    known: dict[str, Any] = {
        "architecture": architecture.to_json(),
        "tap": LAYER,
        "initialisation": weights_digest(shared),
        "size": SIZE,
    }
    notes: dict[str, Any] = {"role": "initialisation", "seed": 0, "trained": False}
    checkpoint.save(folder / "init", shared, Checkpoint(**known, notes=notes))
    for number, name in enumerate(names):
        network, generator = copy.deepcopy(shared), torch.Generator().manual_seed(number)
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.02)
        notes = {"role": "teacher", "site": name, "images": 20, "trained_initialisation": False}
        checkpoint.save(folder / name / "teacher", network, Checkpoint(**known, notes=notes))
