"""What a run folder holds: networks, releases and attacks, wherever they are in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from canal.errors import DataError, InvalidValueError
from canal.learning import checkpoint
from canal.learning.checkpoint import Checkpoint
from canal.learning.evaluation import Score
from canal.learning.runs import SETTINGS
from canal.release.manifest import FORMAT, MANIFEST
from canal.report.attack import Attack, read_attack
from canal.report.evidence import Evidence, read_evidence
from canal.report.published import Published, PublishedAdapters, PublishedFeatures
from canal.report.scores import SCORES, read_scores

COMMANDS = "commands.txt"
# Attacks are small; a larger file is somebody's data.
MOST_BYTES = 2**24


@dataclass(frozen=True, eq=False)
class Network:
    """A network that was trained, or the initialisation of all.

    Args:
        path: its folder.
        where: the same, within the run.
        about: what it is.
        settings: of its training, as resolved.
        scores: on the test images; None if it was not measured.
    """

    path: Path
    where: str
    about: Checkpoint
    settings: dict[str, Any]
    scores: tuple[Score, ...] | None

    @property
    def role(self) -> str:
        """One of `initialisation`, `teacher`, `student`."""
        return str(self.about.notes.get("role", ""))

    @property
    def training(self) -> dict[str, Any]:
        """Steps, batch size, seed; empty for random weights."""
        found = self.settings.get("training")
        return found if isinstance(found, dict) else {}

    @property
    def dice(self) -> dict[str, float]:
        """By image."""
        return {score.id: score.dice for score in self.scores or ()}


@dataclass(frozen=True)
class Run:
    """Everything that a report is made of.

    Args:
        path: the folder.
        networks: in it, by folder.
        releases: likewise.
        attacks: by file.
        evidence: inversions and audits, by file.
        commands: what was typed; empty if nobody wrote it down.
    """

    path: Path
    networks: tuple[Network, ...]
    releases: tuple[Published, ...]
    attacks: tuple[Attack, ...]
    evidence: tuple[Evidence, ...]
    commands: str

    @classmethod
    def read(cls, path: Path) -> Run:
        """Look through a folder; hidden and private ones are left alone.

        Raises:
            CanalError: there is nothing to report, or a file is damaged; the sentence names it.
        """
        if not path.is_dir():
            raise InvalidValueError(f"{path} is no folder; give the one that holds the run")
        networks, releases, attacks, evidence = [], [], [], []
        for folder, files in _folders(path):
            where = folder.relative_to(path).as_posix()
            if checkpoint.DESCRIPTION in files:
                networks.append(_network(folder, where, files))
            if MANIFEST in files and _is_release(folder / MANIFEST):
                releases.append(Published.open(folder, where))
                continue  # what else is there was published, not found
            for name in files:
                file = folder / name
                if file.suffix == ".json" and file.is_file() and file.stat().st_size <= MOST_BYTES:
                    place = file.relative_to(path).as_posix()
                    attack, other = read_attack(file, place), read_evidence(file, place)
                    attacks += [] if attack is None else [attack]
                    evidence += [] if other is None else [other]
        if not (networks or releases or attacks):
            raise InvalidValueError(
                f"{path} holds no network, no release and no attack; give the folder of a run, "
                "which begins with `canal init --out RUN/init`"
            )
        typed = path / COMMANDS
        commands = typed.read_text("utf-8", errors="replace").strip() if typed.is_file() else ""
        return cls(
            path, tuple(networks), tuple(releases), tuple(attacks), tuple(evidence), commands
        )

    def release(self, digest: object) -> Published | None:
        """The release of this digest, if it is in the run."""
        return next((each for each in self.releases if each.digest == digest), None)

    @property
    def features(self) -> tuple[PublishedFeatures, ...]:
        """The releases of features."""
        return tuple(each for each in self.releases if isinstance(each, PublishedFeatures))

    @property
    def adapters(self) -> tuple[PublishedAdapters, ...]:
        """The releases of adapters."""
        return tuple(each for each in self.releases if isinstance(each, PublishedAdapters))

    def having(self, role: str) -> tuple[Network, ...]:
        """All networks of one role."""
        return tuple(network for network in self.networks if network.role == role)


def _folders(path: Path) -> Iterator[tuple[Path, list[str]]]:
    for folder, inside, files in os.walk(path):
        inside[:] = sorted(
            name for name in inside if not name.startswith(".") and not name.endswith(".private")
        )
        yield Path(folder), sorted(name for name in files if not name.startswith("."))


def _network(folder: Path, where: str, files: list[str]) -> Network:
    settings: dict[str, Any] = {}
    if SETTINGS in files:
        path = folder / SETTINGS
        try:
            settings = dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{path} cannot be understood ({error}); train it again") from error
    scores = read_scores(folder / SCORES) if SCORES in files else None
    return Network(folder, where, checkpoint.describe(folder), settings, scores)


def _is_release(path: Path) -> bool:
    """Others call a file manifest.json too; one that cannot be read may be a damaged release."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return True
    family = FORMAT.partition("/")[0]
    return isinstance(content, dict) and str(content.get("format")).startswith(family)
