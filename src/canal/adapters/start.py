"""Where rounds begin, and that they begin there again when they were stopped; all of it public."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from canal.adapters.public import Public
from canal.adapters.store import read_basis, write_basis
from canal.adapters.update import UpdateSettings
from canal.data.overlap import Contents
from canal.files import replace_file
from canal.release.workspace import Workspace

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Start:
    """Where rounds begin; all of it public.

    Args:
        values: of the adapter's parameters, `[d]`.
        initialisation: digest of the whole network.
        public: scales and bounds.
        update: how the next network follows from a sum.
        views: of an image in a round, each varied another way; 0 for the image as it is.
        measured: digest of all that the public numbers were measured with; empty if unknown.
        asked: digests of the recipient's images that they were measured on; None if unknown.
        trained_on: digests of what the initialisation was trained on; None if unknown.
    """

    values: Tensor
    initialisation: str
    public: Public
    update: UpdateSettings
    views: int = 1
    measured: str = ""
    asked: Contents | None = None
    trained_on: Contents | None = None


def settled(workspace: Workspace, start: Start) -> Start:
    """The start of an earlier run in this place that measured the same; else this one, kept.

    Measured again with other threads or on another machine, public numbers differ in their last
    bits, and a release that was paid for could not be finished.
    """
    if not start.measured:
        return start
    kept = found_in(workspace, start.measured, start.public.channels)
    if kept is None:
        path = _place(workspace, start.measured)
        workspace.private.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if start.public.basis is not None:
            write_basis(path.parent, start.public.basis)
        replace_file(path, json.dumps(start.public.to_json()).encode())
        kept = found_in(workspace, start.measured, start.public.channels)
    return start if kept is None else replace(start, public=kept)


def found_in(workspace: Workspace, measured: str, channels: NDArray[np.int64]) -> Public | None:
    """What an earlier run in this place measured, if it did.

    Args:
        workspace: of the release.
        measured: digest of all that it was measured with.
        channels: of every parameter.
    """
    path = _place(workspace, measured)
    if not path.is_file():
        return None
    values = json.loads(path.read_bytes())
    basis = read_basis(path.parent) if values["basis"] else None
    return Public.from_json(values, channels, basis)


def _place(workspace: Workspace, measured: str) -> Path:
    return workspace.private / "public" / measured[:16] / "public.json"
