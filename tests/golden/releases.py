"""Make every golden release through the doors that users take: the command line, and orders."""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from canal.federation.aggregate import run
from canal.federation.identity import Identity
from canal.federation.message import Message
from canal.federation.settings import to_toml
from canal.federation.site import Site
from canal.federation.transport import InMemory
from canal.privacy import Ledger
from typed import here

SITES = ("north", "south", "west")
BUDGETS = {"patient": 400.0, "membership": 80.0}
SMALL = ("--size", 32, "--channels", 1)
FEATURES = ("--released", 8, "--purpose", "golden", "--contact", "nobody@example.org")
PAID = ("--preset", "paper", "--unit", "patient", "--weight", "importance")
ROUNDS = ("--patients", 9, "--rounds", 2, "--views", 1, "--chunk", 4, "--yes")
FEW = ("--part", "norms", "--part", "head")
HEAD = ("--part", "head", "--directions", 5)
ORDER = {"queries": "queries", "init": "init", "train": False, "trust": "secure-sum"}
RATES = {"epsilon": 8.0, "patients": 9, "rounds": 2}
ADAPTERS = {"release": "adapters", "chunk": 4, "adapter": {"parts": ["norms", "head"]}}

# By name of the release: what is typed, or what an aggregator orders. Those that are paid draw
# secrets; the others have a seed and the same bytes each time.
TYPED = {
    "features": ("release", "create", *FEATURES, "--seed", 5),
    "features-paid": ("release", "create", *FEATURES, *PAID, "--epsilon", 60),
    "features-statistics": ("release", "create", *FEATURES, *PAID, "--epsilon", 60, "--seed", 6),
    "gradients": ("adapters", "train", *ROUNDS, *FEW, "--directions", 9, "--seed", 7),
    "gradients-replaced-paid": ("adapters", "train", *ROUNDS, *HEAD, "--relation", "replace"),
    "gradients-counted": (
        *("adapters", "train", *ROUNDS, *FEW[:2], "--allocation", "channels"),
        *("--count-patients", 0.05, "--seed", 8),
    ),
    "gradients-counted-paid": ("adapters", "train", *ROUNDS, *HEAD, "--count-patients", 0.05),
    "statistics": ("statistics", "release", "--purpose", "golden", "--seed", 11),
    "statistics-paid": ("statistics", "release", "--budget-split", 0.4, 0.3, 0.2, 0.1),
}
ORDERED = {
    "features-across": {"seed": 9, "preset": "paper", "plan": {"epsilon": 60.0, "released": 8}},
    "features-across-paid": {"plan": {"epsilon": 8.0, "released": 8}},
    "gradients-across": {**ADAPTERS, "seed": 10, "plan": RATES | {"directions": 9}},
    "gradients-across-paid": {**ADAPTERS, "plan": RATES | {"count": 0.05, "directions": 9}},
}


@dataclass
class Made:
    """One release, and whom it was charged to.

    Args:
        name: in the tables above.
        folder: of the release.
        ledgers: files, by whose they are.
        asked: every question to the sites with their answers; empty where they share a process.
    """

    name: str
    folder: Path
    ledgers: dict[str, Path]
    asked: list = field(default_factory=list)


def make_all(root):
    """All of them below one folder."""
    write_images(root / "queries", range(6))
    for number, site in enumerate(SITES):
        write_images(root / site, range(10 + 10 * number, 16 + 10 * number))
    say(root, "init", "--out", "init", *SMALL, "--base-channels", 8, "--public-seed", 4)
    for number, site in enumerate(SITES):
        steps = (*SMALL, "--steps", 3, "--batch-size", 2, "--seed", number, "--no-augment")
        where = ("--init", "init", "--data", site, "--out", f"t/{site}")
        say(root, "teacher", "train", *where, *steps)
    yield from (type_out(root, name, words) for name, words in TYPED.items())
    yield from (carry_out(root, name, order) for name, order in ORDERED.items())


def say(root, *words):
    ended, said, complained = here(root, root / "cache", *words)
    assert ended == 0, f"canal {words}: {said} {complained}"
    return said


def give_budgets(ledger, names):
    for unit, epsilon in BUDGETS.items():
        Ledger(ledger).set_budget(names, unit, epsilon=epsilon, delta=1e-5)


def type_out(root, name, words):
    """A release whose sites are folders of one computer."""
    ledger = root / f"{name}.sqlite"
    give_budgets(ledger, SITES)
    if words[0] == "release":
        given = [word for site in SITES for word in ("--teacher", f"t/{site}")]
    else:
        given = [word for site in SITES for word in ("--data", site)]
    if words[0] != "statistics":
        given += ["--init", "init", "--queries", "queries"]
    if "--seed" not in words:
        given += ["--ledger", ledger]
    say(root, *words, *given, "--out", name)
    return Made(name, root / name, {"all": ledger})


def carry_out(root, name, order):
    """A release of three sites that have nothing but messages in common."""
    homes = {site: root / f"{name}-sites" / site for site in SITES}
    prints = {}
    for site, home in homes.items():
        home.mkdir(parents=True)
        terms = {"name": site, "teacher": str(root / "t" / site), "images": str(root / site)}
        terms |= {"research": "seed" in order, "chunk": 4}
        (home / "site.toml").write_text(to_toml(terms))
        prints[site] = Identity.create(home, site).fingerprint
        give_budgets(home / "ledger.sqlite", [site])
    for home in homes.values():
        (home / "roster.json").write_text(json.dumps(prints))
    sites = {site: Site.open(home) for site, home in homes.items()}
    (root / f"{name}.toml").write_text(to_toml(ORDER | {"out": name} | order))
    wire = Wire(InMemory({site: each.answer for site, each in sites.items()}))
    run(root / f"{name}.toml", wire)
    return Made(
        name, root / name, {s: home / "ledger.sqlite" for s, home in homes.items()}, wire.asked
    )


class Wire:
    """A transport that keeps what it carried."""

    def __init__(self, inner):
        self.inner, self.asked = inner, []

    @property
    def sites(self):
        return self.inner.sites

    def ask(self, requests):
        answers = self.inner.ask(requests)
        read = [
            {site: Message.from_bytes(each) for site, each in sent.items()}
            for sent in (requests, answers)
        ]
        self.asked.append(read)
        return answers


def write_images(folder, numbers):
    """Grey discs in noise, integers from seeds alone; two images of every patient."""
    row, column = np.mgrid[:32, :32]
    rows = [("image_id", "patient_id")]
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for number in numbers:
        draw = np.random.default_rng(number)
        y, x, radius = draw.integers(8, 24), draw.integers(8, 24), draw.integers(5, 10)
        mask = ((row - y) ** 2 + (column - x) ** 2 < radius**2).astype(np.uint8)
        image = (draw.integers(0, 100, (32, 32)) + 130 * mask).astype(np.uint8)
        for part, pixels in (("images", image), ("masks", mask * 255)):
            Image.fromarray(pixels).save(folder / part / f"image-{number}.png")
        rows.append((f"image-{number}", f"patient-{number // 2}"))
    with (folder / "metadata.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
