"""What a site has: patients, the initialisations that came, a teacher. Only a status leaves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from canal.errors import CheckpointError, FederationError, RefusalError
from canal.features.ensemble import Ensemble, Teacher, load_ensemble
from canal.federation.settings import SiteSettings
from canal.files import fsync_folder, replace_file
from canal.gradients.patients import Patients
from canal.learning import checkpoint
from canal.learning.checkpoint import DESCRIPTION, WEIGHTS
from canal.learning.networks import weights_digest

if TYPE_CHECKING:
    from canal.data.arrays import Arrays
    from canal.learning.settings import Settings

State = Literal["ready", "training", "failed"]
_log = logging.getLogger(__name__)


class Cohort:
    """Where training happens; all of it private but the initialisations.

    Args:
        settings: of the site.
    """

    def __init__(self, settings: SiteSettings) -> None:
        self.settings = settings
        self._patients: dict[tuple[str, int], Patients] = {}
        self._thread: threading.Thread | None = None
        self._failed = False

    def receive(self, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep an initialisation, if it is one; it is public. What is there stays as it is."""
        name = str(head["initialisation"])
        folder = self._init(name)
        if folder.is_dir():
            return
        folder.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as place:
            new = Path(place) / "init"
            new.mkdir()
            weights = np.asarray(arrays["weights"], dtype=np.uint8).tobytes()
            replace_file(new / WEIGHTS, weights)
            replace_file(new / DESCRIPTION, str(head["description"]).encode())
            network, found = checkpoint.load(new)
            if not found.initialisation == name == weights_digest(network):
                raise RefusalError("this is another initialisation than its name says")
            new.rename(folder)
            fsync_folder(folder.parent)

    def train(self, initialisation: str) -> State:
        """Have a teacher made of this initialisation; say how far it is, and nothing else."""
        teacher = self.settings.path(self.settings.teacher)
        if (teacher / DESCRIPTION).is_file():
            if checkpoint.describe(teacher).initialisation != initialisation:
                raise RefusalError(
                    "the teacher here was trained from another initialisation; this site decides "
                    "whether it makes a new one"
                )
            return "ready"
        if self._thread is not None and self._thread.is_alive():
            return "training"
        if self._failed:
            return "failed"
        init = self.initialisation(initialisation)
        if not self.settings.images:
            raise RefusalError("this site has no teacher yet, and names no images to train on")
        self._thread = threading.Thread(target=self._train, args=(init, teacher), daemon=True)
        self._thread.start()
        return "training"

    def _train(self, init: Path, teacher: Path) -> None:
        from canal.learning.teacher import train

        try:
            asked = self._asked()
            train(teacher, init, self.arrays(init), asked.training, name=self.settings.name)
        except Exception:
            # Whatever went wrong may tell of the data: it stays here.
            _log.exception("training failed")
            self._failed = True

    @cached_property
    def teacher(self) -> Teacher:
        """The teacher; private."""
        (made,) = self.ensemble.teachers
        if made.cohort != self.settings.name:
            raise FederationError(
                f"the teacher is of {made.cohort!r}, and this site is {self.settings.name!r}; "
                "train it with the name of the site"
            )
        return made

    @cached_property
    def ensemble(self) -> Ensemble:
        """The teacher alone, as a release takes it; private."""
        return load_ensemble([self.settings.path(self.settings.teacher)])

    def patients(self, initialisation: str, views: int) -> Patients:
        """The patients, as a network of this initialisation sees them; private."""
        known = initialisation, views
        if known not in self._patients:
            arrays = self.arrays(self.initialisation(initialisation))
            self._patients[known] = Patients(
                self.settings.name, arrays, views=views, chunk=self.settings.chunk
            )
        return self._patients[known]

    def arrays(self, init: Path) -> Arrays:
        """The cohort's images, as large as a network wants them; private."""
        from canal.data.load import load

        start = checkpoint.describe(init)
        channels = int(start.architecture["in_channels"])
        return load(**self.source, size=start.size[0], channels=channels)

    @property
    def name(self) -> str:
        """Name of the site; public."""
        return self.settings.name

    @property
    def source(self) -> dict[str, Any]:
        """Where the cohort's images are and how they are read (`canal.data.load.select`)."""
        known = self.settings
        if not known.images:
            raise RefusalError("this site names no images of its patients (images, in site.toml)")
        return {
            "path": known.path(known.images),
            "split": known.path(known.split) if known.split else None,
            "part": known.cohort or known.name,
            "keep_healthy": self._asked().data.keep_healthy,
            "accept": self._asked().data.accept,
        }

    def _asked(self) -> Settings:
        from canal.learning.settings import read_settings

        known = self.settings
        return read_settings(known.path(known.settings) if known.settings else None)

    def initialisation(self, name: str) -> Path:
        """Folder of an initialisation that came.

        Raises:
            RefusalError: it did not.
        """
        folder = self._init(name)
        if not (folder / DESCRIPTION).is_file():
            raise RefusalError("this initialisation did not come yet; send it first")
        return folder

    def _init(self, initialisation: str) -> Path:
        if not initialisation.isalnum() or not initialisation.isascii():
            raise CheckpointError("an initialisation is named by its digest")
        return self.settings.folder / "init" / initialisation[:64]
