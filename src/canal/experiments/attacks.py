"""The paper's attack table, with what its reviewers would ask for (paper, tab:exp-attacks).

One cell a seed: an initialisation, three teachers, and the releases of `ARMS`, each attacked three
ways. Noise is seeded, so that a cell can be made again. A stopped run goes on where it was:
networks, shadows and arms are kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from canal.attacks.finding import Finding, features_mu
from canal.attacks.inversion import invert
from canal.attacks.lira import Shadows
from canal.attacks.matching import match
from canal.attacks.patients import Target, attack_patients, attack_shadows
from canal.attacks.roc import allowed_auc
from canal.attacks.shadows import Pool, train_shadows
from canal.data.duplicates import near_duplicates
from canal.data.load import load
from canal.data.readers import read
from canal.data.split import make_split
from canal.experiments.cell import Cell
from canal.experiments.teachers import DATA_SETS
from canal.files import replace_file
from canal.models.unet import Norm, UNetArchitecture
from canal.release.aggregator import create
from canal.release.digits import upwards
from canal.release.ensemble import Ensemble, load_ensemble
from canal.release.queries import Queries
from canal.release.store import Release
from canal.teachers.run import initialise, train
from canal.teachers.training import Progress, TrainingSettings

# Name, preset, allocation, epsilon; the order of the table.
ARMS: dict[str, tuple[str, str, float]] = {
    "no noise": ("paper", "none", 8),
    "uniform, the paper's eps 8": ("paper", "uniform", 8),
    "CANAL, the paper's eps 8": ("paper", "canal", 8),
    "uniform, the paper's eps 2": ("paper", "uniform", 2),
    "CANAL, the paper's eps 2": ("paper", "canal", 2),
    "CANAL, a patient's eps 8": ("honest", "canal", 8),
}
SITE = "site-1"
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class AttacksCell(Cell):
    """What determines one cell.

    Args:
        seed: of split, initialisation, training, halves and noise.
        data_set: its name in `DATA_SETS`.
        size: pixels a side.
        sites: K.
        queries: N, the recipient's images; the victims.
        shadows: teachers that the patient attack trains.
        decoder_steps: of each inversion.
        training: of every network.
        norm: of every network.
    """

    seed: int = 0
    data_set: str = "ISIC 2018"
    size: int = 64
    sites: int = 3
    queries: int = 200
    shadows: int = 12
    decoder_steps: int = 600
    training: TrainingSettings = field(default_factory=TrainingSettings)
    norm: Norm = "instance"

    @property
    def name(self) -> str:
        """For people."""
        return f"attacks-{self.seed}"


def run_cell(
    cell: AttacksCell,
    root: Path,
    runs: Path,
    results: Path,
    *,
    report: Report = lambda what, done, total: None,
) -> dict[str, Any]:
    """Make one cell, or read it if it is there.

    Args:
        cell: what to make.
        root: folder of the data sets.
        runs: where trainings and releases are kept.
        results: where the JSON goes.
        report: told what is done, and how far it is.
    """

    def make() -> dict[str, Any]:
        started = time.monotonic()
        scene = _Scene(cell, root / DATA_SETS[cell.data_set], runs / cell.slug, report)
        arms = {name: scene.attack(name) for name in ARMS}
        return {
            "members": len(scene.asked.ids),
            "others": len(scene.others.ids),
            "pool": len(scene.pool.patients),
            "arms": arms,
            "seconds": round(time.monotonic() - started),
        }

    return cell.result(results, make)


class _Scene:
    """Data, networks and shadows of one cell; made when first asked for, kept in the run folder."""

    def __init__(self, cell: AttacksCell, source: Path, folder: Path, report: Report) -> None:
        self.cell, self.folder, self.report = cell, folder, report
        folder.mkdir(parents=True, exist_ok=True)
        split = folder / "split.json"
        if not split.is_file():
            cases = read(source).cases
            made = make_split(
                cases,
                cohorts=cell.sites,
                recipient=cell.queries,
                duplicates=near_duplicates(cases),
                seed=cell.seed,
            )
            made.write(split)

        def part(name: str) -> Any:
            return load(source, size=cell.size, split=split, part=name)

        self.asked, self.others = part("recipient"), part("test")
        cohorts = {f"site-{k + 1}": part(f"site-{k + 1}") for k in range(cell.sites)}
        self.pool = Pool.of_both(cohorts[SITE], self.others)
        self.ensemble = self._train(cohorts)
        self.halves = self.pool.halves(cell.shadows, cell.seed)
        self.shadows = self._train_shadows()

    def _told(self, what: str) -> Callable[[Progress], None]:
        return lambda progress: self.report(what, progress.step, progress.steps)

    def _train(self, cohorts: dict[str, Any]) -> Ensemble:
        init, training = self.folder / "init", self.cell.training
        initialise(
            init,
            UNetArchitecture(in_channels=self.asked.images.shape[1], norm=self.cell.norm),
            seed=self.cell.seed,
            size=(self.cell.size, self.cell.size),
            arrays=self.asked,
            settings=training,
            report=self._told("initialisation"),
        )
        for name, arrays in cohorts.items():
            train(self.folder / name, init, arrays, training, name=name, report=self._told(name))
        return load_ensemble([self.folder / name for name in cohorts], init)

    def _train_shadows(self) -> Sequence[Path]:
        return train_shadows(
            self.folder / "shadows",
            self.folder / "init",
            self.pool,
            self.halves,
            self.cell.training,
            lambda number, progress: self.report(
                f"shadow {number + 1} of {self.cell.shadows}", progress.step, progress.steps
            ),
        )

    def attack(self, name: str) -> dict[str, Any]:
        """One arm: three attacks, read from disk if they were made before."""
        path = self.folder / f"arm-{list(ARMS).index(name)}.json"
        if path.is_file():
            done: dict[str, Any] = json.loads(path.read_text())
            return done
        release = self._release(name)
        digest = release.manifest.digest
        matched = match(release, self.ensemble, self.asked, self.others)
        images = Finding("", digest, matched, "image", features_mu(release, "image"))
        target = Target.of(release, self.asked)
        shadows = Shadows(target.features(self.shadows), self.halves)
        played, plain = attack_shadows(shadows, target.noise, self.cell.seed)
        patients = Finding("", digest, played, "patient", features_mu(release, "patient"))
        real = attack_patients(
            *(release, self.ensemble, self.asked, SITE),
            *(self.pool, self.halves, self.shadows, self.pool.members),
        )
        steps = self.cell.decoder_steps
        counted = iter(range(1, steps + 1))
        painted = invert(
            *(release, self.ensemble, self.asked, self.others),
            steps=steps,
            seed=self.cell.seed,
            progress=lambda _: self.report(f"inversion, {name}", next(counted), steps),
        )
        if self.cell.seed == 0:
            painted.write_pictures(self.folder / f"inversion-{path.stem}.png", self.asked)
        found = {
            "epsilon_patient": _epsilon(release),
            "images": images.to_json(),
            "patients": patients.to_json() | {"plain": plain.auc},
            "patients_of_the_release": real.to_json(),
            "inversion": painted.to_json(),
        }
        replace_file(path, (json.dumps(found, indent=1) + "\n").encode())
        return found

    def _release(self, name: str) -> Release:
        preset, allocation, epsilon = ARMS[name]
        queries = Queries.of(self.asked)
        plan = self.ensemble.plan(queries, preset, epsilon=epsilon, allocation=allocation)
        out = self.folder / f"release-{list(ARMS).index(name)}"
        return create(out, self.ensemble, queries, plan, seed=self.cell.seed, not_private=True)


def _epsilon(release: Release) -> float | None:
    """What the noise of a research run would cost a patient, had it come from a secret."""
    plan = release.plan
    if plan.allocation == "none":
        return None
    return plan.calibrate().guarantee.epsilon(plan.delta, "patient", "exact")


def markdown(cells: list[dict[str, Any]]) -> str:
    """The table of `docs/attacks.md`: means over seeds, with the smallest and largest."""
    lines = [
        "| release | a patient's eps | images: AUC | found at 1 % | allowed | patients, LiRA: AUC "
        "| plain distance | allowed | inversion SSIM | above the mean image | PSNR |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in ARMS:
        arms = [cell["arms"][name] for cell in cells]
        epsilon = arms[0]["epsilon_patient"]
        lines.append(
            f"| {name} | {'none' if epsilon is None else f'{epsilon:.4g}'} "
            f"| {_over(arm['images']['auc'] for arm in arms)} "
            f"| {_found(arm['images']['tpr'].get('0.01') for arm in arms)} "
            f"| {_allowed(arms[0]['images'])} "
            f"| {_over(arm['patients']['auc'] for arm in arms)} "
            f"| {_over(arm['patients']['plain'] for arm in arms)} "
            f"| {_allowed(arms[0]['patients'])} "
            f"| {_over(arm['inversion']['decoder']['ssim'] for arm in arms)} "
            f"| {_over((arm['inversion']['ssim_gain'] for arm in arms), signed=True)} "
            f"| {_over(arm['inversion']['decoder']['psnr'] for arm in arms)} dB |"
        )
    return "\n".join(lines) + "\n"


def _found(shares: Any) -> str:
    """Members found, in hundredths; nothing where there are too few others to tell."""
    found = list(shares)
    return "–" if None in found else f"{_over(100 * share for share in found)} %"


def _over(values: Any, *, signed: bool = False) -> str:
    found = np.array(list(values))
    digits = 1 if np.abs(found).max() >= 2 else 3
    sign = "+" if signed else ""
    if len(found) == 1:
        return f"{found[0]:{sign}.{digits}f}"
    low, high = (f"{end:{sign}.{digits}f}" for end in (found.min(), found.max()))
    return f"{found.mean():{sign}.{digits}f} ({low} to {high})"


def _allowed(attack: dict[str, Any]) -> str:
    if attack["allowed"] is None:
        return "anything"
    return f"{upwards(allowed_auc(attack['allowed']['mu']), 3):g}"
