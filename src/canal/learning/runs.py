"""Run folders: the origin of a training, its log, metrics and state, and then a checkpoint."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canal.errors import CheckpointError
from canal.files import replace_file
from canal.learning import checkpoint
from canal.learning.checkpoint import Checkpoint
from canal.learning.settings import TrainingSettings
from canal.learning.training import STATE, Batches, Objective, Progress, fit, supervised
from canal.plain import plain

if TYPE_CHECKING:
    from torch import nn

    from canal.data.arrays import Arrays

SETTINGS = "settings.json"
LOG = "log.txt"
LOCK = "lock"
Report = Callable[[Progress], None]


class RunFolder:
    """The folder in which one network is trained; a second call goes on, or finds it finished.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def claim(self, resolved: dict[str, Any]) -> Iterator[None]:
        """Claim the folder for one run: record what determines it, or check that it is the same.

        No other process may work there meanwhile. The system releases the lock of a process that
        was killed, so its run goes on.

        Args:
            resolved: everything that determines the run.

        Raises:
            CheckpointError: another run is at work there, or the folder is for another.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if self.is_finished:
            self._check(resolved)
            yield
            return
        place = self.path / LOCK
        with place.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had it may have ended in between, and taken the file away.
                mine = place.exists() and os.path.samestat(place.stat(), os.fstat(lock.fileno()))
            except BlockingIOError:
                mine = False
            if not mine:
                raise CheckpointError(
                    f"another training is at work in {self.path}; wait for it, or give another "
                    "folder"
                )
            try:
                self._check(resolved)
                yield
            finally:
                place.unlink(missing_ok=True)

    def _check(self, resolved: dict[str, Any]) -> None:
        path = self.path / SETTINGS
        content = (json.dumps(resolved, indent=1) + "\n").encode()
        if not path.is_file():
            if self.is_finished or (self.path / STATE).is_file():
                raise CheckpointError(
                    f"{self.path} holds a network and does not say what it was trained on, which "
                    "may be private; give another folder"
                )
            replace_file(path, content)
        # What is there already is not written again: other processes may be reading it.
        elif path.read_bytes() != content:
            raise CheckpointError(
                f"{self.path} holds a run with other settings or data; give another folder, or "
                "remove it"
            )

    @property
    def is_finished(self) -> bool:
        """Whether the run has come to its end; a second call then does nothing."""
        return (self.path / checkpoint.DESCRIPTION).is_file()

    def train(
        self,
        network: nn.Module,
        arrays: Arrays,
        settings: TrainingSettings,
        report: Report,
        objective: Objective = supervised,
    ) -> None:
        """Train a network on all images, with a log."""
        batches = Batches(
            arrays,
            batch_size=settings.batch_size,
            augment=settings.augment,
            seed=settings.seed,
            deform=settings.deform,
        )
        self._log(f"training on {len(arrays.ids)} images for {settings.steps} steps")

        def log_and_report(progress: Progress) -> None:
            self._log(
                f"step {progress.step} of {progress.steps}: loss {progress.loss:.4f}, "
                f"Dice {progress.dice:.4f}, {progress.seconds_left:.0f} s left"
            )
            report(progress)

        fit(network, batches, settings, self.path, objective=objective, report=log_and_report)
        self._log("done")

    def finish(self, network: nn.Module, description: Checkpoint) -> None:
        """Write the network, and remove the state to resume from."""
        checkpoint.save(self.path, network, description)
        (self.path / STATE).unlink(missing_ok=True)

    def _log(self, line: str) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        with (self.path / LOG).open("a") as file:
            file.write(f"{at} {line}\n")


def read_training(folder: Path) -> TrainingSettings:
    """Read the settings with which the network of a run folder was trained."""
    path = folder / SETTINGS
    try:
        return TrainingSettings(**json.loads(path.read_text())["training"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(
            f"{path} does not say how {folder} was trained ({error}); train it again"
        ) from error


def provenance(arrays: Arrays, settings: TrainingSettings) -> dict[str, Any]:
    """Everything that determines a training, beside the weights that it starts from."""
    return {"training": plain(settings), "data": arrays.digest}
