"""How many modules four walks pass through: those whose functions are called, imports left out.

`python -m bench.walks` prints the numbers of `docs/architecture.md`: what a newcomer would have to
open to follow `canal plan`; an image to the noisy feature and a student's loss; a gradient round;
and the same round across hosts by secure sum.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from typer.testing import CliRunner

import canal
from canal.cli import app

SOURCE = str(Path(canal.__file__).parent)
COHORTS = ("endoscopy", "dermoscopy", "ultrasound")
DATA = "--data data --split split.json --init init"


def modules_of(walk: Callable[[], Any]) -> list[str]:
    """Modules of the package whose functions a walk calls."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        inside = event == "call" and code.co_filename.startswith(SOURCE)
        if inside and code.co_name != "<module>":
            seen.add(code.co_filename[len(SOURCE) + 1 : -len(".py")])

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        walk()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None takes it off
    return sorted(seen)


def call(words: str) -> None:
    """One command, here."""
    made = CliRunner().invoke(app, shlex.split(words), catch_exceptions=False)
    if made.exit_code:
        raise SystemExit(f"canal {words}\n{made.output}")


def prepare() -> None:
    """Three synthetic hospitals with teachers and budgets, in this folder."""
    call("data synthetic data --count 60 --size 32")
    call("data split data --partition site --recipient 12 --out split.json")
    small = "--size 32 --steps 5"
    call(f"init --data data --split split.json --out init --base-channels 8 {small}")
    for cohort in COHORTS:
        call(f"teacher train {DATA} --cohort {cohort} --out teacher-{cohort} {small}")
    everyone = " ".join(f"--cohort {cohort}" for cohort in COHORTS)
    for unit in ("patient", "membership"):
        call(f"ledger budget ledger.sqlite {everyone} --unit {unit} --epsilon 40")


def features() -> None:
    """From an image to the noisy feature, and to a student's loss."""
    teachers = " ".join(f"--teacher teacher-{cohort}" for cohort in COHORTS)
    asked = "--queries data --split split.json --init init --ledger ledger.sqlite"
    call(f"release create {teachers} {asked} --epsilon 8 --out release")
    call(f"student train {DATA} --release release --out student --size 32 --steps 2")


def gradient_round() -> None:
    """One round in this process."""
    asked = "--patients 20 --rounds 1 --epsilon 8 --ledger ledger.sqlite --yes"
    call(f"adapters train {DATA} {asked} --out rounds")


def federated_round() -> None:
    """One round across sites that share nothing but messages."""
    from canal.federation.aggregate import run
    from canal.federation.identity import Identity
    from canal.federation.settings import Order
    from canal.federation.site import Site
    from canal.federation.transport import InMemory
    from canal.privacy.ledger import Ledger

    here, homes = Path.cwd(), {name: Path("sites", name) for name in COHORTS}
    prints = {}
    for name, home in homes.items():
        home.mkdir(parents=True)
        for unit in ("membership", "patient"):
            budget = {"epsilon": 100.0, "delta": 1e-5}
            Ledger(home / "ledger.sqlite").set_budget(name, unit, **budget)  # type: ignore[arg-type]
        settings = f'name = "{name}"\nimages = "{here}/data/{name}"\ntrust = ["secure-sum"]\n'
        (home / "site.toml").write_text(settings)
        prints[name] = Identity.create(home, name).fingerprint
    for home in homes.values():
        (home / "roster.json").write_text(json.dumps(prints))
    sites = {name: Site.open(home) for name, home in homes.items()}
    order = Order(
        folder=here,
        queries="data",
        split="split.json",
        init="init",
        out="across",
        release="adapters",
        plan={"epsilon": 8.0, "patients": 40, "rounds": 1},
    )
    run(order, InMemory({name: site.answer for name, site in sites.items()}))


WALKS = {
    "canal plan": lambda: call("plan --epsilon 8"),
    "image, noisy feature, student's loss": features,
    "a gradient round": gradient_round,
    "a federated round": federated_round,
}


def main() -> None:
    """Print how many modules each walk passes through; with `--list`, which."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare()
        found = {name: modules_of(walk) for name, walk in WALKS.items()}
    for name, modules in found.items():
        sys.stdout.write(f"{len(modules):4}  {name}\n")
        if "--list" in sys.argv:
            sys.stdout.writelines(f"        {module}\n" for module in modules)


if __name__ == "__main__":
    main()
