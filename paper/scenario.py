"""Scenarios: whose data, how it is split, and the networks that all arms of one seed share."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canal import TrainingSettings, UNetArchitecture, initialise, load, load_ensemble, train_teacher
from canal.data.duplicates import near_duplicates
from canal.data.patients import joined
from canal.data.readers import read
from canal.data.split import Split, make_split
from canal.errors import DataError
from canal.features.ensemble import Ensemble
from canal.files import replace_file
from canal.learning.networks import Norm
from canal.learning.teacher import train_further

if TYPE_CHECKING:
    from canal.data.arrays import Arrays
    from canal.learning.training import Progress

Report = Callable[[str, int, int], None]

# The data sets of the paper and of others, by the folders that they are downloaded to.
DATA_SETS = {
    "Kvasir-SEG": "Kvasir-SEG",
    "BUSI": "Dataset_BUSI_with_GT",
    "ISIC 2018": "ISIC2018",
    "CVC-ClinicDB": "CVC-ClinicDB",
    "ETIS-Larib": "ETIS-LaribPolypDB",
}
PAPER = ("Kvasir-SEG", "BUSI", "ISIC 2018")
# Hospitals that `canal data synthetic` draws; settings are chosen on these.
SYNTHETIC = ("dermoscopy", "endoscopy", "ultrasound")
# Seeds of synthetic patients who are in no scenario begin here.
_OTHERS = 1000
# Share of the learning rate while an initialisation settles.
_SLOWER = 0.25


@dataclass(frozen=True)
class Folders:
    """Where trials read and work.

    Args:
        data: the data sets, as they are downloaded.
        runs: trainings and releases; large.
    """

    data: Path
    runs: Path


@dataclass(frozen=True)
class Scenario:
    """Everything that determines data and shared networks. Its defaults fit two cores.

    Args:
        data_set: a name in `DATA_SETS` or `SYNTHETIC`.
        seed: of split, initialisation and training.
        size: pixels a side.
        sites: K.
        recipient: its labelled images, which are its queries; the initialisation is trained on
            them, and no teacher sees them.
        test: share of the cases that is only measured on.
        base_channels: of every network.
        norm: of every network.
        steps: of every training.
        batch_size: of every training.
        others: data sets, each of which is one site's whole cohort; none: the data set is split.
        synthetic: images of a synthetic hospital; 0 for a downloaded data set.
        init_length: of the initialisation's training, times `steps`.
        deform: strength of the deformation of the images that the initialisation is trained on.
        settle: steps after these on images that are not deformed, at a lower rate, times `steps`.
        self_labelled: synthetic images more that the initialisation labels itself, and is trained
            on for half as long, before it settles.
        match_people: whether images of a site that are nearly the same are one patient's: these
            data sets do not say whom an image shows.
    """

    data_set: str
    seed: int = 0
    size: int = 64
    sites: int = 3
    recipient: int = 50
    test: float = 0.2
    base_channels: int = 8
    norm: Norm = "instance"
    steps: int = 600
    batch_size: int = 8
    others: tuple[str, ...] = ()
    synthetic: int = 0
    init_length: float = 1.0
    deform: float = 0.0
    settle: float = 0.0
    self_labelled: int = 0
    match_people: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.data_set.lower().replace(' ', '-')}-{self.seed}"

    @property
    def training(self) -> TrainingSettings:
        """Of every network."""
        return TrainingSettings(steps=self.steps, batch_size=self.batch_size, seed=self.seed)

    def study(self, folders: Folders, report: Report = lambda *told: None) -> Study:
        """The scenario on disk."""
        return Study(self, folders, report)


def changed(settings: Any) -> dict[str, Any]:
    """Fields of a dataclass that are not at their defaults, as plain values.

    So a setting that is added later, with the old behaviour as its default, changes no key.

    >>> changed(Scenario("BUSI", seed=1))
    {'data_set': 'BUSI', 'seed': 1}
    """
    return {
        each.name: _plain(value)
        for each in fields(settings)
        if (value := getattr(settings, each.name)) != _default(each)
    }


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return changed(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 8 and 8.0 are one epsilon
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


def digest(values: Any) -> str:
    """A short name for plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until nobody else works on a folder: trials that run at a time share some."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Study:
    """A scenario on disk: made when first asked for, kept in the folder of runs.

    Args:
        scenario: what it is made of.
        folders: where.
        report: of progress: what, done, total.
    """

    def __init__(self, scenario: Scenario, folders: Folders, report: Report) -> None:
        self.scenario, self.folders, self.report = scenario, folders, report
        self.folder = folders.runs / f"{scenario.name}-{digest(changed(scenario))}"
        self._parts: dict[str, Arrays] = {}

    @property
    def training(self) -> TrainingSettings:
        """Of every network."""
        return self.scenario.training

    @property
    def source(self) -> Path:
        """Folder of the data set."""
        if self.scenario.synthetic:
            return self._drawn(self.scenario.synthetic, self.scenario.seed)
        return self.folders.data / DATA_SETS[self.scenario.data_set]

    def _drawn(self, count: int, seed: int) -> Path:
        """A synthetic hospital; one image a patient, as the downloaded data sets have them."""
        from canal.data.synthetic import write

        size = self.scenario.size
        root = self.folders.runs / f"synthetic-{count}-{size}-{seed}"
        with alone_in(root):
            if not (root / "metadata.csv").is_file():  # the last file that is written
                write(root, count * len(SYNTHETIC), size=(size, size), most_views=1, seed=seed)
        return root / self.scenario.data_set

    @cached_property
    def split(self) -> Split:
        """Who tests, who asks, who teaches; scans that show no lesion are left out."""
        return Split.read(self._split_file())

    def _split_file(self) -> Path:
        path, scenario = self.folder / "split.json", self.scenario
        if not path.is_file():
            cases = read(self.source, keep_healthy=False).cases
            made = make_split(
                cases,
                cohorts=scenario.sites,
                test=scenario.test,
                recipient=scenario.recipient,
                duplicates=near_duplicates(cases),
                seed=scenario.seed,
            )
            made.write(path)
        return path

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the cohorts, each of which has a teacher."""
        return self.scenario.others or tuple(self.split.cohorts)

    def part(self, name: str) -> Arrays:
        """Images of `test`, `recipient`, `pooled` (all but the test), or a site."""
        if name not in self._parts:
            self._parts[name] = self._load(name)
        return self._parts[name]

    def _load(self, name: str) -> Arrays:
        scenario = self.scenario
        if name in scenario.others:
            return load(self.folders.data / DATA_SETS[name], size=scenario.size, keep_healthy=False)
        if scenario.others and name == "pooled":
            # Images that the recipient neither asks about nor tests with have no label there.
            everyone = self.part("recipient")
            for site in self.sites:
                everyone = everyone.beside(_prefixed(site, self.part(site)))
            return everyone
        path = self._split_file()
        found = load(self.source, size=scenario.size, split=path, part=name, keep_healthy=False)
        if scenario.match_people and name in self.sites:
            found = replace(found, patients=dict(zip(found.ids, joined(found), strict=True)))
        return found

    def unlabelled(self, count: int) -> Arrays:
        """More images of the same synthetic hospital, of other patients; public."""
        folder = self._drawn(count, self.scenario.seed + _OTHERS)
        return load(folder, size=self.scenario.size).without_labels()

    @cached_property
    def init(self) -> Path:
        """Folder of the initialisation, trained on the recipient's images."""
        scenario, place, asked = self.scenario, self.folder / "init", self.part("recipient")
        if scenario.match_people:  # patients have no part in it
            return self._init_of(replace(scenario, match_people=False))
        if scenario.settle:
            before, how = self._init_of(replace(scenario, settle=0.0)), self.settling
            with alone_in(place):
                train_further(place, before, asked, how, report=self.told("settling"))
        elif scenario.self_labelled:
            before = self._init_of(replace(scenario, self_labelled=0))
            half, more = self.beginning.steps // 2, self.unlabelled(scenario.self_labelled)
            with alone_in(place):
                train_further(
                    *(place, before, asked, replace(self.beginning, steps=half)),
                    unlabelled=more,
                    report=self.told("self-labelled images"),
                )
        else:
            with alone_in(place):
                initialise(
                    *(place, self.architecture),
                    seed=scenario.seed,
                    size=asked.images.shape[2:],
                    arrays=asked,
                    settings=self.beginning,
                    report=self.told("initialisation"),
                )
        return place

    def _init_of(self, scenario: Scenario) -> Path:
        return scenario.study(self.folders, self.report).init

    @property
    def architecture(self) -> UNetArchitecture:
        """Of every network."""
        return UNetArchitecture(
            in_channels=self.part("recipient").images.shape[1],
            base_channels=self.scenario.base_channels,
            norm=self.scenario.norm,
        )

    @property
    def beginning(self) -> TrainingSettings:
        """Of the initialisation."""
        steps = round(self.scenario.init_length * self.scenario.steps)
        return replace(self.training, steps=steps, deform=self.scenario.deform)

    @property
    def settling(self) -> TrainingSettings:
        """Of the steps after these."""
        return replace(
            self.training,
            steps=round(self.scenario.settle * self.scenario.steps),
            learning_rate=_SLOWER * self.training.learning_rate,
        )

    def teacher(self, site: str) -> Path:
        """Folder of a teacher, trained on one cohort."""
        place = self.folder / site
        with alone_in(place):
            train_teacher(
                *(place, self.init, self.part(site), self.training),
                name=site,
                report=self.told(site),
            )
        return place

    @cached_property
    def ensemble(self) -> Ensemble:
        """All teachers."""
        return load_ensemble([self.teacher(site) for site in self.sites], self.init)

    def told(self, what: str) -> Callable[[Progress], None]:
        """Progress of a training, for the report."""
        return lambda progress: self.report(what, progress.step, progress.steps)


def _prefixed(site: str, arrays: Arrays) -> Arrays:
    """Images under names with their site in front: two sites may both have an image 1."""
    return replace(
        arrays,
        ids=tuple(f"{site} {name}" for name in arrays.ids),
        patients={f"{site} {name}": f"{site} {who}" for name, who in arrays.patients.items()},
        unlabelled=frozenset(f"{site} {name}" for name in arrays.unlabelled),
    )


def check_data(data: Path, results: Path) -> None:
    """Refuse data other than those that the results beside were made with; note new ones.

    A data set is known by the names and sizes of its files.
    """
    path = results / "data.json"
    noted: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}
    found = {}
    for name, folder in DATA_SETS.items():
        root = data / folder
        if root.is_dir():
            files = sorted((str(f.relative_to(root)), f.stat().st_size) for f in root.rglob("*.*"))
            found[name] = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
    if not found:
        raise DataError(
            f"{data} holds none of the data sets; it must have folders as they are downloaded: "
            f"{', '.join(DATA_SETS.values())}"
        )
    other = [name for name in found if noted.get(name, found[name]) != found[name]]
    if other:
        raise DataError(
            f"the results in {results} were made with another {', '.join(other)}; give the same "
            "data, or another --results and --runs"
        )
    results.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(noted | found, indent=1) + "\n").encode())
