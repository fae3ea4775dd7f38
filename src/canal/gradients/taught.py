"""The network that a release of adapters leads to: free post-processing, and again a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from canal.gradients.store import AdapterRelease
from canal.learning import checkpoint
from canal.learning.checkpoint import Checkpoint
from canal.learning.runs import RunFolder
from canal.release.verification import check_contents

if TYPE_CHECKING:
    from torch import nn


def load_taught(init: Path, release: AdapterRelease) -> tuple[nn.Module, Checkpoint]:
    """The shared initialisation with what the patients taught it, and what it is made for.

    Args:
        init: folder of the initialisation that the rounds started from.
        release: what was published.
    """
    network, start = checkpoint.load(init)
    return release.teach(network), start


def save_taught(folder: Path, init: Path, release: AdapterRelease) -> Checkpoint:
    """Write that network to a folder, once the release was checked; later it is found there.

    Args:
        folder: of the checkpoint.
        init: folder of the initialisation that the rounds started from.
        release: what was published.
    """
    check_contents(release)
    network, start = load_taught(init, release)
    run = RunFolder(folder)
    with run.claim({"init": start.initialisation, "release": release.digest}):
        if run.is_finished:
            return checkpoint.describe(folder)
        notes = {"role": "student", "mode": "applied", "images": 0, "release": release.digest}
        notes |= release.stamp
        description = replace(start, notes=notes)
        run.finish(network, description)
        return description
