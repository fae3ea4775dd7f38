"""Teachers on real data: test Dice of three sites and of all together, and whether channels align.

One cell a data set and seed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canal.experiments.cell import Cell, Places, Report
from canal.experiments.markdown import row, table
from canal.experiments.stage import Scene, Stage
from canal.learning import checkpoint, evaluation
from canal.learning.networks import Tap, alignment, to_float
from canal.learning.prediction import predict
from canal.learning.teacher import initialise, train

if TYPE_CHECKING:
    from canal.data.arrays import Arrays


@dataclass(frozen=True)
class TeachersCell(Cell):
    """What determines one cell.

    Args:
        scene: data and teachers.
        random: also train two sites from random weights, shared and not, to compare alignment.
    """

    scene: Scene
    random: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return self.scene.name

    def make(self, places: Places, report: Report) -> dict[str, Any]:
        """Train all networks and measure them on the test part."""
        stage = self.scene.on(places, report)
        cohorts = stage.split.cohorts
        first, second = list(cohorts)[:2]
        networks = {name: stage.teacher(name) for name in cohorts}
        everyone = stage.part("pooled").rows(tuple(i for ids in cohorts.values() for i in ids))
        networks["pooled"] = stage.folder / "pooled"
        train(
            *(networks["pooled"], stage.init, everyone, stage.training),
            name="pooled",
            report=stage.told("pooled"),
        )
        pairs = {"shared, trained on the recipient's images": (networks[first], networks[second])}
        if self.random:
            one, two, other = (
                _from_random(stage, name, init)
                for name, init in ((first, "random"), (second, "random"), (second, "other"))
            )
            pairs |= {"shared, random weights": (one, two)}
            pairs |= {"separate, random weights": (one, other)}
        test, asked = stage.part("test"), stage.part("recipient")
        sizes = {name: len(ids) for name, ids in cohorts.items()} | {"pooled": len(everyone.ids)}
        return {
            "split": stage.split.digest,
            "recipient": _score(stage.init, test, len(asked.ids)),
            "networks": {name: _score(at, test, sizes[name]) for name, at in networks.items()},
            "alignment": {
                name: asdict(alignment(_features(one, asked), _features(two, asked)))
                for name, (one, two) in pairs.items()
            },
        }


def _from_random(stage: Stage, name: str, kind: str) -> Path:
    """Folder of a teacher that starts from random weights, `random` or `other`."""
    cohort = stage.part(name)
    init, place = stage.folder / f"init-{kind}", stage.folder / f"{name}-{kind}"
    initialise(
        init,
        stage.scene.architecture(cohort),
        seed=stage.scene.seed + (1000 if kind == "other" else 0),
        size=cohort.images.shape[2:],
    )
    train(place, init, cohort, stage.training, name=name, report=stage.told(place.name))
    return place


def _score(folder: Path, test: Arrays, trained_on: int) -> dict[str, Any]:
    network, _ = checkpoint.load(folder)
    found = evaluation.scores(predict(network, test), test)
    return {"trained_on": trained_on, **evaluation.summary(found)}


def _features(folder: Path, arrays: Arrays) -> Any:
    import numpy as np
    import torch

    network, description = checkpoint.load(folder)
    images = to_float(torch.from_numpy(np.array(arrays.images)))
    return Tap(network, description.tap).features(images)


def markdown(cells: list[dict[str, Any]]) -> str:
    """The two tables of `docs/teachers.md`, from what the cells say."""
    scores, pairs = [], []
    for cell in cells:
        data_set = cell["cell"]["scene"]["data_set"]
        shown = {"recipient alone (the initialisation)": cell["recipient"], **cell["networks"]}
        for name, found in shown.items():
            low, high = (f"{100 * end:.1f}" for end in found["dice_interval"])
            distance = "-" if found["hd95"] is None else f"{found['hd95']:.1f} px"
            numbers = [str(found["trained_on"]), str(found["images"]), f"{100 * found['dice']:.1f}"]
            rest = [f"{low} to {high}", f"{100 * found['iou']:.1f}", distance]
            scores.append(row([data_set, name, *numbers, *rest]))
        pairs += [
            row([data_set, name, f"{found['cosine']:.2f}", f"{found['correlation']:.2f}"])
            for name, found in cell["alignment"].items()
        ]
    heads = ["data", "network", "trained on", "test images", "Dice", "95 % interval", "IoU", "HD95"]
    sizes = ["data", "initialisation of two teachers", "cosine", "channel correlation"]
    return f"{table(heads, scores)}\n{table(sizes, pairs)}"
