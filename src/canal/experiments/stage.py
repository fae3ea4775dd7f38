"""What the arms of an experiment share: split, initialisation and teachers of one seed."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from canal.data.duplicates import near_duplicates
from canal.data.load import load
from canal.data.readers import read
from canal.data.split import Split, make_split
from canal.errors import DataError
from canal.experiments.cell import Places, Report
from canal.features.ensemble import Ensemble, load_ensemble
from canal.files import replace_file
from canal.learning.networks import Norm, UNetArchitecture
from canal.learning.settings import TrainingSettings
from canal.learning.teacher import initialise, train
from canal.learning.training import Progress
from canal.plain import plain

if TYPE_CHECKING:
    from canal.data.arrays import Arrays

# The paper's, by the folders that they are downloaded to; then other hospitals, and our own.
PAPERS = ("Kvasir-SEG", "BUSI", "ISIC 2018")
DATA_SETS = {
    "Kvasir-SEG": "Kvasir-SEG",
    "BUSI": "Dataset_BUSI_with_GT",
    "ISIC 2018": "ISIC2018",
    "CVC-ClinicDB": "CVC-ClinicDB",
    "ETIS-Larib": "ETIS-LaribPolypDB",
    "synthetic": "synthetic",
    "elsewhere": "elsewhere",
}


def check_data(places: Places) -> None:
    """Refuse to put cells beside those that were made with other data; the first are noted.

    A data set is known by the names and sizes of its files.
    """
    path = places.notes
    noted: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}
    found = {}
    for name, folder in DATA_SETS.items():
        root = places.data / folder
        if root.is_dir():
            files = sorted((str(f.relative_to(root)), f.stat().st_size) for f in root.rglob("*.*"))
            found[name] = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
    if not found:
        raise DataError(
            f"{places.data} holds none of the data sets; it must have folders as they are "
            f"downloaded: {', '.join(DATA_SETS.values())}"
        )
    other = [name for name in found if noted.get(name, found[name]) != found[name]]
    if other:
        raise DataError(
            f"the cells in {places.results} were made with another {', '.join(other)}; give the "
            "same data, or another --out and --runs"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(noted | found, indent=1) + "\n").encode())


@dataclass(frozen=True)
class Scene:
    """What determines data and teachers.

    Args:
        data_set: its name in `DATA_SETS`.
        seed: of split, initialisation and training.
        size: pixels a side.
        sites: K.
        recipient: its labelled images, which are its queries; the initialisation is trained on
            them, and no teacher sees them.
        base_channels: of every network.
        norm: of every network.
        training: of every network; its seed is the scene's.
        test: share of the cases that is only measured on.
    """

    # Raised when the same fields come to give other networks.
    version: ClassVar[int] = 1

    data_set: str
    seed: int = 0
    size: int = 64
    sites: int = 3
    recipient: int = 60
    base_channels: int = 16
    norm: Norm = "instance"
    training: TrainingSettings = field(default_factory=TrainingSettings)
    test: float = 0.2

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.data_set.lower().replace(' ', '-')}-{self.seed}"

    @property
    def slug(self) -> str:
        """Names the folder."""
        text = json.dumps([type(self).__name__, self.version, plain(self)], sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def architecture(self, arrays: Arrays) -> UNetArchitecture:
        """Of every network, for such images."""
        return UNetArchitecture(
            in_channels=arrays.images.shape[1], base_channels=self.base_channels, norm=self.norm
        )

    def on(self, places: Places, report: Report) -> Stage:
        """The scene on disk."""
        return Stage(self, places, report)


@dataclass(frozen=True)
class Federation(Scene):
    """Real hospitals: the recipient is one of them, and each of the others is a site.

    Args:
        others: data sets, each of which is one site's whole cohort.
    """

    others: tuple[str, ...] = ()

    def on(self, places: Places, report: Report) -> Stage:
        """The scene on disk."""
        return FederationStage(self, places, report)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until nobody else works on a folder; cells that run beside each other share some."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Stage:
    """A scene on disk: made when first asked for, kept in the folder of runs.

    Args:
        scene: what it is made of.
        places: where.
        report: of progress.
    """

    def __init__(self, scene: Scene, places: Places, report: Report) -> None:
        self.scene, self.places, self.report = scene, places, report
        self.folder = places.runs / scene.slug
        self._parts: dict[str, Arrays] = {}

    @property
    def source(self) -> Path:
        """Folder of the data set."""
        return self.places.data / DATA_SETS[self.scene.data_set]

    @cached_property
    def split(self) -> Split:
        """Who tests, who asks, who teaches; scans that show no lesion are left out."""
        return Split.read(self._write_split())

    def _write_split(self) -> Path:
        path = self.folder / "split.json"
        if not path.is_file():
            cases = read(self.source, keep_healthy=False).cases
            made = make_split(
                cases,
                cohorts=self.scene.sites,
                test=self.scene.test,
                recipient=self.scene.recipient,
                duplicates=near_duplicates(cases),
                seed=self.scene.seed,
            )
            made.write(path)
        return path

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the cohorts, each of which has a teacher."""
        return tuple(self.split.cohorts)

    def part(self, name: str) -> Arrays:
        """Images of a part of the split: `test`, `recipient`, `pooled`, or a site's."""
        if name not in self._parts:
            self._parts[name] = self._load(name)
        return self._parts[name]

    def _load(self, name: str) -> Arrays:
        path = self._write_split()
        return load(self.source, size=self.scene.size, split=path, part=name, keep_healthy=False)

    @cached_property
    def init(self) -> Path:
        """Folder of the initialisation, trained on the recipient's images."""
        place, asked = self.folder / "init", self.part("recipient")
        with alone(place):
            initialise(
                place,
                self.scene.architecture(asked),
                seed=self.scene.seed,
                size=asked.images.shape[2:],
                arrays=asked,
                settings=self.beginning,
                report=self.told("initialisation"),
            )
        return place

    @property
    def beginning(self) -> TrainingSettings:
        """Of the initialisation."""
        return self.training

    @property
    def training(self) -> TrainingSettings:
        """Of every network."""
        return replace(self.scene.training, seed=self.scene.seed)

    def teacher(self, name: str) -> Path:
        """Folder of a teacher, trained on one cohort."""
        place = self.folder / name
        train(place, self.init, self.part(name), self.training, name=name, report=self.told(name))
        return place

    @cached_property
    def ensemble(self) -> Ensemble:
        """All teachers."""
        return load_ensemble([self.teacher(name) for name in self.sites], self.init)

    def told(self, what: str) -> Callable[[Progress], None]:
        """Progress of a training, for the report."""
        return lambda progress: self.report(what, progress.step, progress.steps)


class FederationStage(Stage):
    """A federation on disk: what the recipient does not ask or test with, it has not labelled."""

    scene: Federation

    @property
    def sites(self) -> tuple[str, ...]:
        """The other hospitals."""
        return self.scene.others

    def _load(self, name: str) -> Arrays:
        if name in self.sites:
            return load(
                self.places.data / DATA_SETS[name], size=self.scene.size, keep_healthy=False
            )
        if name != "pooled":
            return super()._load(name)
        everyone = self.part("recipient")
        for site in self.sites:
            everyone = everyone.beside(_named(site, self.part(site)))
        return everyone


def _named(site: str, arrays: Arrays) -> Arrays:
    """The same, where two hospitals may both have an image 1."""
    return replace(
        arrays,
        ids=tuple(f"{site} {name}" for name in arrays.ids),
        patients={f"{site} {name}": f"{site} {who}" for name, who in arrays.patients.items()},
        unlabelled=frozenset(f"{site} {name}" for name in arrays.unlabelled),
    )
