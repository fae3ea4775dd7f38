"""Teachers on real data: test Dice of three sites and of all together, and whether channels align.

One cell a data set and seed, a JSON file named by the digest of everything that determines it. A
stopped run goes on where it was: trainings resume from their state, finished networks and cells are
not made again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from canal.data import cache
from canal.data.duplicates import near_duplicates
from canal.data.readers import read
from canal.data.split import Split, make_split
from canal.experiments.cell import Cell
from canal.models import checkpoint
from canal.models.alignment import alignment
from canal.models.tap import Tap
from canal.models.unet import Norm, UNetArchitecture
from canal.teachers import evaluate
from canal.teachers.batches import to_float
from canal.teachers.run import initialise, train
from canal.teachers.training import Progress, TrainingSettings

DATA_SETS = {
    "Kvasir-SEG": "Kvasir-SEG",
    "BUSI": "Dataset_BUSI_with_GT",
    "ISIC 2018": "ISIC2018",
}


@dataclass(frozen=True)
class TeachersCell(Cell):
    """What determines one cell.

    Args:
        data_set: its name in `DATA_SETS`.
        seed: of split, initialisation and training.
        size: pixels a side.
        sites: K.
        recipient: images that no teacher sees: the initialisation is trained on them, and the
            alignment of channels measured.
        normal: keep BUSI's scans without a lesion.
        random: also train two sites from random weights, shared and not, to compare alignment.
        training: of every network.
        norm: of every network.
    """

    data_set: str
    seed: int = 0
    size: int = 64
    sites: int = 3
    recipient: int = 60
    normal: bool = False
    random: bool = False
    training: TrainingSettings = field(default_factory=TrainingSettings)
    norm: Norm = "instance"

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.data_set.lower().replace(' ', '-')}-{self.seed}"


Report = Callable[[Progress], None]


def run_cell(
    cell: TeachersCell,
    root: Path,
    runs: Path,
    results: Path,
    *,
    report: Report = lambda progress: None,
) -> dict[str, Any]:
    """Make one cell, or read it if it is there.

    Args:
        cell: what to make.
        root: folder of the data sets.
        runs: where trainings are kept.
        results: where the JSON goes.
        report: of progress, network by network.
    """
    return cell.result(results, lambda: _make(cell, root, runs, report))


def _make(cell: TeachersCell, root: Path, runs: Path, report: Report) -> dict[str, Any]:
    data = read(root / DATA_SETS[cell.data_set], normal=cell.normal)
    arrays = cache.load(data.cases, size=(cell.size, cell.size))
    split = make_split(
        data.cases,
        cohorts=cell.sites,
        recipient=cell.recipient,
        duplicates=near_duplicates(data.cases),
        seed=cell.seed,
    )
    bench = _Bench(cell, arrays, split, runs / cell.slug, report)
    first, second = list(split.cohorts)[:2]
    networks = {name: bench.network(name, "trained", ids) for name, ids in split.cohorts.items()}
    everyone = tuple(i for ids in split.cohorts.values() for i in ids)
    networks["pooled"] = bench.network("pooled", "trained", everyone)
    pairs = {"shared, trained on the recipient's images": (networks[first], networks[second])}
    if cell.random:
        one, two, other = (
            bench.network(f"{name}-{init}", init, split.cohorts[name])
            for name, init in ((first, "random"), (second, "random"), (second, "other-random"))
        )
        pairs |= {"shared, random weights": (one, two), "separate, random weights": (one, other)}
    return {
        "split": split.digest,
        "recipient": bench.score(bench.initialisation("trained"), cell.recipient),
        "networks": {
            name: bench.score(folder, len(everyone if name == "pooled" else split.cohorts[name]))
            for name, folder in networks.items()
        },
        "alignment": {
            name: asdict(alignment(bench.features(one), bench.features(two)))
            for name, (one, two) in pairs.items()
        },
    }


@dataclass(frozen=True)
class _Bench:
    """The networks of one cell: made when first asked for, kept in the run folder."""

    cell: TeachersCell
    arrays: cache.Arrays
    split: Split
    folder: Path
    report: Report

    def initialisation(self, kind: str) -> Path:
        """Folder of an initialisation: `trained`, `random`, or `other-random`."""
        place = self.folder / f"init-{kind}"
        initialise(
            place,
            UNetArchitecture(in_channels=self.arrays.images.shape[1], norm=self.cell.norm),
            seed=self.cell.seed + (1000 if kind == "other-random" else 0),
            size=(self.cell.size, self.cell.size),
            arrays=self.arrays.rows(self.split.recipient) if kind == "trained" else None,
            settings=self.cell.training,
            report=self.report,
        )
        return place

    def network(self, name: str, init: str, ids: tuple[str, ...]) -> Path:
        """Folder of a network trained from an initialisation on these cases."""
        place, start = self.folder / name, self.initialisation(init)
        cohort = self.arrays.rows(ids)
        train(place, start, cohort, self.cell.training, name=name, report=self.report)
        return place

    def score(self, folder: Path, trained_on: int) -> dict[str, Any]:
        """Scores on the test part."""
        test = self.arrays.rows(self.split.test)
        network, _ = checkpoint.load(folder)
        found = evaluate.scores(evaluate.predict(network, test), test)
        return {"trained_on": trained_on, **evaluate.summary(found)}

    def features(self, folder: Path) -> Any:
        """Bottlenecks of the recipient's images."""
        network, description = checkpoint.load(folder)
        return Tap(network, description.tap).features(
            _images(self.arrays.rows(self.split.recipient))
        )


def _images(arrays: cache.Arrays) -> Any:
    import numpy as np
    import torch

    return to_float(torch.from_numpy(np.array(arrays.images)))


def markdown(cells: list[dict[str, Any]]) -> str:
    """The two tables of `docs/teachers.md`, from what the cells say."""
    lines = ["| data | network | trained on | test images | Dice | 95 % interval | IoU | HD95 |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for cell in cells:
        shown = {"recipient alone (the initialisation)": cell["recipient"], **cell["networks"]}
        for name, found in shown.items():
            low, high = (f"{100 * end:.1f}" for end in found["dice_interval"])
            distance = "-" if found["hd95"] is None else f"{found['hd95']:.1f} px"
            lines.append(
                f"| {cell['cell']['data_set']} | {name} | {found['trained_on']} "
                f"| {found['images']} | {100 * found['dice']:.1f} | {low} to {high} "
                f"| {100 * found['iou']:.1f} | {distance} |"
            )
    lines += ["", "| data | initialisation of two teachers | cosine | channel correlation |"]
    lines += ["|---|---|---|---|"]
    for cell in cells:
        lines += [
            f"| {cell['cell']['data_set']} | {name} | {found['cosine']:.2f} "
            f"| {found['correlation']:.2f} |"
            for name, found in cell["alignment"].items()
        ]
    return "\n".join(lines) + "\n"
