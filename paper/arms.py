"""Arms of feature releases: shared networks, students, and the controls that they are held against.

All arms of a scenario share split, teachers, initialisation, order of images and standard-normal
draws, so they differ in one thing only. Nothing is chosen by looking at the test part.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from canal import (
    DistillSettings,
    Queries,
    Release,
    create_release,
    initialise,
    train_student,
    train_teacher,
)
from canal.attacks.view import noiseless_rows
from canal.data.patients import joined
from canal.features.distillation import Targets
from canal.features.ensemble import Ensemble
from canal.features.mechanism import TeacherSum
from canal.features.per_iteration import PerIterationRelease
from canal.features.release import Options
from canal.features.statistics import Statistics
from canal.learning import checkpoint, evaluation, prediction
from canal.learning.networks import Tap, evaluating, home, to_float, variation
from canal.learning.pictures import PREDICTION, TRUTH, outlined, sheet
from canal.learning.runs import RunFolder, provenance
from canal.privacy.iteration import releases_per_image
from canal.privacy.randomness import Secret
from canal.privacy.units import UNITS
from canal.release.digits import finite_or_none
from canal.student import Mode
from paper.alignment import alignment
from paper.drawing import filled, outline
from paper.scenario import Study
from paper.trial import Arm, Trial

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from canal.data.arrays import Arrays

_BATCH = 32
# Controls, as the library calls them.
Control = Literal["release", "noiseless", "noise-only", "local-only", "centralised"]
_MODES: dict[Control, Mode] = {
    "release": "release",
    "noiseless": "noiseless",
    "noise-only": "noise-only",
    "local-only": "alone",
    "centralised": "pooled",
}


def scored(networks: Sequence[nn.Module], test: Arrays) -> dict[str, Any]:
    """Dice of every test image, and its mean; several networks vote with their probabilities."""
    found = evaluation.dice(predict(networks, test), test)
    return {"dice": float(found.mean()), "images": [round(value, 4) for value in found.tolist()]}


def predict(networks: Sequence[nn.Module], arrays: Arrays) -> NDArray[np.uint8]:
    """Masks of the mean probability of some networks."""
    import torch

    if len(networks) == 1:
        return prediction.predict(networks[0], arrays)
    total: Any = 0
    for network in networks:
        with evaluating(network), torch.no_grad():
            batches = torch.from_numpy(np.array(arrays.images)).split(_BATCH)
            there = home(network)
            votes = [network(to_float(batch).to(there)).sigmoid().cpu() for batch in batches]
            total = total + torch.cat(votes)
    masks: NDArray[np.uint8] = (total / len(networks) > 0.5).to(torch.uint8).numpy()
    return masks


def as_floats(arrays: Arrays) -> Tensor:
    """Images as networks take them."""
    import torch

    return to_float(torch.from_numpy(np.array(arrays.images)))


@dataclass(frozen=True)
class Networks(Arm):
    """The initialisation, the teachers and their ensemble, measured; and who is tested."""

    kind: ClassVar[str] = "networks"

    def run(self, study: Study, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        """Train, and measure on the test part."""
        test, asked = study.part("test"), study.part("recipient")
        teachers = {each.cohort: each.tap.network for each in study.ensemble.teachers}
        networks = {"initialisation": [checkpoint.load(study.init)[0]]}
        networks |= {name: [network] for name, network in teachers.items()}
        networks["ensemble"] = list(teachers.values())
        parts = {name: study.part(name) for name in ("test", "recipient", *teachers)}
        images = as_floats(asked)
        return {
            "split": study.split.digest,
            "sizes": {name: len(part.ids) for name, part in parts.items()},
            "patients": {name: len(set(joined(part))) for name, part in parts.items()},
            "people": _numbered(joined(test)),
            "variation": [variation(each.tap.features(images)) for each in study.ensemble.teachers],
            "networks": {name: scored(members, test) for name, members in networks.items()},
        }


def _numbered(names: Sequence[str]) -> list[int]:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]


@dataclass(frozen=True)
class FeatureRelease:
    """What a release of features is asked for.

    Args:
        preset: of its plan, `paper` or `honest`.
        epsilon: in the unit of the preset.
        allocation: `canal`, `uniform`, `reverse`, or `none`.
        share: of the channels that are released.
        choices: other arguments of `canal.Plan`, as pairs.
    """

    preset: str = "paper"
    epsilon: float = 8.0
    allocation: str = "canal"
    share: float = 0.1
    choices: tuple[tuple[str, Any], ...] = ()

    def create(self, study: Study, folder: Path, ensemble: Ensemble | None = None) -> Release:
        """Make it, with the draws of every arm of the scenario.

        Args:
            study: teachers and queries.
            folder: to publish it in.
            ensemble: other teachers than the scenario's.
        """
        ensemble, queries = ensemble or study.ensemble, Queries.of(study.part("recipient"))
        images = queries.arrays.images
        channels, _ = ensemble.shape(images.shape[1], images.shape[2:])
        plan = ensemble.plan(
            queries,
            self.preset,
            epsilon=self.epsilon,
            allocation=self.allocation,
            released=max(1, int(self.share * channels)),
            **dict(self.choices),
        )
        return create_release(
            *(folder, ensemble, queries, plan),
            seed=study.scenario.seed,
            not_private=True,
            options=Options(paired=True),
        )


@dataclass(frozen=True)
class Student(Arm):
    """One student.

    Args:
        control: what it learns from, beside its own labels.
        release: that it reads; None for students that read none.
        wiener: see `canal.DistillSettings`, as all that follow.
        frequencies: likewise.
        channel_weight: likewise.
    """

    kind: ClassVar[str] = "student"

    control: Control = "release"
    release: FeatureRelease | None = None
    wiener: bool = False
    frequencies: int = 0
    channel_weight: Literal["equal", "precision"] = "equal"

    @property
    def distillation(self) -> DistillSettings:
        """How it reads its release."""
        return DistillSettings(
            wiener=self.wiener, frequencies=self.frequencies, channel_weight=self.channel_weight
        )

    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Release, distil, and measure on the test part."""
        release = None if self.release is None else self.release.create(study, folder / "release")
        train_student(
            *(folder / "student", study.init),
            study.part("pooled" if self.control == "centralised" else "recipient"),
            study.training,
            self.distillation,
            release=release,
            mode=_MODES[self.control],
            report=study.told("student"),
        )
        network, _ = checkpoint.load(folder / "student")
        found = scored([network], study.part("test"))
        if release is None or self.control == "noise-only":
            return found
        return found | price(release) | {"signal_db": self._signal(release, study)}

    def _signal(self, release: Release, study: Study) -> float | None:
        r"""How much of what the student reads is signal, in decibels; None without either.

        Targets are compared with what they would be without noise,
        $\sum_c w_c\,\mathrm{var}_c / \sum_c w_c\,\mathrm{mse}_c$: the variance over queries over
        the noise, both as the student reads them and with its weights. So shrinking a target
        changes nothing; a projection that takes off more noise than signal does.
        """
        import torch

        if release.plan.allocation == "none":
            return None
        targets = Targets(release, self.distillation)
        shape = (-1, len(release.channels), *release.plan.grid)
        clear = noiseless_rows(release, study.ensemble, study.part("recipient")).reshape(shape)
        truth = targets.filtered(torch.from_numpy(clear).float()).double().numpy()
        heard = targets.batch(release.ids).double().numpy()
        weight = targets.weight.double().numpy()
        signal = (weight * _per_channel(truth.var(axis=0)[None])).sum()
        error = (weight * _per_channel(np.square(heard - truth))).sum()
        return 10 * math.log10(signal / error) if signal > 0 else None


def price(release: Release) -> dict[str, Any]:
    """What a release costs in every unit: the paper's by its own conversion, others exactly."""
    plan = release.plan
    if plan.allocation == "none":
        return {"epsilon": dict.fromkeys(UNITS)}
    promise = plan.calibrate().guarantee
    return {
        "epsilon": {
            unit: finite_or_none(
                promise.epsilon(plan.delta, unit, plan.conversion if unit == "paper" else "exact")
            )
            for unit in UNITS
        }
    }


def _per_channel(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means over images and places of `[N, M, *grid]`."""
    means: NDArray[np.float64] = values.reshape(*values.shape[:2], -1).mean(axis=(0, 2))
    return means


@dataclass(frozen=True)
class PerIteration(Arm):
    """A student whose every batch is answered with fresh noise, at the price of one release.

    Args:
        release: what all answers together may cost.
    """

    kind: ClassVar[str] = "per-iteration"

    release: FeatureRelease = FeatureRelease(allocation="uniform")

    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Answer every batch anew, and measure on the test part."""
        asked, training = study.part("recipient"), study.training
        once = self.release.create(study, folder / "once")
        times = releases_per_image(training.steps, training.batch_size, len(asked.ids))
        plan = replace(once.plan, releases=times)
        statistics = Statistics.from_json(once.manifest.statistics)
        often = PerIterationRelease(
            TeacherSum.of(plan.calibrate(statistics.weights(plan)), statistics),
            study.ensemble,
            Queries.of(asked),
            Secret.seeded(study.scenario.seed),
        )
        # Fresh noise is counted from the start, so a run that was killed begins again.
        shutil.rmtree(folder / "student", ignore_errors=True)
        train_student(
            *(folder / "student", study.init, asked, training),
            release=often,
            report=study.told("student"),
        )
        network, _ = checkpoint.load(folder / "student")
        spent = often.spent()
        return scored([network], study.part("test")) | {
            "releases": times,
            "most_asked": max(often.asked.values()),
            "epsilon": spent.epsilon(plan.delta, "paper", plan.conversion),
            "noise_factor": float(often.mechanism.sigma[0] / once.manifest.mechanism["sigma"][0]),
        }


@dataclass(frozen=True)
class LongCentralised(Arm):
    """The initialisation, trained once more as it was, but on everybody's images; not private."""

    kind: ClassVar[str] = "long-centralised"

    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Train, and measure on the test part."""
        everybody, (network, start) = study.part("pooled"), checkpoint.load(study.init)
        for name, settings in (("deformed", study.beginning), ("settled", study.settling)):
            run = RunFolder(folder / name)
            with run.claim({"init": start.initialisation, **provenance(everybody, settings)}):
                run.train(network, everybody, settings, study.told(f"centralised, {name}"))
        return scored([network.eval()], study.part("test"))


@dataclass(frozen=True)
class Outlines(Arm):
    """Outlines of some students on some test images, as SVG paths.

    Args:
        students: whose outlines; images are chosen by the Dice of the first.
        quantiles: of that Dice: which images, so that nobody chooses them by eye.
    """

    kind: ClassVar[str] = "outlines"

    students: tuple[Student, ...]
    quantiles: tuple[float, ...] = (0.25, 0.75)

    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Train the students, and draw; with the images themselves in the folder of runs only."""
        test = study.part("test")
        trials = [Trial(study.scenario, each) for each in self.students]
        folders = [each.folder(study.folders) for each in trials]
        found = [
            trial.arm.run(study, place)["images"]
            for trial, place in zip(trials, folders, strict=True)
        ]
        masks = [predict([checkpoint.load(place / "student")[0]], test) for place in folders]
        order = np.argsort(found[0], kind="stable")
        shown = [int(order[round(each * (len(order) - 1))]) for each in self.quantiles]
        truth = [test.masks[case, 0] for case in shown]
        columns = [
            [outlined(test.images[case], each[case], colour) for case in shown]
            for each, colour in [(test.masks, TRUTH), *((mask, PREDICTION) for mask in masks)]
        ]
        folder.mkdir(parents=True, exist_ok=True)
        names = ["truth", *(each.name for each in self.students)]
        sheet(columns, names).save(folder / "outlines.png")
        return {
            "side": len(truth[0]),
            "dice": [[each[case] for each in found] for case in shown],
            "truth": [filled(mask) for mask in truth],
            "outlines": [[outline(each[case, 0]) for each in masks] for case in shown],
        }


@dataclass(frozen=True)
class Teachers(Arm):
    """Teachers, one network of all sites, and whether channels of two teachers agree.

    Args:
        random: also train two sites from random weights, shared and not, to compare.
    """

    kind: ClassVar[str] = "teachers"

    random: bool = False

    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Train all networks, and measure them on the test part."""
        cohorts, everyone = study.split.cohorts, study.folder / "pooled"
        first, second = list(cohorts)[:2]
        union = study.part("pooled").rows(tuple(name for ids in cohorts.values() for name in ids))
        train_teacher(
            *(everyone, study.init, union, study.training),
            name="pooled",
            report=study.told("pooled"),
        )
        networks = {site: study.teacher(site) for site in cohorts} | {"pooled": everyone}
        pairs = {"shared, trained on the recipient's images": (networks[first], networks[second])}
        if self.random:
            one, two, other = (
                self._from_random(study, folder, *each)
                for each in ((first, "random"), (second, "random"), (second, "other"))
            )
            pairs |= {"shared, random weights": (one, two)}
            pairs |= {"separate, random weights": (one, other)}
        test, asked = study.part("test"), study.part("recipient")
        sizes = {name: len(ids) for name, ids in cohorts.items()} | {"pooled": len(union.ids)}
        return {
            "recipient": _all_scores(study.init, test, len(asked.ids)),
            "networks": {name: _all_scores(at, test, sizes[name]) for name, at in networks.items()},
            "alignment": {
                name: asdict(alignment(_features(one, asked), _features(two, asked)))
                for name, (one, two) in pairs.items()
            },
        }

    def _from_random(self, study: Study, folder: Path, site: str, kind: str) -> Path:
        """Folder of a teacher that starts from random weights, `random` or `other`."""
        init, place, cohort = folder / f"init-{kind}", folder / f"{site}-{kind}", study.part(site)
        initialise(
            *(init, study.architecture),
            seed=study.scenario.seed + (1000 if kind == "other" else 0),
            size=cohort.images.shape[2:],
        )
        told = study.told(place.name)
        train_teacher(place, init, cohort, study.training, name=site, report=told)
        return place


def _all_scores(folder: Path, test: Arrays, trained_on: int) -> dict[str, Any]:
    network, _ = checkpoint.load(folder)
    found = evaluation.scores(prediction.predict(network, test), test)
    return {"trained_on": trained_on, **evaluation.summary(found)}


def _features(folder: Path, arrays: Arrays) -> Any:
    network, description = checkpoint.load(folder)
    return Tap(network, description.tap).features(as_floats(arrays))
